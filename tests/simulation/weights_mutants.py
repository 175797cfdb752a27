"""Broken weights of groups: each breaks one rule of the index, of its publishers, or of its readers."""

from __future__ import annotations

from product_mutants import Mutant, nothing

from rlinf_scheduler.comm.replication import Publisher
from rlinf_scheduler.comm.replication.reading import DeltaReading
from rlinf_scheduler.weights import delta, index
from rlinf_scheduler.weights.fetch import Fetch
from rlinf_scheduler.weights.index import Index
from rlinf_scheduler.weights.index_service import IndexService
from rlinf_scheduler.weights.versions import Versions
from simulator.weights import WeightsPart

WEIGHTS = (WeightsPart,)


def _misses_the_last_shard(_is_complete):
    return lambda _index, _name, shards, _layouts: bool(shards)


def _drops_too_early(put):
    def drop(versions, name, version, new, delta):
        put(versions, name, version, new, delta)
        for older in [each for each in versions._versions[name] if each < version]:
            versions._drop(name, older)

    return drop


def _serves_the_newest(serve):
    def newest(versions, request):
        request.head.version = versions.version(request.head.name)
        serve(versions, request)

    return newest


def _keeps_what_is_over(ask_again):
    def keep(fetch):
        arrived = dict(fetch._arrived)
        ask_again(fetch)
        fetch._arrived = arrived

    return keep


def _gives_what_dead_processes_had(_givers):
    return lambda weights, version, _lost: {
        rank: shards.publisher.endpoint for rank, shards in weights.shards[version].items()
    }


def _keeps_the_first_base(make):
    def of_the_first(reading, delta, before):
        make(reading, delta, reading._replicas.__dict__.setdefault("first", before))

    return of_the_first


def _forgets_chains(compare):
    def begin_anew(versions, key, base, *, forced):
        if base.number in versions._versions[key.name]:
            versions._versions[key.name][base.number].chain = 0
        compare(versions, key, base, forced=forced)

    return begin_anew


def _tells_no_holder(_drop_base):
    return lambda _publisher, _key, delta, machine_id: delta.holders.pop(machine_id, None)


WEIGHTS_MUTANTS = {
    "makes a version of another than the one before": Mutant(
        DeltaReading, "_make_beside", _keeps_the_first_base, WEIGHTS
    ),
    "does not look at checksums": Mutant(delta, "_digest", lambda _digest: lambda _tags: b"", WEIGHTS),
    "makes one version of the other without end": Mutant(Versions, "_compare", _forgets_chains, WEIGHTS),
    "leaves those that wait for what has changed": Mutant(Publisher, "offer_delta", nothing, WEIGHTS),
    "keeps versions of which another was made": Mutant(Publisher, "_drop_base", _tells_no_holder, WEIGHTS),
    "calls a version complete without its last shard": Mutant(
        Index, "_is_complete", _misses_the_last_shard, WEIGHTS
    ),
    "drops the version before too early": Mutant(Versions, "put", _drops_too_early, WEIGHTS),
    "keeps what a dead publisher announced": Mutant(IndexService, "_on_lost", nothing, WEIGHTS),
    "gives what dead publishers had": Mutant(
        index._Weights, "givers", _gives_what_dead_processes_had, WEIGHTS
    ),
    "mixes shards of two versions": Mutant(Versions, "_serve", _serves_the_newest, WEIGHTS),
    "keeps shards of a version that is over": Mutant(Fetch, "_ask_again", _keeps_what_is_over, WEIGHTS),
    "does not compare launches": Mutant(index, "_check_owner", nothing, WEIGHTS),
    "tells nobody which versions are over": Mutant(Versions, "keep", lambda _keep: lambda *_: [], WEIGHTS),
    "leaves readers of a rank that is lost": Mutant(IndexService, "_fail", nothing, WEIGHTS),
}
