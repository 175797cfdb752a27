"""An object that goes from machine to machine in pieces: received in its place, and handed on while the rest comes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer, flat
from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply, Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.pull.records import PullOffer
from rlinf_scheduler.comm.replication.records import AnswerKind, CarriedBy, Copy, Key, ReaderAnswer, Want
from rlinf_scheduler.comm.shm.sent_payload import Payload

# A piece takes a few ms, and what is asked for at a time keeps a link busy while a question is on its way.
MIN_PIECE_BYTES, MAX_PIECE_BYTES, NUM_PIECES = 256 << 10, 4 << 20, 64
WINDOW = 4
# Those that are pulled are larger: to ask for one takes as long as a card takes for several MiB.
TIMES_PULLED = 4
# Who is asked for bytes that it does not have says so after a while. Who says nothing may have stopped.
WAIT_S, PIECE_TIMEOUT_S, PIECE_BYTES_PER_S = 1.0, 4.0, 10 << 20


def piece_bytes(size_bytes: int) -> int:
    """How large the pieces of an object of so many bytes are."""
    return min(max(-(-size_bytes // NUM_PIECES), MIN_PIECE_BYTES), MAX_PIECE_BYTES)


class ByteRow:
    """The frames of an object, as one row of bytes."""

    def __init__(self, frames: Sequence[Buffer]) -> None:
        self._frames = [memoryview(flat(frame)) for frame in frames]
        self._ends = list(accumulate(map(len, self._frames)))

    def __len__(self) -> int:
        return self._ends[-1]

    def stretch(self, begin: int, end: int) -> list[memoryview]:
        """The bytes from `begin` to before `end`, as parts of frames."""
        parts, number = [], bisect_right(self._ends, begin)
        while begin < end:
            frame, there = self._frames[number], self._ends[number]
            first = there - len(frame)
            if frame:
                parts.append(frame[begin - first : end - first])
            begin, number = there, number + 1
        return parts


@dataclass(slots=True, eq=False)
class HeldObject:
    """An object of which the first `filled` bytes are here, and who waits for others, with what ends its wait.

    Attributes:
        num_asked: how many pieces of it have been asked for.
    """

    payload: Payload
    row: ByteRow
    filled: int
    num_asked: int = 0
    waiting: dict[Request, Timer] = field(default_factory=dict)


class ObjectPieces:
    """Objects of which other machines get pieces here; on the I/O thread."""

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger
        self.held: dict[tuple[str, Key], HeldObject] = {}

    def hold(self, publisher_id: str, key: Key, payload: Payload, *, is_whole: bool) -> HeldObject:
        """Let others have what is here of an object."""
        if (publisher_id, key) not in self.held:
            row = ByteRow(payload.bytes_frames())
            self.held[publisher_id, key] = HeldObject(payload, row, len(row) if is_whole else 0)
        return self.held[publisher_id, key]

    def drop(self, publisher_id: str, key: Key) -> None:
        """Forget an object; who waits for a piece of it hears that."""
        held = self.held.pop((publisher_id, key), None)
        if held is not None:
            for request in list(held.waiting):
                self._answer(held, request, AnswerKind.GONE)

    def advance(self, held: HeldObject, filled: int) -> None:
        """More of an object is here."""
        held.filled = filled
        for request in list(held.waiting):
            if request.head.end <= filled:
                self._answer(held, request, AnswerKind.HERE)

    def answer(self, request: Request) -> None:
        """Answer a question for a piece, now or when it is here."""
        asked: Copy = request.head
        held = self.held.get((asked.publisher_id, asked.key))
        if held is None or not 0 <= asked.begin < asked.end <= len(held.row):
            request.reply(ReaderAnswer(AnswerKind.GONE, asked.key))
            return
        held.num_asked += 1
        if asked.end <= held.filled:
            self._answer(held, request, AnswerKind.HERE)
        else:
            wait = partial(self._answer, held, request, AnswerKind.WAIT)
            held.waiting[request] = self._messenger.call_later(WAIT_S, wait)

    def _answer(self, held: HeldObject, request: Request, kind: AnswerKind) -> None:
        asked: Copy = request.head
        timer = held.waiting.pop(request, None)
        if timer is not None:
            timer.cancel()
        pulls, stack = self._messenger.pulls, asked.want.pulls

        def tell(pull: PullOffer | str, on_taken: Callable[[bool], None] | None = None) -> bool:
            comes = kind is AnswerKind.HERE and isinstance(pull, str)
            frames = held.row.stretch(asked.begin, asked.end) if comes else []
            answer = ReaderAnswer(kind, asked.key, begin=asked.begin, pull=pull)
            return request.reply(answer, frames, snapshot=False, on_confirmed=on_taken)

        if kind is not AnswerKind.HERE or not stack or asked.end - asked.begin < MIN_PIECE_BYTES:
            tell("")
        elif pulls is None:
            tell(f"'{self._messenger.name}' does not pull")
        else:
            pulls.offer(held.payload, request.peer_id, stack, tell)


class Copying:
    """An object on its way to this machine; on the I/O thread.

    When all is here `on_end` is called, or with what to ask the publisher if it does not go on where it copies from.
    """

    def __init__(
        self,
        messenger: Messenger,
        pieces: ObjectPieces,
        publisher_id: str,
        key: Key,
        held: HeldObject,
        on_end: Callable[[Want | None], None],
    ) -> None:
        self.key = key
        self.held = held
        self._messenger = messenger
        self._pieces = pieces
        self._publisher_id = publisher_id
        self._on_end = on_end
        self._from: Endpoint | None = None
        self._service = ""
        pulls = messenger.pulls
        self._pulls = "" if pulls is None or held.payload.block is None else pulls.stats().stack
        self._is_made = False
        self._why_sent = "there is no room in shared memory here" if pulls and pulls.stats().stack else ""
        if not self._why_sent:
            self._why_sent = "RLINF_PULL is not 'nixl' here" if pulls is None else pulls.stats().why
        self._piece_bytes = piece_bytes(len(held.row)) * (TIMES_PULLED if self._pulls else 1)
        self._next = 0
        self._asked: dict[int, Promise[Any]] = {}
        self._came: dict[int, int] = {}
        self._patience_s = PIECE_TIMEOUT_S + WINDOW * self._piece_bytes / PIECE_BYTES_PER_S
        self._silence: Timer | None = None

    @property
    def carrier(self) -> CarriedBy:
        """How it comes here."""
        if self._is_made:
            return CarriedBy("what has changed")
        return CarriedBy(self._pulls) if self._pulls else CarriedBy("TCP", self._why_sent)

    def begin(self, source: Endpoint, service: str, first: Sequence[Buffer] = ()) -> None:
        """Ask a process for what is missing; the first bytes may have come already."""
        self._from, self._service = source, service
        if first and not self.held.filled:
            end = sum(map(len, first))
            self._take(0, end, self.held.row.stretch(0, end), first)
        self._next = self.held.filled
        self._hear(source)
        self._ask_on()

    def made(self) -> None:
        """All of it is here, and has been made of what was here before."""
        self._is_made = True
        self._pieces.advance(self.held, len(self.held.row))
        self._on_end(None)

    def stop(self) -> None:
        """Ask for nothing more."""
        asked, self._asked = self._asked, {}
        self._came.clear()
        self._hear(None)
        for each in asked.values():
            each.cancel()

    def move_from(self, process_id: str) -> None:
        """Go on elsewhere, if this is where it comes from."""
        if self._from is not None and self._from.process_id == process_id:
            self.fail(process_id, was_late=True)

    def fail(self, avoid: str = "", *, was_late: bool = False, is_dropped: bool = False) -> None:
        """End it, if it is under way; `avoid` is the process that it came from, if that is to blame."""
        self.stop()
        source, self._from = self._from, None
        if source is not None:
            want = Want(
                self._messenger.endpoint, avoid=avoid, avoid_number=self.key.number, was_late=was_late
            )
            # What was dropped here may be copied again, for another reader of this process.
            want.was_to_keep = not is_dropped
            self._on_end(want)

    def _hear(self, source: Endpoint | None) -> None:
        """Something came from there: from now on it may say nothing for a while."""
        if self._silence is not None:
            self._silence.cancel()
        silent = partial(self._silent, source)
        self._silence = None if source is None else self._messenger.call_later(self._patience_s, silent)

    def _silent(self, source: Endpoint | None) -> None:
        # Longer each time: over a slow link, what was asked for before comes first.
        self._patience_s *= 2
        self.fail("" if source is None else source.process_id, was_late=True)

    def _ask_on(self) -> None:
        size = len(self.held.row)
        if self.held.filled == size:
            self._hear(None)
            self._on_end(None)
            return
        while len(self._asked) < WINDOW and self._next < size:
            begin, self._next = self._next, min(self._next + self._piece_bytes, size)
            self._ask(begin, self._next)

    def _ask(self, begin: int, end: int) -> None:
        if self._from is None:
            return
        places = self.held.row.stretch(begin, end)
        want = Want(self._messenger.endpoint, pulls=self._pulls)
        head = Copy(self._publisher_id, self.key, want, begin, end)
        asked = self._messenger.request(self._from, self._service, head, reply_type=ReaderAnswer)
        asked.places = places
        self._asked[begin] = asked
        asked.add_done_callback(partial(self._answered, begin, end, places))

    def _answered(self, begin: int, end: int, places: list[memoryview], reply: Promise[Reply]) -> None:
        source = self._from
        if source is None or self._asked.get(begin) is not reply:
            return
        del self._asked[begin]
        self._hear(source)
        answer: ReaderAnswer | None = None if reply.exception() is not None else reply.result().head
        if answer is None or answer.kind is AnswerKind.GONE:
            self.fail(source.process_id)
        elif answer.kind is AnswerKind.WAIT:
            self._ask(begin, end)
        elif isinstance(answer.pull, PullOffer):
            self._pull(source, answer.pull, begin, end, places)
        else:
            if answer.pull and self._messenger.pulls is not None:
                self._messenger.pulls.fell_back(source, answer.pull)
                self._pulls, self._why_sent = "", answer.pull
            self._take(begin, end, places, reply.result().frames)
            self._ask_on()

    def _pull(
        self, source: Endpoint, offer: PullOffer, begin: int, end: int, places: list[memoryview]
    ) -> None:
        pulls, block = self._messenger.pulls, self.held.payload.block
        if pulls is not None and block is not None:
            self._hear(None)  # it has a deadline of its own
            # Here as there the frames lie in a block in the same way.
            pulled = self._asked[begin] = pulls.pull(source, offer, block, places[0], places[-1])
            pulled.add_done_callback(partial(self._pulled, begin, end, places))

    def _pulled(self, begin: int, end: int, places: list[memoryview], pulled: Promise[None]) -> None:
        if self._asked.get(begin) is not pulled:
            return
        del self._asked[begin]
        self._hear(self._from)
        error = pulled.exception()
        if error is None:
            self._take(begin, end, places, places)
            self._ask_on()
        else:
            self._pulls, self._why_sent = "", str(error)
            self._ask(begin, end)

    def _take(self, begin: int, end: int, places: Sequence[memoryview], frames: Sequence[Buffer]) -> None:
        for place, frame in zip(places, frames, strict=True):
            if frame is not place:
                place[:] = frame
        self._came[begin] = end
        filled = self.held.filled
        while filled in self._came:
            filled = self._came.pop(filled)
        self._pieces.advance(self.held, filled)
