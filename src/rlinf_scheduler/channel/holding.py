"""Items as they are put: as their bytes, or handed over to the holder of the producer's node, where they stay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from rlinf_scheduler.channel.held import HOLDER, DropHeld, Held, HeldAt, HoldItem
from rlinf_scheduler.channel.starting import Starter
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.errors import CommError
from rlinf_scheduler.session import Session

logger = Reporter(__name__)

# Shared memory, or an announcement, would cost more than so many bytes.
SMALL_BYTES = 16 << 10
# Smaller items travel inside messages. Measured: on links that are the limit, handing over wins from 64 KiB on (1.4
# times); where processors are the limit, it is level at 128 KiB and costs a third more at 64.
HELD_BYTES = 128 << 10
# Where there was no holder, one is asked for again after so long.
RETRY_S = 10.0
# Shared memory of the node is read at once, or not at all.
HOLD_TIMEOUT_S = 30.0


class FixedPayload:
    """An item whose frames say where it is.

    Attributes:
        frames: they.
        size_bytes: how large the item is.
    """

    __slots__ = ("frames", "size_bytes")
    is_elsewhere = True

    def __init__(self, frames: list[Buffer], size_bytes: int) -> None:
        self.frames = frames
        self.size_bytes = size_bytes

    def goes_as_descriptor(self, _peer: Endpoint) -> bool:
        """Whether `frames_for` gives something else than the bytes."""
        return self.is_elsewhere

    def frames_for(self, _peer: Endpoint) -> list[Buffer]:
        """Return the frames for the channel's server."""
        return self.frames

    def bytes_frames(self) -> list[Buffer]:
        """Return the frames for a receiver that could not read those."""
        return self.frames


class InlinePayload(FixedPayload):
    """An item that always travels as its bytes: these are its frames."""

    __slots__ = ()
    is_elsewhere = False


class HeldPayload(FixedPayload):
    """A payload whose bytes the node's holder has, too: it goes as their place.

    If the put comes to nothing, the holder is told when nobody refers to this any more.

    Attributes:
        is_accepted: its queue has it: what becomes of it is the channel's to say.
    """

    __slots__ = ("_at", "_drop", "_payload", "is_accepted")

    def __init__(self, payload: Payload, at: HeldAt, drop: Callable[[HeldAt], None]) -> None:
        super().__init__([at.to_frame()], payload.size_bytes)
        self.is_accepted = False
        self._payload = payload
        self._at = at
        self._drop = drop

    def bytes_frames(self) -> list[Buffer]:
        """Its bytes."""
        return self._payload.bytes_frames()

    def __del__(self) -> None:
        if not self.is_accepted:
            self._drop(self._at)


class Holding:
    """Hands payloads over to this node's holder, which is found when it is needed first. A service of a session.

    Everything is on the I/O thread.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messenger: Messenger = session.messenger
        self._holder: Endpoint | None = None
        self._is_looking = False
        self._does_without = self._is_said = False
        self._waiting: list[Callable[[], None]] = []
        self._messenger.on_peer_lost(self._on_peer_lost)

    def hold(self, payload: Payload, keeper: Endpoint, done: Callable[[HeldPayload | None], None]) -> None:
        """Hand a payload over, for the channel's server `keeper`; `done(None)`: it cannot be, and goes as bytes."""
        if self._holder is not None:
            self._hand_over(self._holder, payload, keeper, done)
        elif self._does_without:
            done(None)
        else:
            self._waiting.append(partial(self.hold, payload, keeper, done))
            self._look()

    # -- finding it --------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._is_looking:
            return
        self._is_looking = True
        found: Promise[Endpoint] = Promise()
        self._session.service(Starter).find_holder(found)
        found.add_done_callback(lambda _: self._messenger.submit(lambda: self._on_found(found)))

    def _on_found(self, found: Promise[Endpoint]) -> None:
        error = found.exception(0)
        holder = None if error is not None else found.result(0)
        if holder is None:
            self._do_without(f"no process of this node holds them: {error}")
        elif holder.machine_id != self._messenger.endpoint.machine_id:
            self._do_without("the process that is to hold them shares no memory with this one")
        else:
            # It must be known that it reads our shared memory.
            self._messenger.payloads.when_ready(holder, partial(self._begin, holder))

    def _begin(self, holder: Endpoint) -> None:
        if self._messenger.payloads.reads_ours(holder.process_id):
            self._holder, self._is_said = holder, False
            self._go_on()
        else:
            self._do_without("the process that is to hold them cannot read this one's shared memory")

    def _do_without(self, why: str) -> None:
        if not self._is_said:
            self._is_said = True
            logger.warning("large items pass the machines of their channels: %s", why)
        self._does_without = True
        self._messenger.call_later(RETRY_S, self._may_retry)
        self._go_on()

    def _may_retry(self) -> None:
        self._does_without = False

    def _go_on(self) -> None:
        self._is_looking = False
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each()

    def _on_peer_lost(self, process_id: str) -> None:
        if self._holder is not None and self._holder.process_id == process_id:
            self._holder = None

    # -- handing over ------------------------------------------------------------------------------

    def _hand_over(
        self, holder: Endpoint, payload: Payload, keeper: Endpoint, done: Callable[[HeldPayload | None], None]
    ) -> None:
        if not payload.goes_as_descriptor(holder):
            done(None)
            return
        asked = self._messenger.request(
            holder,
            HOLDER,
            HoldItem(keeper),
            payload.frames_for(holder),
            snapshot=False,
            reply_type=Held,
        )
        # Not withdrawn: what the holder takes later is to be dropped there, so its number must come.
        late = self._messenger.call_later(HOLD_TIMEOUT_S, partial(self._on_late, done))
        asked.add_done_callback(partial(self._on_held, holder, payload, done, late))

    def _on_late(self, done: Callable[[HeldPayload | None], None]) -> None:
        """The holder does not answer: the item goes as its bytes."""
        why = f"the process that is to hold it has not answered for {HOLD_TIMEOUT_S:.0f} s"
        logger.warning("an item passes its channel's machine: %s", why)
        done(None)

    def _on_held(
        self,
        holder: Endpoint,
        payload: Payload,
        done: Callable[[HeldPayload | None], None],
        late: Timer,
        asked: Promise[Reply],
    ) -> None:
        was_late = late.callback is None
        late.cancel()
        error = asked.exception(0)
        held: Held | None = None if error is not None else asked.result(0).head
        if held is not None and not held.problem:
            at = HeldAt(holder, held.number, payload.size_bytes, held.node)
            if was_late:
                self._drop(at)
            else:
                done(HeldPayload(payload, at, self._drop))
        elif not was_late:
            logger.warning(
                "an item passes its channel's machine: %s", error if held is None else held.problem
            )
            done(None)

    def _drop(self, at: HeldAt) -> None:
        with suppress(CommError):  # in a forked child it is the parent's
            self._messenger.notify(at.holder, HOLDER, DropHeld(at.number))
