"""Broken mailboxes and weights: each breaks one rule of their shells, or of who gets an object from where."""

from __future__ import annotations

from product_mutants import Mutant, nothing

from rlinf_scheduler.comm.replication.pieces import Copying, ObjectPieces
from rlinf_scheduler.comm.replication.publication import Publication
from rlinf_scheduler.comm.replication.publisher import Publisher
from rlinf_scheduler.comm.replication.replicas import Replicas
from rlinf_scheduler.comm.transfer import Transfer
from rlinf_scheduler.mailbox.inbox import Inbox, _Receiving
from rlinf_scheduler.mailbox.records import PutOutcome
from rlinf_scheduler.weights.index_service import IndexService
from simulator.mailbox import MailboxPart
from simulator.weights import WeightsPart

MAIL, WEIGHTS = (MailboxPart,), (WeightsPart,)


def _keeps_recvs_from_the_dead(_found):
    def keeps(receiving):
        receiving._waits_for_return = True

    return keeps


def _answers_before_it_reads(read):
    def answer(inbox, coming):
        coming.request.reply(PutOutcome(True, 0))
        read(inbox, coming)

    return answer


def _takes_what_is_dropped(finish):
    def take(inbox, receiving):
        receiving.taken = True
        finish(inbox, receiving)

    return take


def _leaves_what_begins_late(found):
    def leave(transfer, endpoint):
        transfer._is_late = False
        found(transfer, endpoint)

    return leave


def _forgets_who_asks(release):
    def forget(publisher, key):
        published = publisher._published.get(key)
        if published is not None:
            published.questions.clear()
        release(publisher, key)

    return forget


def _tells_no_replica(release):
    def keep(publisher, key):
        published = publisher._published.get(key)
        if published is not None:
            published.publication.replicas = list
        release(publisher, key)

    return keep


def _leaves_who_waits(answer):
    def leave(service, name):
        service._waiting.pop(name, None)
        return answer(service, name)

    return leave


def _forgets_who_waits(kept):
    return lambda publication, process_id: None if kept(publication, process_id) is None else []


def _hands_on_what_has_not_come(answer):
    def hand_on(pieces, request):
        held = pieces.held.get((request.head.publisher_id, request.head.key))
        if held is not None:
            held.filled = len(held.row)
        answer(pieces, request)

    return hand_on


MAILBOX_MUTANTS = {
    "says that it holds a letter before it has read it": Mutant(
        Inbox, "_read", _answers_before_it_reads, MAIL
    ),
    "takes a letter whose recv was dropped": Mutant(Inbox, "_finish_one", _takes_what_is_dropped, MAIL),
    "keeps recvs from the dead": Mutant(_Receiving, "found", _keeps_recvs_from_the_dead, MAIL),
    "leaves what begins after its deadline": Mutant(Transfer, "_found", _leaves_what_begins_late, MAIL),
    "forgets who asks for what is released": Mutant(Publisher, "release", _forgets_who_asks, WEIGHTS),
    "tells no replica that a version is over": Mutant(Publisher, "release", _tells_no_replica, WEIGHTS),
    "leaves who waits for a version": Mutant(IndexService, "_answer_waiting", _leaves_who_waits, WEIGHTS),
    "keeps what nobody needs": Mutant(Replicas, "_on_drop", nothing, WEIGHTS),
    "keeps versions of the dead": Mutant(Replicas, "_on_peer_lost", nothing, WEIGHTS),
    "never forgets a replica": Mutant(
        Publication, "lost", lambda _lost: lambda _publication, _process_id: [], WEIGHTS
    ),
    "forgets who waits": Mutant(Publication, "kept", _forgets_who_waits, WEIGHTS),
    "does not go on elsewhere": Mutant(Copying, "fail", nothing, WEIGHTS),
    "hands on what has not come": Mutant(ObjectPieces, "answer", _hands_on_what_has_not_come, WEIGHTS),
    "leaves who copied from the lost": Mutant(
        Publication, "is_copying", lambda _is: lambda _publication, _process_id: False, WEIGHTS
    ),
}
