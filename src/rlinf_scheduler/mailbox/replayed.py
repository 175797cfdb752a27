"""A mailbox that answers from the recording of a rank; nothing leaves the process."""

from __future__ import annotations

import sys
from typing import Any

from rlinf_scheduler.addresses import Rank
from rlinf_scheduler.comm.codec import decode, encode
from rlinf_scheduler.comm.codec.destinations import copy_into
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.mailbox.mailbox import checked_target, line
from rlinf_scheduler.mailbox.members import Groups, parse_members
from rlinf_scheduler.tape.player import Player


class ReplayedMailbox:
    """Stands for `Mailbox`."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def send(self, obj: Any, dst: str, *, topic: str = "", **_options: Any) -> AsyncHandle[None]:
        """Send any picklable object; the handle is done when the receiver's process holds it."""
        given = self._player.given("send", line(dst, topic), lambda: encode(obj))
        return AsyncHandle(given, None, f"send to '{dst}'")

    def send_tensor(self, tensor: Any, dst: str, **_options: Any) -> AsyncHandle[None]:
        """Send a torch tensor for `recv_tensor` (or `recv`); otherwise as `send`."""
        return self.send(tensor.detach(), dst)

    def recv(self, src: str, *, topic: str = "", **_options: Any) -> AsyncHandle[Any]:
        """The next object from `src`."""
        return AsyncHandle(self._player.promised("recv", line(src, topic)), _load, f"recv from '{src}'")

    def recv_tensor(self, tensor: Any, src: str, **_options: Any) -> AsyncHandle[Any]:
        """Receive the next tensor from `src` into `tensor`, which is also the handle's result."""
        checked_target(tensor)

        def fill(brought: tuple[Any, list[bytearray]]) -> Any:
            copy_into(sys.modules["torch"], tensor, _load(brought))
            return tensor

        return AsyncHandle(self._player.promised("recv_tensor", src), fill, f"recv_tensor from '{src}'")

    def broadcast(
        self,
        obj: Any = None,
        groups: Groups = (),
        src: tuple[str, Rank] | None = None,
        **_options: Any,
    ) -> AsyncHandle[Any]:
        """One object from `src` to all members of `groups`; every one of them calls this."""
        own_name = self._player.recorded.address
        members = parse_members(groups, src, own_name)
        what = f"broadcast from '{members.source}'"
        if members.source != own_name:
            return AsyncHandle(self._player.promised("broadcast", members.source), _load, what)
        if not members.targets:
            return AsyncHandle.completed(obj, what)
        given = self._player.given("broadcast", members.topic, lambda: encode(obj))
        return AsyncHandle(given, lambda _: obj, what)


def _load(brought: tuple[Any, list[bytearray]]) -> Any:
    head, *buffers = brought[1]
    return decode(head, buffers)
