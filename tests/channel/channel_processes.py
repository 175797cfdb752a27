"""The main functions of the child processes that tests of channels start."""

from __future__ import annotations

from rlinf.testing.local import LocalRuntime
from rlinf_scheduler.channel import Starter


def hold_channels(address, pipe):
    """Hold the channels that the parent asks for, until it is gone."""
    with LocalRuntime(address, own_name="channels") as runtime:
        while True:
            try:
                wanted = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send((runtime.service(Starter).start(wanted), None))
            except Exception as error:  # noqa: BLE001 - the parent raises it
                pipe.send((None, error))


def run_function(address, pipe, own_name, function, args):
    """Run one function and report what came of it."""
    with LocalRuntime(address, own_name=own_name):
        try:
            outcome = (function(*args), None)
        except Exception as error:  # noqa: BLE001 - the parent raises it
            outcome = (None, error)
    pipe.send(outcome)
