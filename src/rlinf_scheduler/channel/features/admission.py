"""Slots and versions. Without them producers make as many items as there is room for, of any version."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.clients import KnownClient
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.queueing import Instruction


class AdmissionFeature:
    """The handlers of slots at one server."""

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self._state = server.state
        server.handlers |= {
            wire.Admit: self._admit,
            wire.SetVersion: self._set_version,
            control_wire.HoldSlot: self._hold,
            control_wire.LetGoOfSlot: self._let_go,
        }

    def _admit(self, known: KnownClient, admit: wire.Admit, _frames: Iterator[Buffer]) -> list[Instruction]:
        queue = wire.as_name(admit.queue)
        return self._state.admit(known.client, admit.ticket, queue, admit.max_lag, wait=admit.wait)

    def _set_version(
        self, known: KnownClient, said: wire.SetVersion, _frames: Iterator[Buffer]
    ) -> list[Instruction]:
        about = said.version, said.batch_items
        queue = wire.as_name(said.queue)
        return self._state.set_version(
            known.client, said.ticket, queue, *about, begins=said.begins, wait=said.wait
        )

    def _hold(self, request: Request) -> None:
        message: control_wire.HoldSlot = request.head
        self._server.tick()
        holder = "" if message.sent else request.peer_id
        queue = wire.as_name(message.queue)
        out = self._state.hold_slot(holder, queue, message.slot, message.key, message.source)
        self._server.carry_out(out)
        request.reply(None)

    def _let_go(self, request: Request) -> None:
        message: control_wire.LetGoOfSlot = request.head
        self._server.tick()
        queue, slot = wire.as_name(message.queue), message.slot
        out = self._state.let_go_of_slot(request.peer_id, queue, slot, message.key, message.source)
        self._server.carry_out(out)
        request.reply(None)
