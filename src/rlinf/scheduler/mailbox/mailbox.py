"""send, recv and broadcast between named processes, whatever group they belong to."""

from __future__ import annotations

from typing import Any, SupportsIndex

from rlinf.scheduler.comm.codec import Encoded, encode
from rlinf.scheduler.comm.directory import DirectoryClient
from rlinf.scheduler.comm.handle import AsyncHandle
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.errors import CommError
from rlinf.scheduler.mailbox.broadcast import Broadcasts
from rlinf.scheduler.mailbox.inbox import Inbox, Item
from rlinf.scheduler.mailbox.members import Groups, parse_members
from rlinf.scheduler.mailbox.outbox import Outbox, tensor_meta
from rlinf.scheduler.mailbox.relay import Relay

DEFAULT_TIMEOUT_S = 1800.0
DEFAULT_LIMIT_BYTES = 256 << 20


class Mailbox:
    """Sends to and receives from other processes by name, e.g. "rollout:3".

    What one process sends to another arrives in that order, and a recv from one never waits for another. A
    send is done when the receiver's process holds the item; that holds at most `limit_bytes` of each sender
    (or one larger item) until somebody receives it, and further sends wait on their side before their bytes
    move. A process that dies ends the waits for it with PeerDied; what had arrived from it can still be
    received. A broadcast is all of this between one process and several.

    Args:
        messenger: this process's messenger; at most one mailbox lives on it.
        directory: where names are found.
        own_name: this process's name; it registers that itself.
        limit_bytes: bytes that each peer holds for this process; as many for each set of members of its broadcasts.
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
        self._relay = Relay(messenger, limit_bytes)
        self._outbox = Outbox(messenger, directory, own_name, limit_bytes)
        self._inbox = Inbox(messenger, directory, own_name, self._relay.keep)
        self._broadcasts = Broadcasts(messenger, self._outbox, self._inbox, own_name)

    def send(
        self,
        obj: Any,
        dst: str,
        *,
        timeout_s: float | None = None,
        snapshot: bool = True,
        wait_s: float = 0.0,
    ) -> AsyncHandle[None]:
        """Send any picklable object; the handle is done when the receiver's process holds it.

        The object is sent as it is during this call: what the kernel does not take at once is copied before
        the call returns. `snapshot=False` saves that copy, for a caller that waits for the handle before it
        changes the object.

        Args:
            obj: what to send.
            dst: the receiver's name; it may register later.
            timeout_s: how long it may take; None for DEFAULT_TIMEOUT_S.
            snapshot: see above.
            wait_s: how long this call may wait for shared memory when all of it is in use, before the object is
                copied through a socket.

        Raises:
            CodecError: the object cannot be pickled (at once).
            PeerNotFound: nobody registered as `dst` in time (from the handle, like the others).
            CommTimeout: the receiver's mailbox had no room in time; the object was not sent. Or it left, and
                its arrival was not confirmed in time.
            PeerDied: the receiver is gone.
        """
        return self._send(encode(obj), tensor_meta(obj), dst, timeout_s, snapshot, wait_s)

    def recv(self, src: str, *, timeout_s: float | None = None) -> AsyncHandle[Any]:
        """The next object from `src`.

        A recv that times out, is cancelled, or whose handle is dropped takes nothing.

        Raises (from the handle):
            PeerNotFound: nobody registered as `src` in time.
            CommTimeout: nothing came in time.
            PeerDied: the sender is gone, and everything that it sent was received.
            CodecError: the object's class cannot be had here.
        """
        future, take = self._inbox.recv(src, timeout_s=_or_default(timeout_s))

        def finish(item: Item) -> Any:
            take()
            return item.take().load()

        return AsyncHandle(future, finish, f"recv from '{src}'")

    def send_tensor(
        self,
        tensor: Any,
        dst: str,
        *,
        timeout_s: float | None = None,
        snapshot: bool = True,
        wait_s: float = 0.0,
    ) -> AsyncHandle[None]:
        """Send a torch tensor for `recv_tensor` (or `recv`); otherwise as `send`.

        Raises:
            CommError: it is no tensor.
        """
        meta = tensor_meta(tensor)
        if meta is None:
            raise CommError(f"send_tensor takes a torch tensor, not {type(tensor).__qualname__}")
        return self._send(encode(tensor.detach()), meta, dst, timeout_s, snapshot, wait_s)

    def recv_tensor(self, tensor: Any, src: str, *, timeout_s: float | None = None) -> AsyncHandle[Any]:
        """Receive the next tensor from `src` into `tensor`, which is also the handle's result.

        Raises (from the handle):
            CommError: the next item is no tensor, or has another shape or dtype; it stays for the next recv.
            Otherwise as `recv`.
        """
        wanted = tensor_meta(tensor)
        if wanted is None:
            raise CommError(f"recv_tensor fills a torch tensor, not {type(tensor).__qualname__}")

        def check(meta: Any) -> CommError | None:
            if meta == wanted:
                return None
            problem = f"the next item from '{src}' is {_describe(meta)}, not {_describe(wanted)}"
            return CommError(f"{problem}; it stays for the next recv")

        def fill(item: Item) -> Any:
            take()
            tensor.detach().copy_(item.take().load())
            return tensor

        future, take = self._inbox.recv(src, timeout_s=_or_default(timeout_s), check=check)
        return AsyncHandle(future, fill, f"recv_tensor from '{src}'")

    def broadcast(
        self,
        obj: Any = None,
        groups: Groups = (),
        src: tuple[str, SupportsIndex] | None = None,
        *,
        timeout_s: float | None = None,
        snapshot: bool = True,
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
            timeout_s: how long it may take; None for DEFAULT_TIMEOUT_S.
            snapshot: as of `send`; on the source.
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
        limit_s = _or_default(timeout_s)
        if members.source != self._own_name:
            return self._broadcasts.recv(members, timeout_s=limit_s)
        return self._broadcasts.send(obj, members, timeout_s=limit_s, snapshot=snapshot, wait_s=wait_s)

    def held_bytes(self, src: str) -> int:
        """How many bytes from `src` have arrived and wait for a recv."""
        return self._inbox.held_bytes(src)

    def _send(
        self,
        encoded: Encoded,
        meta: Any,
        dst: str,
        timeout_s: float | None,
        snapshot: bool,
        wait_s: float,
    ) -> AsyncHandle[None]:
        limit_s = _or_default(timeout_s)
        future = self._outbox.send(dst, encoded, meta, timeout_s=limit_s, snapshot=snapshot, wait_s=wait_s)
        return AsyncHandle(future, None, f"send to '{dst}'")


def _or_default(timeout_s: float | None) -> float:
    return DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s


def _describe(meta: list[Any] | None) -> str:
    return "no tensor" if meta is None else f"a {meta[0]} tensor of shape {tuple(meta[1])}"
