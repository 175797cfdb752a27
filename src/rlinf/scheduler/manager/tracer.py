"""RLinf's way to note spans of a program's own, in the job's trace.

`cluster.tracer` has a job traced, as `cluster.trace(path)` and RLINF_TRACE do; what is noted here is a span in there,
beside the calls, waits and items that are noted anyway.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, overload

from rlinf_scheduler.observe.timekeeping import PHASE, TIMES, Span
from rlinf_scheduler.session import current_or_none

F = TypeVar("F", bound=Callable[..., Any])

# A thread that begins more than it ends is not remembered for ever.
_MAX_OPEN = 1024


class _Spans(threading.local):
    """Makes spans of this process's trace of events that begin and end; each thread has its own that are open."""

    def __init__(self) -> None:
        self._open: list[tuple[str, float, str]] = []

    def record(self, event: dict[str, Any]) -> None:
        """Take one; an end belongs to the last beginning of that name."""
        if event["ph"] == "B":
            del self._open[:-_MAX_OPEN]
            told = [event["cat"], *(f"{key}={value}" for key, value in event.get("args", {}).items())]
            self._open.append((event["name"], time.monotonic(), ", ".join(map(str, told))))
        elif event["ph"] == "E":
            found = [place for place, (name, *_) in enumerate(self._open) if name == event["name"]]
            if found:
                name, began, about = self._open.pop(found[-1])
                span = Span(PHASE, began, time.monotonic(), name, threading.get_ident(), "", about)
                if TIMES.span_file is not None:  # the trace may have ended
                    TIMES.span_file(span)


_SPANS = _Spans()


class Tracer:
    """Notes spans, while the job is traced; else its methods do nothing.

    Made by itself, it writes the events that it is given to a file, one a line.

    Args:
        output_file: that file, to which they are added.
    """

    _unavailable = False
    _labeled = False

    def __init__(self, output_file: str | os.PathLike[str]) -> None:
        path = Path(output_file).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._lock = threading.Lock()
        self._file = path.open("a")

    def record(self, event: Mapping[str, Any]) -> None:
        """Write an event."""
        with self._lock:
            self._file.write(f"{json.dumps(event)}\n")
            self._file.flush()

    def finalize(self) -> str:
        """Close the file; return its path."""
        with self._lock:
            self._file.close()
        return str(self._path)

    @classmethod
    def trace_begin(cls, name: str, cat: str = "default", args: Mapping[str, Any] | None = None) -> None:
        """A span begins here; `trace_end` of the same name ends it, in the same thread."""
        recorder = cls._get()
        if recorder is not None:
            cls._label_process(recorder)
            recorder.record(cls._event("B", name, cat) | ({} if args is None else {"args": dict(args)}))

    @classmethod
    def trace_end(cls, name: str, cat: str = "default") -> None:
        """The span of that name ends here."""
        recorder = cls._get()
        if recorder is not None:
            recorder.record(cls._event("E", name, cat))

    @classmethod
    @contextmanager
    def trace_span(
        cls, name: str, cat: str = "default", args: Mapping[str, Any] | None = None
    ) -> Iterator[None]:
        """A block that is a span."""
        cls.trace_begin(name, cat, args)
        try:
            yield
        finally:
            cls.trace_end(name, cat)

    @classmethod
    @overload
    def trace_func(cls, func_or_cat: F, cat: str = "default") -> F: ...

    @classmethod
    @overload
    def trace_func(cls, func_or_cat: str | None = None, cat: str = "default") -> Callable[[F], F]: ...

    @classmethod
    def trace_func(cls, func_or_cat: Callable[..., Any] | str | None = None, cat: str = "default") -> Any:
        """Make each call of a function a span, also of an `async def` one; with or without a category."""
        category = func_or_cat if isinstance(func_or_cat, str) else cat

        def traced(function: Callable[..., Any]) -> Callable[..., Any]:
            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def call_async(*args: Any, **kwargs: Any) -> Any:
                    with cls.trace_span(function.__name__, category):
                        return await function(*args, **kwargs)

                return call_async

            # Not the span as a decorator: its generator cannot be sent with a class of the program's own.
            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                with cls.trace_span(function.__name__, category):
                    return function(*args, **kwargs)

            return call

        return traced(func_or_cat) if callable(func_or_cat) else traced

    @classmethod
    def _get(cls) -> _Spans | None:
        """Return what takes events here; None where the job is not traced now."""
        return None if cls._unavailable or TIMES.span_file is None else _SPANS

    @staticmethod
    def _pid() -> str:
        session = current_or_none()
        return "driver" if session is None else session.name

    @classmethod
    def _label_process(cls, recorder: _Spans) -> None:
        if not cls._labeled:
            cls._labeled = True
            recorder.record(cls._event("M", "process_name", "default") | {"args": {"name": cls._pid()}})

    @classmethod
    def _event(cls, kind: str, name: str, cat: str) -> dict[str, Any]:
        stamp = time.time_ns() // 1000
        return {"name": name, "cat": cat, "ph": kind, "ts": stamp, "pid": cls._pid(), "tid": "main"}
