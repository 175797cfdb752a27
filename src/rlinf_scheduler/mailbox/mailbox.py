"""send, recv and broadcast between named processes, whatever group they belong to."""

from __future__ import annotations

import sys
from typing import Any

from rlinf_scheduler.addresses import Rank
from rlinf_scheduler.checks import is_encodable
from rlinf_scheduler.comm.codec.destinations import copy_into, special_kind, why_unwritable
from rlinf_scheduler.comm.directory import DEFAULT_TIMEOUT_S, DirectoryClient
from rlinf_scheduler.comm.finder import Finder
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.transfer import Transfers, checked_timeout
from rlinf_scheduler.errors import CodecError, CommError
from rlinf_scheduler.mailbox.inbox import Inbox, Letter
from rlinf_scheduler.mailbox.mailing import Mailing
from rlinf_scheduler.mailbox.members import Groups, parse_members
from rlinf_scheduler.mailbox.outbox import Outbox
from rlinf_scheduler.mailbox.records import TensorType
from rlinf_scheduler.observe.timekeeping import SEND, TIMES

DEFAULT_LIMIT_BYTES = 256 << 20
MAX_NAME_CHARS = 4096


class Mailbox:
    """Sends to and receives from other processes by name, e.g. "rollout:3".

    What one process sends to another arrives in that order, and a recv from one never waits for another. A
    send is done when the receiver's process holds the item; that holds at most `limit_bytes` of each sender
    (or one larger item) until somebody receives it. Further sends wait; so do their bytes, but for those in shared
    memory and a credit for small items. A process that dies ends the waits for it with PeerDied; what had arrived
    from it can still be received. A broadcast is all of this between one process and several.

    An operation that is interrupted leaves nothing half done: a recv that returns nothing has taken nothing, and what
    a send or a broadcast sends arrives once or not at all.

    Args:
        messenger: this process's messenger; at most one mailbox lives on it.
        directory: where names are found.
        own_name: this process's name; it registers that itself.
        limit_bytes: bytes that this process holds of each peer; as many for each set of members of its broadcasts.
    """

    def __init__(
        self,
        messenger: Messenger,
        directory: DirectoryClient,
        own_name: str,
        *,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
    ) -> None:
        self._own_name = own_name
        transfers = Transfers(messenger, Finder(messenger, directory))
        self._outbox = Outbox(transfers, own_name, limit_bytes)
        self._inbox = Inbox(transfers, own_name, limit_bytes)

    def send(
        self,
        obj: Any,
        dst: str,
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        wait_s: float = 0.0,
        wait_for_return: bool = False,
        topic: str = "",
    ) -> AsyncHandle[None]:
        """Send any picklable object; the handle is done when the receiver's process holds it.

        The object is sent as it is during this call, which copies it.

        Args:
            obj: what to send.
            dst: the receiver's name; it may register later.
            timeout_s: how long it may take; None: as long as it takes.
            wait_s: how long this call may wait for shared memory when all of it is in use, before the object is
                copied through a socket.
            wait_for_return: if the receiver dies before it holds the object, and another process takes its name, send
                it to that one.
            topic: what keeps an order, and bounds, of its own: a `recv` gets what was sent on its topic.

        Raises:
            CommError: `timeout_s` is no number of at least 0 (at once, as with all that follow here).
            CodecError: the object cannot be pickled (at once).
            PeerNotFound: nobody registered as `dst` in time (from the handle, like the others).
            CommTimeout: the receiver's mailbox had no room in time; the object was not sent. Or it left, and
                its arrival was not confirmed in time.
            PeerDied: the receiver is gone.
        """
        return self._send(obj, _tensor_type(obj), dst, timeout_s, wait_s, wait_for_return, topic)

    def recv(
        self,
        src: str,
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        wait_for_return: bool = False,
        topic: str = "",
    ) -> AsyncHandle[Any]:
        """The next object from `src`.

        A recv that times out, is cancelled, or whose handle is dropped takes nothing.

        Args:
            src: the sender's name; it may register later.
            timeout_s: how long it may take; None: as long as it takes.
            wait_for_return: if the sender dies, and another process takes its name, wait for an object from that one.
            topic: as of `send`.

        Raises (from the handle):
            PeerNotFound: nobody registered as `src` in time.
            CommTimeout: nothing came in time.
            PeerDied: the sender is gone, and everything that it sent was received.
            CodecError: the object's class cannot be had here.
        """
        _check_name(src)
        limit_s = checked_timeout(timeout_s)
        promise = self._inbox.recv(src, timeout_s=limit_s, topic=topic, wait_for_return=wait_for_return)
        return AsyncHandle(promise, _load, f"recv from '{src}'")

    def send_tensor(
        self,
        tensor: Any,
        dst: str,
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        wait_s: float = 0.0,
        wait_for_return: bool = False,
    ) -> AsyncHandle[None]:
        """Send a torch tensor for `recv_tensor` (or `recv`); otherwise as `send`.

        Raises:
            CommError: it is no tensor.
        """
        if not _is_tensor(tensor):
            raise CommError(f"send_tensor takes a torch tensor, not {type(tensor).__qualname__}")
        if tensor.is_nested:
            raise CommError(
                "send_tensor takes no nested tensor, which has no shape to compare; send and recv take it"
            )
        return self._send(tensor.detach(), _tensor_type(tensor), dst, timeout_s, wait_s, wait_for_return)

    def recv_tensor(
        self,
        tensor: Any,
        src: str,
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        wait_for_return: bool = False,
    ) -> AsyncHandle[Any]:
        """Receive the next tensor from `src` into `tensor`, which is also the handle's result.

        Raises (from the handle, but for what is no tensor that can be written to):
            CommError: the next item is no plain dense tensor, or has another shape or dtype; it stays for the next
                recv.
            Otherwise as `recv`.
        """
        _check_name(src)
        wanted = checked_target(tensor)

        def check(there: TensorType | None) -> CommError | None:
            if there == wanted:
                return None
            problem = f"the next item from '{src}' is {there or 'no plain dense tensor'}, not {wanted}"
            return CommError(f"{problem}; it stays for the next recv")

        limit_s = checked_timeout(timeout_s)
        promise = self._inbox.recv(src, timeout_s=limit_s, check=check, wait_for_return=wait_for_return)

        def fill(letter: Letter) -> Any:
            copy_into(sys.modules["torch"], tensor, _load(letter))
            return tensor

        return AsyncHandle(promise, fill, f"recv_tensor from '{src}'")

    def broadcast(
        self,
        obj: Any = None,
        groups: Groups = (),
        src: tuple[str, Rank] | None = None,
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        wait_s: float = 0.0,
    ) -> AsyncHandle[Any]:
        """One object from `src` to all members of `groups`; every one of them calls this.

        Broadcasts of one source to the same members are received in the order in which they were sent, and mix
        with nothing else. On every machine the object is written once, however many members run there; what
        each of them receives is its own all the same.

        Args:
            obj: what to send; looked at on the source only.
            groups: the members, the source among them: [("actor", [0]), ("rollout", [0, 1, 2])], the same for
                everybody. A single rank may stand without a list.
            src: the source, e.g. ("actor", 0); None for the first member in `groups`.
            timeout_s: how long it may take; None: as long as it takes.
            wait_s: as of `send`; on the source.

        Returns:
            The handle of the object. On the source it is done when every member's process holds the object (and its
            result is `obj` itself), elsewhere when the object is here.

        Raises:
            CommError: the members or the source are not as above, or this process is no member (at once).
            CodecError: the object cannot be pickled (at once, on the source).
            PeerDied: the source is gone, and everything that it sent was received. On the source: members are
                gone, all others have the object.
            PeerNotFound: nobody registered as the source, or as the one member that is missing, in time.
            CommTimeout: the source sent nothing in time. On the source: the members that it names had not all
                registered, or had no room, in time; all others have the object.
        """
        members = parse_members(groups, src, self._own_name)
        for name in (members.source, *members.targets):
            _check_name(name)
        limit_s = checked_timeout(timeout_s)
        what = f"broadcast from '{members.source}'"
        if members.source != self._own_name:
            promise = self._inbox.recv(
                members.source,
                timeout_s=limit_s,
                topic=members.topic,
                operation="broadcast",
                waiting_for="its source to call it",
            )
            return AsyncHandle(promise, _load, what)
        if not members.targets:
            return AsyncHandle.completed(obj, what)
        mailing = Mailing(
            self._outbox,
            "broadcast",
            members.targets,
            members.topic,
            obj,
            timeout_s=limit_s,
            wait_s=wait_s,
        )
        return AsyncHandle(mailing.begin(), lambda _: obj, what)

    def held_bytes(self, src: str) -> int:
        """How many bytes from `src` have arrived and wait for a recv."""
        return self._inbox.held_bytes(src)

    def _send(
        self,
        obj: Any,
        tensor: TensorType | None,
        dst: str,
        timeout_s: float | None,
        wait_s: float,
        wait_for_return: bool,
        topic: str = "",
    ) -> AsyncHandle[None]:
        _check_name(dst)
        began = TIMES.now()
        mailing = Mailing(
            self._outbox,
            "send",
            (dst,),
            topic,
            obj,
            tensor=tensor,
            timeout_s=checked_timeout(timeout_s),
            wait_s=wait_s,
            wait_for_return=wait_for_return,
        )
        sent = mailing.begin()
        TIMES.note_moved(SEND, began, "send", dst)
        return AsyncHandle(sent, None, f"send to '{dst}'")


def _check_name(name: str) -> None:
    """Raise unless it can name a process: what is done with one is told to others.

    Raises:
        CodecError: no message can carry it.
    """
    if len(name) > MAX_NAME_CHARS or not is_encodable(name):
        raise CodecError(
            f"{name[:40]!r} names no process: a name is text of at most {MAX_NAME_CHARS} characters"
        )


def checked_target(tensor: Any) -> TensorType:
    """Return what can be received into a tensor.

    Raises:
        CommError: it is none, or cannot be written to.
    """
    wanted = _tensor_type(tensor)
    if not _is_tensor(tensor):
        raise CommError(f"recv_tensor fills a torch tensor, not {type(tensor).__qualname__}")
    why = why_unwritable(sys.modules["torch"], tensor)
    if why or wanted is None:
        raise CommError(f"recv_tensor fills a tensor that can be written to; this one is {why}")
    return wanted


def _load(letter: Letter) -> Any:
    try:
        return letter.arrived.load()
    except CodecError:
        # A signal handler that raised looks the same. What cannot be decoded fails again.
        return letter.arrived.load()


def _is_tensor(obj: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


def _tensor_type(obj: Any) -> TensorType | None:
    """What `recv_tensor` can fill; None of what is no plain dense tensor."""
    if not _is_tensor(obj) or special_kind(sys.modules["torch"], obj):
        return None
    return TensorType(str(obj.dtype).removeprefix("torch."), tuple(obj.shape))
