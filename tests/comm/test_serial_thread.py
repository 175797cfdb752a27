"""The thread that does everything on devices: one, whoever asks first, and however that ends."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from alarms import Interrupted
from rlinf_scheduler.comm import serial_thread
from rlinf_scheduler.comm.serial_thread import SerialThread

DEADLINE_S = 60.0


def test_who_is_interrupted_before_there_is_a_thread_leaves_the_start_to_the_next(monkeypatch):
    devices, done = SerialThread(), []

    def interrupted(_function):
        monkeypatch.undo()
        raise Interrupted

    monkeypatch.setattr(serial_thread, "run_beside", interrupted)
    with pytest.raises(Interrupted):
        devices.put(lambda: done.append("first"))
    assert devices.ask(lambda: done.append("second") or list(done)).result(DEADLINE_S) == ["first", "second"]
    devices.stop()


def test_of_several_who_ask_first_all_are_answered_by_one_thread():
    devices, num_asking = SerialThread(), 8
    together = threading.Barrier(num_asking)

    def ask(_):
        together.wait(DEADLINE_S)
        return devices.ask(threading.get_ident).result(DEADLINE_S)

    with ThreadPoolExecutor(num_asking) as asking:
        assert len(set(asking.map(ask, range(num_asking)))) == 1
    devices.stop()
