"""What a signal handler raises while an object is encoded or decoded arrives as it is."""

import functools
import signal

import pytest

from rlinf_scheduler.comm.codec import decode, encode
from rlinf_scheduler.errors import CodecError


class Interrupted(Exception):
    pass


def interrupt(_signal, _frame):
    raise Interrupted


class Handler:
    def __call__(self, _signal, _frame):
        raise Interrupted

    def method(self, _signal, _frame):
        raise Interrupted


class Interrupting:
    """Is interrupted once when it is pickled, or when it is unpickled."""

    def __init__(self, when):
        self.when = when

    def __reduce__(self):
        if self.when == "encode":
            self.when = ""
            signal.raise_signal(signal.SIGUSR1)
        return (come_back, (self.when,))


def come_back(when):
    if when == "decode":
        signal.raise_signal(signal.SIGUSR1)
    return when


def there_and_back(obj):
    encoded = encode(obj)
    return decode(encoded.head, encoded.buffers)


@pytest.fixture(params=[interrupt, Handler(), Handler().method, functools.partial(interrupt)])
def handler(request):
    former = signal.signal(signal.SIGUSR1, request.param)
    yield
    signal.signal(signal.SIGUSR1, former)


@pytest.mark.parametrize("when", ["encode", "decode"])
def test_an_interruption_is_no_codec_error_and_is_not_swallowed(handler, when):
    with pytest.raises(Interrupted):
        there_and_back(Interrupting(when))


def test_the_same_exception_is_a_codec_error_where_no_handler_raised_it():
    class Failing:
        def __reduce__(self):
            raise Interrupted

    with pytest.raises(CodecError):
        encode(Failing())
