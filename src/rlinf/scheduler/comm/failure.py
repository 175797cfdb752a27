"""An exception on its way to another process: its type, its text, what caused it, and where it was raised."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator

import msgspec

from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.errors import CommError, SchedulerError

MAX_TEXT_CHARS = 100_000
_MAX_CAUSES = 10


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
        chain = [_Cause(_text_of(link), _pickled(link)) for link in _chain_of(error)]
        try:
            text = "".join(traceback.format_exception(error))
        except Exception:  # noqa: BLE001 - an exception's own __str__ may fail
            text = f"{type(error).__qualname__}, which cannot be shown\n"
        return cls(chain, sendable(text))

    @property
    def text(self) -> str:
        """The exception's type and message, on a line."""
        return self.chain[0].text

    def load(self) -> BaseException | None:
        """The exception, with its causes; None if it cannot be had here."""
        first: BaseException | None = None
        for link in reversed(self.chain):
            error = _unpickled(link.pickled)
            if error is None and link is not self.chain[0]:
                error = CommError(link.text)
            if error is not None and first is not None:
                error.__cause__ = first
            first = error
        return first

    def error(self, title: str) -> BaseException:
        """The exception to raise here: itself, or one that tells what process `title` raised.

        What this library raises on purpose says all in its text; any other has a note of where it was raised.
        """
        unread = f"'{title}' failed with an error that cannot be read here: {self.text}"
        error = self.load() or CommError(unread)
        if not isinstance(error, SchedulerError):
            error.add_note(f"raised in '{title}':\n{self.traceback.rstrip()}")
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
    try:
        data = pickle.dumps(error, protocol=5)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - whatever a foreign exception's own pickling raises
        return b""
    return data


def _unpickled(data: bytes) -> BaseException | None:
    try:
        error = pickle.loads(data) if data else None
    except Exception:  # noqa: BLE001 - its class may exist in the other process only
        return None
    return error if isinstance(error, BaseException) else None
