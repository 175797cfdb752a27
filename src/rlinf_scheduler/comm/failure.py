"""An exception on its way to another process: its type, its text, what caused it, and where it was raised.

To read one may import the module of its class, which takes as long as it takes, and runs the class's own code. So the
I/O thread reads only what is of this library; the rest stands there as an `UnreadError`, which `read_error` reads in
the thread that takes it.
"""

from __future__ import annotations

import io
import pickle
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import msgspec

from rlinf_scheduler.comm.codec.interruptions import raised_by_signal_handler
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.errors import CommError, SchedulerError

MAX_TEXT_CHARS = 100_000
_MAX_CAUSES = 10
# Errors of these modules are read at once: Python's own, and what begins like this library.
_BUILT_IN, _OWN = "builtins", __name__.removesuffix("comm.failure")


class _Cause(msgspec.Struct, frozen=True, array_like=True):
    """One exception of a chain: what it says, and itself, pickled; empty where pickle cannot carry it."""

    text: str
    pickled: bytes


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """What became of a request, a call or a launch that raised.

    Attributes:
        chain: the exception, what caused it, what caused that, and so on.
        traceback: as the process formatted it in which it was raised, causes included.
    """

    chain: list[_Cause]
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """All that can be said of an exception; whatever it holds, this does not fail."""
        if isinstance(error, UnreadError):  # it goes on as it came; so do causes
            return error.failure
        chain: list[_Cause] = []
        for link in _chain_of(error):
            unread = link.failure.chain if isinstance(link, UnreadError) else None
            chain += unread or [_Cause(_text_of(link), _pickled(link))]
        try:
            text = "".join(traceback.format_exception(error))
        except Exception:  # noqa: BLE001 - an exception's own __str__ may fail
            text = f"{type(error).__qualname__}, which cannot be shown\n"
        return cls(chain, sendable(text))

    @property
    def text(self) -> str:
        """The exception's type and message, on a line."""
        return self.chain[0].text

    def load(self, otherwise: str = "") -> BaseException | None:
        """The exception, with its causes; not on the I/O thread, for its class may have to be imported.

        Args:
            otherwise: the text of what stands for an exception that cannot be had here; "": then it is None.
        """
        first: BaseException | None = None
        for link in reversed(self.chain):
            error = _unpickled(link.pickled)
            text = otherwise if link is self.chain[0] else link.text
            if error is None and text:
                error = CommError(text)
            if error is not None and first is not None:
                error.__cause__ = first
            first = error
        return first

    def error(self, title: str = "") -> BaseException:
        """The exception as far as it can be had on the I/O thread; `read_error` reads what is left.

        What this library raises on purpose says all in its text; any other has a note of where it was raised.

        Args:
            title: the process that raised it; "" of what only caused another one.
        """
        first, *causes = self.chain
        error = _read_at_once(first)
        if error is None:
            return UnreadError(self, title)
        if causes:
            error.__cause__ = Failure(causes, self.traceback).error()
        return self.noted(error, title)

    def noted(self, error: BaseException, title: str) -> BaseException:
        """The exception with a note of where process `title` raised it, if that is to be told."""
        if title and not isinstance(error, SchedulerError):
            error.add_note(f"raised in '{title}':\n{self.traceback.rstrip()}")
        return error


class UnreadError(CommError):
    """What another process raised, or what caused that, as it came.

    Args:
        title: that process; "" of a cause.
    """

    def __init__(self, failure: Failure, title: str = "") -> None:
        super().__init__(failure, title)
        self.failure = failure
        self.title = title

    def __str__(self) -> str:
        return f"'{self.title}' failed: {self.failure.text}" if self.title else self.failure.text

    def read(self) -> BaseException:
        """Return the exception itself, or what stands for it; not on the I/O thread."""
        text = self.failure.text
        if self.title:
            text = f"'{self.title}' failed with an error that cannot be read here: {text}"
        return self.failure.noted(self.failure.load(text) or self, self.title)


def read_error(error: BaseException) -> BaseException:
    """Return an error of another process with all that was left unread; not on the I/O thread, for it may import."""
    if isinstance(error, UnreadError):
        return error.read()
    for link in _chain_of(error):
        if isinstance(link.__cause__, UnreadError):
            link.__cause__ = link.__cause__.read()
    return error


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Failure)


def dump_failure(error: BaseException) -> bytes:
    """An exception as a message's frame."""
    return _encoder.encode(Failure.of(error))


def load_failure(frame: Buffer) -> Failure:
    """What `dump_failure` wrote."""
    return _decoder.decode(frame)


def sendable(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """The text as a message can carry it: no half surrogate pairs, and not endless."""
    cut = text if len(text) <= limit else f"{text[:limit]} ... ({len(text) - limit} characters more)"
    return cut.encode("utf-8", "backslashreplace").decode()


def _chain_of(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) <= _MAX_CAUSES:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _text_of(error: BaseException) -> str:
    try:
        return sendable(f"{type(error).__qualname__}: {error}")
    except Exception:  # noqa: BLE001 - its own __str__ may fail
        return type(error).__qualname__


def _pickled(error: BaseException) -> bytes:
    for dumps in (pickle.dumps, _by_value):
        try:
            data = dumps(error, protocol=5)
            pickle.loads(data)
        except Exception:  # noqa: BLE001, S112 - whatever a foreign exception's own pickling raises
            continue
        return data
    return b""


def _by_value(error: BaseException, protocol: int) -> bytes:
    """Pickle what has a class of the user's script in it, which the process that raised it knows by value only."""
    import cloudpickle  # noqa: PLC0415 - loaded on first need, it costs 20 ms

    data: bytes = cloudpickle.dumps(error, protocol=protocol)
    return data


def _unpickled(data: bytes) -> BaseException | None:
    try:
        error = pickle.loads(data) if data else None
    except Exception as problem:  # its class may exist in the other process only
        if raised_by_signal_handler(problem):
            raise
        return None
    return error if isinstance(error, BaseException) else None


class _OwnUnpickler(pickle.Unpickler):
    """Reads what consists of this library's classes, which are loaded, and of Python's own."""

    def find_class(self, module: str, name: str) -> Any:
        if module != _BUILT_IN and not module.startswith(_OWN):
            message = f"{module}.{name} is not of this library"
            raise pickle.UnpicklingError(message)
        # Not imported: that would wait for a thread that imports it now.
        return getattr(sys.modules[module], name)


def _read_at_once(link: _Cause) -> BaseException | None:
    """Read one exception of a chain, unless it has anything of another library in it, or a user's."""
    if not link.pickled:
        return None
    try:
        error = _OwnUnpickler(io.BytesIO(link.pickled)).load()
    except Exception:  # noqa: BLE001 - who takes it finds out why
        return None
    return error if isinstance(error, BaseException) else None
