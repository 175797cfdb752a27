"""A broken product: each breaks one rule of its shells, as somebody might by mistake, and the machines are whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.client import ChannelClient
from rlinf_scheduler.channel.features.leases import LeasesFeature
from rlinf_scheduler.channel.lease_operation import LeaseRenewal
from rlinf_scheduler.channel.outbox import ResponseOutbox
from rlinf_scheduler.channel.receiving import Receiving
from rlinf_scheduler.channel.remote_items import RemoteItems
from rlinf_scheduler.channel.sender import OperationSender
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.comm.operation import Deliveries
from rlinf_scheduler.comm.transport.peer_transport import PeerTransport
from rlinf_scheduler.comm.transport.stream_link import StreamLink
from rlinf_scheduler.queueing.client import ClientState, End, Ending, SendWithdraw
from simulator import Report, Script, draw_script, product_users
from simulator.cluster import Part
from simulator.run import PRODUCT, run_script


class Mutant(NamedTuple):
    """A method of a class, or a class in a module, and what it is made into for one story of some parts."""

    owner: Any
    name: str
    make: Callable[[Any], Any]
    parts: tuple[Callable[..., Part], ...] = PRODUCT
    script: Callable[[int], Script] = draw_script

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Within, it is broken."""
        whole = self.owner.__dict__[self.name]
        setattr(self.owner, self.name, self.make(whole))
        try:
            yield
        finally:
            setattr(self.owner, self.name, whole)

    def story(self, seed: int) -> Report:
        """The story of a seed, told by it."""
        with self.at_work():
            return self.whole_story(seed)

    def whole_story(self, seed: int) -> Report:
        """The same, told by what is not broken."""
        return run_script(self.script(seed), None, self.parts)


def nothing(_whole):
    """It is not done."""
    return lambda *_args, **_options: None


def _drops_some_responses(respond):
    numbers = count()

    def drop(outbox, known, answer, end=None):
        if next(numbers) % 5 != 4:
            respond(outbox, known, answer, end)

    return drop


def _forgets_what_gathered_meanwhile(flush):
    def forget(outbox):
        flush(outbox)
        outbox.is_due = True

    return forget


def _swaps_the_frames_of_a_run(receive_run):
    def swap(receiving, answer, frames):
        receive_run(receiving, wire.Handed(answer.num_frames, answer.by, answer.tickets[::-1]), frames)

    return swap


def _latest_first(send):
    def backwards(sender):
        if len(sender.waiting) > 1:
            sender.waiting.reverse()
        send(sender)

    return backwards


def _leaves_the_oldest_for_later(send):
    def later(sender):
        held = sender.waiting.popleft() if len(sender.waiting) > 1 else None
        send(sender)
        if held is not None:
            sender.waiting.append(held)

    return later


def _keeps_the_timer(end):
    def forget(renewal, ticket):
        kept = renewal._kept.get(ticket)
        if kept is not None:
            kept.timer = None
        end(renewal, ticket)

    return forget


def _confirms_what_is_dropped(drop):
    def confirm(client, operation):
        if operation.ticket in client.deliveries:
            operation.taken = True
            client.look_at(operation)
        else:
            drop(client, operation)

    return confirm


def _counts_what_was_not_written(write):
    def skip(link):
        pieces = link._pieces
        before = sum(map(len, pieces))
        write(link)
        if pieces and before - sum(map(len, pieces)) > 0:  # the kernel took a part
            pieces.popleft()

    return skip


def _never_dials_again(on_cut):
    def leave(line, link, reason, *, for_good):
        if link is line.link:
            line.link = None
            line.session.cut(line._loop.now(), reason)

    return leave


def _takes_what_it_gave_up(delivered):
    return lambda state, ticket: delivered(state, ticket) or state.knows(ticket)


def _spends_without_end(put_before):
    def put(state, ticket, queue_name, inline_bytes, *, is_ready=True):
        return put_before(state, ticket, queue_name, 0, is_ready=is_ready)

    return put


def _tells_nobody_that_it_expired(expire):
    def tell_the_user(state, ticket):
        out = expire(state, ticket)
        return [End(ticket, Ending.TIMED_OUT) if type(each) is SendWithdraw else each for each in out]

    return tell_the_user


def _keeps_the_credit_of_what_is_refused(refused):
    def keep(state, ticket, detail, *, withdrawn=False):
        operation = state._operations.get(ticket)
        if operation is not None and operation.phase.name == "SENT":
            operation.inline_bytes = 0
        return refused(state, ticket, detail, withdrawn=withdrawn)

    return keep


def _lets_what_carries_nothing_pass(put_before):
    def put(state, ticket, queue_name, inline_bytes, *, is_ready=True):
        name = queue_name if inline_bytes else (queue_name, "announced")
        return put_before(state, ticket, name, inline_bytes, is_ready=is_ready)

    return put


def _never_fills_again(on_granted):
    def ignore(client, answer):
        if not answer.problem:
            on_granted(client, answer)

    return ignore


def _lets_others_pass_what_is_not_ready(put_before):
    def put(state, ticket, queue_name, inline_bytes, *, is_ready=True):
        name = queue_name if is_ready else (queue_name, "not ready")
        return put_before(state, ticket, name, inline_bytes, is_ready=is_ready)

    return put


def _tells_no_holder_that_it_was_given_up(lose):
    def keep_quiet(items, process_id):
        items._release_all = nothing(items._release_all)
        lose(items, process_id)
        del items._release_all

    return keep_quiet


def _looks_without_fetching(bring):
    def show_at_once(items, wanted, then, timeout_s=None):
        if timeout_s is None:
            bring(items, wanted, then)
        else:  # who looks has a deadline
            then("")

    return show_at_once


def _shows_what_it_saw_before(peek):
    seen = {}

    def look(connection, queue, number, max_bytes=0):
        if (connection, queue) not in seen:
            seen[connection, queue] = peek(connection, queue, number, max_bytes)
        return seen[connection, queue]

    return look


PRODUCT_MUTANTS = {
    "drops a response of the server": Mutant(ResponseOutbox, "respond", _drops_some_responses),
    "believes that its outbox is about to be sent": Mutant(
        ResponseOutbox, "flush", _forgets_what_gathered_meanwhile
    ),
    "gives the items of a run to each other's gets": Mutant(
        Receiving, "receive_run", _swaps_the_frames_of_a_run
    ),
    "sends the latest operation first": Mutant(OperationSender, "send", _latest_first),
    "sends the oldest operation last": Mutant(OperationSender, "send", _leaves_the_oldest_for_later),
    "sends no bytes of what was announced": Mutant(OperationSender, "fill", nothing),
    "leaves the timer of a lease that is over": Mutant(LeaseRenewal, "end", _keeps_the_timer),
    "keeps no lease alive": Mutant(LeaseRenewal, "_plan", nothing),
    "lets no lease lapse": Mutant(LeasesFeature, "_start", nothing),
    "confirms what was dropped": Mutant(ChannelClient, "drop", _confirms_what_is_dropped),
    "never gives an operation up": Mutant(ChannelClient, "expire", nothing),
    "never looks what was taken": Mutant(Deliveries, "_on_soon", nothing),
    "keeps what the dead had": Mutant(ChannelServer, "_lose", nothing),
    "never lets a batch ripen by its timer": Mutant(ChannelServer, "_ripen", nothing),
    "skips what a full connection did not take": Mutant(
        StreamLink, "_write_plain", _counts_what_was_not_written
    ),
    "never acknowledges by its timer": Mutant(StreamLink, "_acknowledge_late", nothing),
    "never dials after a cut": Mutant(PeerTransport, "on_cut", _never_dials_again),
    "takes what it gave up": Mutant(ClientState, "delivered", _takes_what_it_gave_up),
    "forgets to withdraw": Mutant(ClientState, "expire", _tells_nobody_that_it_expired),
    "forgets to repay": Mutant(ClientState, "refused", _keeps_the_credit_of_what_is_refused),
    "lets small puts pass": Mutant(ClientState, "put", _lets_what_carries_nothing_pass),
    "lets others pass a put that is not ready": Mutant(
        ClientState, "put", _lets_others_pass_what_is_not_ready
    ),
    "remembers what is settled": Mutant(ClientState, "settled", lambda _whole: lambda *_about: []),
    "is never ready": Mutant(ClientState, "ready", lambda _whole: lambda *_about: []),
    "keeps what nobody refers to": Mutant(RemoteItems, "settle", nothing),
    "tells no holder that it was given up": Mutant(
        RemoteItems, "_lose", _tells_no_holder_that_it_was_given_up
    ),
    "shows what has not come yet": Mutant(RemoteItems, "bring", _looks_without_fetching),
    "shows what it saw before": Mutant(product_users, "copies_of_first", _shows_what_it_saw_before),
    "fetches nothing by way of the channel": Mutant(Receiving, "_resend", nothing),
    "believes in shared memory that cannot be read": Mutant(ChannelClient, "_on_granted", _never_fills_again),
    "puts without credit": Mutant(ClientState, "put", _spends_without_end),
}
