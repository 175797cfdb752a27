"""The index of weights: which versions are complete, who has them, what is kept, and what deaths do."""

import pytest

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.errors import NameTaken, PeerDied, WeightsError, WeightsReplaced
from rlinf_scheduler.weights.index import Index, gap_of, judge
from rlinf_scheduler.weights.layout import Sharded, layout, sharded, sliced, whole
from rlinf_scheduler.weights.records import (
    NO_VERSION,
    Announce,
    Find,
    HeldShards,
    KeptVersions,
    PublishingRank,
    Shards,
    apart,
    digested,
)

TENSORS = {"w": (8, 4), "b": (8,)}


def fsdp(rank, ranks=2, dtype="float32"):
    return layout(
        (key, dtype, sharded(shape, (ranks,), (rank,), [Sharded(0)])) for key, shape in TENSORS.items()
    )


def everything(keys=tuple(TENSORS)):
    return layout((key, "float32", whole(TENSORS[key])) for key in keys)


def endpoint(process, machine="m"):
    return Endpoint(f"id of {process}", machine, "", "")


def announce(
    version, rank=0, held=None, *, group="actor", launch=1, process="", ranks=(), world_size=2, machine="m"
):
    process = process or f"{group}:{rank}"
    publisher = PublishingRank(endpoint(process, machine), process, group, launch, rank, world_size)
    one = digested(fsdp(rank) if held is None else held)
    shards = Shards(publisher, one.digest, one.manifest, one.held_bytes, one.total_bytes, "", ranks)
    return Announce("policy", version, shards, one.packed)


def find(index, min_version=NO_VERSION, *, exact=False, lost=(), known=b"", launch=0):
    return index.find(Find("policy", min_version, exact, 0.0, known, lost, launch))


@pytest.fixture
def index():
    return Index(judge, gap_of)


def processes(found):
    return [source.process for source in found.sources]


def test_a_version_is_there_when_all_of_its_shards_are(index):
    index.announce(announce(1, 0))
    assert find(index) is None
    index.announce(announce(1, 1))
    found = find(index)
    assert (found.version, processes(found)) == (1, ["actor:0", "actor:1"])
    layouts = apart(found.layouts)
    assert [layouts[source.layout] for source in found.sources] == [fsdp(0), fsdp(1)]
    assert find(index, known=found.digest).layouts is None


def test_the_version_before_is_kept_until_a_newer_one_is_complete(index):
    for rank in range(2):
        index.announce(announce(1, rank))
    ((_, own),) = index.announce(announce(2, 0))
    assert own == KeptVersions("policy", (1, 2), 2, 1, (endpoint("actor:1"),))
    assert find(index).version == 1
    keeps = index.announce(announce(2, 1))
    assert keeps == [
        (endpoint("actor:1"), KeptVersions("policy", (2,), 2, 2, (endpoint("actor:0"),))),
        (endpoint("actor:0"), KeptVersions("policy", (2,), 2, 2, (endpoint("actor:1"),))),
    ]
    assert find(index).version == 2


def test_a_rank_that_is_a_version_ahead_does_not_keep_the_others_from_completing_one(index):
    for rank in range(2):
        index.announce(announce(1, rank))
    index.announce(announce(2, 0))
    ((_, own),) = index.announce(announce(3, 0))
    assert own.versions == (1, 2, 3)
    index.announce(announce(2, 1))
    assert find(index).version == 2
    ((_, own),) = index.announce(announce(4, 0))
    assert own.versions == (2, 3, 4)
    ((_, own),) = index.announce(announce(5, 0))
    assert own.versions == (2, 4, 5), "and what is given up is the oldest that nobody can read"


def test_who_has_a_version_of_a_launch_that_is_over_is_told_when_it_names_a_number(index):
    index.announce(announce(7, 0, everything(), world_size=1))
    assert find(index).launch == 1
    assert find(index, 8, launch=1) is None
    index.announce(announce(2, 0, everything(), launch=2, world_size=1, process="actor:0 again"))
    for number, exact in ((8, False), (2, False), (2, True)):
        with pytest.raises(
            WeightsReplaced, match=rf"'actor' was launched anew.* without min_version={number}"
        ):
            find(index, number, exact=exact, launch=1)
    assert find(index, launch=1).version == 2
    assert find(index, 2).version == 2
    assert find(index, 3, launch=2) is None


def test_who_asks_for_any_version_waits_for_the_first_one_of_the_present_launch(index):
    index.announce(announce(7, 0, everything(), world_size=1))
    index.announce(announce(2, 0, launch=2, process="actor:0 again"))
    assert find(index, launch=1) is None
    index.announce(announce(2, 1, launch=2))
    assert find(index, launch=1).version == 2


def test_replicas_are_sources_too_and_one_of_them_may_die(index):
    for rank in range(4):
        index.announce(announce(1, rank, fsdp(rank % 2), world_size=4))
    assert len(find(index).sources) == 4
    assert index.lose("policy", "id of actor:1", "killed")[0] is None
    assert processes(find(index)) == ["actor:0", "actor:2", "actor:3"]
    assert isinstance(index.lose("policy", "id of actor:3", "killed")[0], PeerDied)
    assert find(index) is None


def test_a_publisher_that_dies_in_the_middle_is_named_and_its_successor_completes_the_version(index):
    for rank in range(2):
        index.announce(announce(1, rank))
    index.announce(announce(2, 0))
    error, _ = index.lose("policy", "id of actor:1", "killed")
    assert str(error) == "peer 'weights/policy' is gone: published by 'actor:1': killed"
    assert find(index) is None
    with pytest.raises(PeerDied, match="published by 'actor:1': killed"):
        find(index, lost=("id of actor:1",))
    text = "version 2 is not complete: nobody has [4:8, 0:4] of 'w'; it waits for 'actor:1', which is gone: killed"
    assert index.missing("policy").lacks == text
    index.announce(announce(2, 1, process="actor:1 again"))
    assert processes(find(index)) == ["actor:0", "actor:1 again"]


def test_a_successor_takes_the_place_of_a_process_whose_end_was_not_noticed(index):
    for rank in range(2):
        index.announce(announce(3, rank))
    index.announce(announce(1, 1, process="actor:1 again"))
    assert find(index) is None
    index.announce(announce(3, 1, process="actor:1 again"))
    assert processes(find(index)) == ["actor:0", "actor:1 again"]


def test_a_replica_that_dies_before_all_ranks_have_published_is_nobodys_error(index):
    for rank in (0, 2):
        index.announce(announce(1, rank, fsdp(0), world_size=4))
    assert index.lose("policy", "id of actor:2", "killed") == (None, [])
    index.announce(announce(1, 1, world_size=4))
    assert processes(find(index)) == ["actor:0", "actor:1"]


def test_a_rank_that_has_to_publish_is_missed_at_once_when_it_dies(index):
    for rank, key in enumerate(TENSORS):
        index.announce(announce(1, rank, everything([key]), ranks=(0, 1)))
    assert isinstance(index.lose("policy", "id of actor:1", "killed")[0], PeerDied)
    assert find(index) is None


def test_a_process_that_dies_while_others_publish_another_cut_is_forgotten(index):
    for rank in range(4):
        index.announce(announce(1, rank, fsdp(rank % 2), world_size=4))
    index.announce(announce(2, 0, fsdp(0, ranks=4), world_size=4))
    index.announce(announce(2, 3, fsdp(3, ranks=4), world_size=4))
    assert isinstance(index.lose("policy", "id of actor:0", "killed")[0], PeerDied)
    assert processes(find(index)) == ["actor:1", "actor:2", "actor:3"]


def test_what_a_version_lacks_is_told_with_the_rank_that_should_have_it(index):
    index.announce(announce(1, 1))
    lacks = "nobody has [0:4, 0:4] of 'w'; it waits for rank 0 of 'actor', which has published nothing"
    assert index.missing("policy").lacks == f"version 1 is not complete: {lacks}"
    index.announce(announce(1, 0))
    index.announce(announce(2, 1))
    assert index.missing("policy").lacks.endswith(
        "it waits for 'actor:0', which has published version 1 last"
    )


def test_stages_of_whole_tensors_are_complete_when_the_ranks_that_are_named_have_published(index):
    index.announce(announce(1, 0, everything(["w"]), ranks=(0, 1)))
    assert find(index) is None
    text = "version 1 is not complete; it waits for rank 1 of 'actor', which has published nothing"
    assert index.missing("policy").lacks == text
    index.announce(announce(1, 1, everything(["b"]), ranks=(0, 1)))
    assert find(index).version == 1


def test_ranks_that_name_others_or_none_of_those_that_publish_are_an_error(index):
    index.announce(announce(1, 0, everything(["w"]), ranks=(0, 1)))
    told = r"all ranks give the same ranks=; of version 1, 'actor:1' ranks=None and 'actor:0' ranks=\[0, 1\]"
    with pytest.raises(WeightsError, match=told):
        index.announce(announce(1, 1, everything(["b"])))
    assert find(index) is None
    index.announce(announce(1, 1, everything(["b"]), ranks=(0, 1)))
    index.announce(announce(2, 1, everything()))
    assert find(index).version == 2, "and another version may have others"


def test_two_shardings_under_one_name_are_an_error_that_says_who_has_what(index):
    index.announce(announce(1, 0))
    other = layout(
        (key, "float32", sharded(shape, (2,), (1,), [Sharded(len(shape) - 1)]))
        for key, shape in TENSORS.items()
    )
    with pytest.raises(WeightsError, match=r"'w': nobody|'w': shards overlap") as caught:
        index.announce(announce(1, 1, everything()))
    assert "[0:4, 0:4] of process 'actor:0' and [0:8, 0:4] of process 'actor:1'" in str(caught.value)
    index.announce(announce(1, 1, other))
    assert find(index) is None
    index.announce(announce(2, 0))
    index.announce(announce(2, 1))
    assert find(index).version == 2, "and what was refused is not in the way"


def test_a_tensor_that_is_not_the_same_everywhere_is_an_error(index):
    index.announce(announce(1, 0))
    with pytest.raises(WeightsError, match=r"it is bfloat16 .* in process 'actor:1', and float32"):
        index.announce(announce(1, 1, fsdp(1, dtype="bfloat16")))


def test_versions_of_a_process_grow(index):
    index.announce(announce(3, 0))
    for version in (3, 2):
        with pytest.raises(WeightsError, match=f"version {version} cannot follow version 3: versions grow"):
            index.announce(announce(version, 0))
    index.announce(announce(2, 1))


def test_a_name_belongs_to_one_group_as_long_as_a_process_of_it_lives(index):
    index.announce(announce(7, 0, everything()))
    with pytest.raises(NameTaken, match="'weights/policy' is taken, by process 'actor:0'"):
        index.announce(announce(8, 0, everything(), group="critic"))
    assert isinstance(index.lose("policy", "id of actor:0", "killed")[0], PeerDied)
    assert not index.names
    index.announce(announce(2, 0, everything(), group="critic"))
    assert find(index).version == 2


def test_a_group_that_is_launched_anew_begins_anew_and_nothing_of_the_launch_before_is_read(index):
    for rank in range(2):
        index.announce(announce(7, rank))
    keeps = index.announce(announce(1, 0, launch=2, process="actor:0 anew"))
    assert {keep.versions for _, keep in keeps[1:]} == {()}
    assert find(index) is None
    with pytest.raises(
        WeightsError, match="'actor' was launched anew, and publishes them; 'actor:1' is of a launch before"
    ):
        index.announce(announce(8, 1))
    index.announce(announce(1, 1, launch=2, process="actor:1 anew"))
    assert (find(index).version, processes(find(index))) == (1, ["actor:0 anew", "actor:1 anew"])


def test_exactly_one_version_or_it_is_over(index):
    index.announce(announce(3, 0, everything()))
    assert find(index, 4, exact=True) is None
    assert find(index, 3, exact=True).version == 3
    over = "version 2 is over: 'actor:0' publishes version 3 now, and keeps no older one"
    with pytest.raises(WeightsError, match=over):
        find(index, 2, exact=True)


def test_a_reader_that_cannot_reach_a_publisher_is_given_its_replica_or_told_so(index):
    for rank in range(3):
        index.announce(announce(1, rank, fsdp(rank % 2), world_size=3))
    assert processes(find(index, lost=("id of actor:0",))) == ["actor:1", "actor:2"]
    with pytest.raises(PeerDied, match="published by 'actor:1'"):
        find(index, lost=("id of actor:1",))


def test_what_is_asked_for_again_has_changed_nothing(index):
    class Later(Exception):
        pass

    later = [Later(), Later()]

    def judge_later(layouts, names):
        if later:
            raise later.pop()
        return judge(layouts, names)

    index = Index(judge_later, gap_of)
    index.announce(announce(1, 0))
    for _ in range(2):
        with pytest.raises(Later):
            index.announce(announce(1, 1))
        assert find(index) is None
    index.announce(announce(1, 1))
    assert find(index).version == 1


def test_contents_say_who_has_what(index):
    for rank in range(2):
        index.announce(announce(1, rank))
    index.announce(announce(2, 0))
    (state,) = index.contents()
    assert (state.name, state.version, state.sources) == ("policy", 1, {"actor:0": 80, "actor:1": 80})
    assert "waits for 'actor:1'" in state.lacks[2]


def test_a_slice_of_a_process_alone_is_no_version(index):
    index.announce(announce(1, 0, layout([("w", "float32", sliced((8,), (0,), (4,)))]), world_size=1))
    assert find(index) is None
    assert index.missing("policy").lacks == "version 1 is not complete: nobody has [4:8] of 'w'"


def test_a_rank_that_is_ahead_hears_which_version_goes_with_another_one(index):
    for rank, version in ((0, 1), (1, 1), (0, 2), (0, 3)):
        index.announce(announce(version, rank))
    error, notices = index.lose("policy", "id of actor:1", "killed")
    assert isinstance(error, PeerDied)
    assert notices == [(endpoint("actor:0"), KeptVersions("policy", (2, 3), 3, 1))]


def hold(index, of, version, holder):
    index.hold(HeldShards("policy", version, f"id of {of}", endpoint(holder)))


def sources(found):
    return [(source.process, source.endpoint.process_id, source.of) for source in found.sources]


def test_shards_that_another_rank_holds_outlive_their_process_until_its_successor_completes_a_version(index):
    for rank in range(2):
        index.announce(announce(1, rank))
    hold(index, "actor:1", 1, "actor:0")
    index.announce(announce(2, 0))
    assert sources(find(index, lost=("id of actor:1",)))[1] == ("actor:1", "id of actor:0", "id of actor:1")
    error, _ = index.lose("policy", "id of actor:1", "killed")
    assert isinstance(error, PeerDied), "of those that wait for version 2"
    there = [("actor:0", "id of actor:0", ""), ("actor:1", "id of actor:0", "id of actor:1")]
    assert (find(index).version, sources(find(index))) == (1, there)
    assert find(index, 2) is None
    ((_, own),) = index.announce(announce(3, 1, process="actor:1 again"))
    assert own.held == 1
    assert sources(find(index)) == there
    keeps = dict(index.announce(announce(2, 1, process="actor:1 anew")))
    assert find(index).version == 2
    assert [(keep.held, keep.holds) for keep in keeps.values()] == [
        (2, (endpoint("actor:0"),)),
        (2, (endpoint("actor:1 anew"),)),
    ]


def test_a_rank_holds_what_a_dead_one_was_to_hold_too_and_what_it_held_is_gone_with_it(index):
    for rank in range(4):
        index.announce(announce(1, rank, fsdp(rank, ranks=4), world_size=4, machine="m" if rank else "other"))
    for of, holder in ((1, 2), (2, 3), (3, 1)):
        hold(index, f"actor:{of}", 1, f"actor:{holder}")
    _, notices = index.lose("policy", "id of actor:2", "killed")
    assert notices == [
        (
            endpoint("actor:3"),
            KeptVersions("policy", (1,), 1, 1, (endpoint("actor:1"), endpoint("actor:2"))),
        )
    ]
    assert find(index).version == 1
    index.lose("policy", "id of actor:3", "killed")
    assert find(index) is None, "two neighbours are gone"


def test_a_rank_alone_on_its_machine_has_nobody_to_hold_its_shards(index):
    for rank in range(2):
        keeps = index.announce(announce(1, rank, machine=f"m{rank}"))
    assert [keep.holds for _, keep in keeps] == [()]


def test_shards_that_are_held_stay_there_when_others_of_their_version_are_lost_and_come_again(index):
    for rank in range(3):
        index.announce(announce(1, rank, fsdp(rank, ranks=3), world_size=3, machine="m" if rank else "other"))
    hold(index, "actor:1", 1, "actor:2")
    index.lose("policy", "id of actor:1", "killed")
    index.lose("policy", "id of actor:0", "killed")
    assert find(index) is None
    again = announce(1, 0, fsdp(0, ranks=3), world_size=3, machine="other", process="actor:0 again")
    index.announce(again)
    assert [of for _, _, of in sources(find(index))] == ["", "id of actor:1", ""]
    ((_, own),) = index.announce(announce(2, 2, fsdp(2, ranks=3), world_size=3, machine="m"))
    assert (own.held, own.holds) == (1, (endpoint("actor:1"),))


def test_who_is_not_to_hold_shards_any_more_gives_none(index):
    for rank in range(3):
        index.announce(announce(1, rank, fsdp(rank, ranks=3), world_size=3))
    hold(index, "actor:0", 1, "actor:2")
    index.lose("policy", "id of actor:0", "killed")
    assert find(index) is None, "rank 1 was to hold it"
