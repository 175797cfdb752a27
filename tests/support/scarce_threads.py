"""A process that can start no thread for a while."""

import _thread
import threading

from rlinf_scheduler.comm import threads


def refuse_thread(monkeypatch, function):
    """Let the first thread that is to run a function of this name not be had; the event is set when it was refused."""
    start, refused = _thread.start_new_thread, threading.Event()

    def refuse_once(target, args, *options):
        # What `run_beside` starts is the first argument of what it starts it by.
        runs = args[0] if target is threads._run_own else target
        if refused.is_set() or getattr(runs, "__name__", "") != function:
            return start(target, args, *options)
        refused.set()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse_once)
    return refused


def refuse_thread_object(monkeypatch):
    """Let the first `threading.Thread` not be had; the event is set when it was refused."""
    start, refused = threading.Thread.start, threading.Event()

    def refuse_once(thread):
        if refused.is_set():
            return start(thread)
        refused.set()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    return refused
