"""Images of durable channels: nothing is made from one but what a channel is made of, whatever it says."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from rlinf.scheduler.channel.image import ChannelImage
from rlinf.scheduler.queueing import ChannelState

QUEUEING = "rlinf.scheduler.queueing"
CHANNEL = "rlinf.scheduler.channel"


def text(what):
    return b"\x8c" + bytes([len(what)]) + what.encode()


def named(module, name):
    """The instructions that name something."""
    return text(module) + text(name) + b"\x93"


def image(instructions):
    return msgspec.msgpack.encode((b"\x80\x05" + instructions + b".", []))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("posix", "system"),
        ("builtins", "getattr"),
        ("copyreg", "_reconstructor"),
        (f"{CHANNEL}.journal", "os.system"),  # by what a module has imported
        (f"{CHANNEL}.image", "pickle.loads"),
        (f"{QUEUEING}.leases", "deque.append"),
        (f"{QUEUEING}.state", "ChannelState.put"),  # by what a class has
        (f"{QUEUEING}.state", "ChannelState.__init__.__globals__"),
        (f"{QUEUEING}.snapshot", "merged"),  # a function of ours
        (f"{QUEUEING}.leases", "deque"),  # somebody else's class, under a name of ours
        (f"{QUEUEING}.no_such_module", "Item"),
        (f"{CHANNEL}.journal", "Journal"),  # whose making does something
        (f"{CHANNEL}.checkpoint", "write_channel"),
        (f"{CHANNEL}.wire", "msgspec.msgpack.decode"),
        ("rlinf.scheduler.comm.shm.parcels", "Parcels"),
        (f"{CHANNEL}.image", "_Unpickler"),
    ],
)
def test_what_is_no_part_of_a_channel_is_not_even_looked_up(module, name):
    with pytest.raises(ValueError, match=f"it names {module}.{name}$"):
        ChannelImage.read(image(named(module, name) + text("true") + b"\x85R"), memoryview(b""))


@pytest.mark.parametrize("name", ["__init__", "__class__", "put", "__reduce_ex__"])
def test_methods_but_those_that_are_kept_are_not_given(name):
    made = named(f"{QUEUEING}.state", "ChannelState") + b")R"
    asked = named(f"{CHANNEL}.image", "_method") + made + text(name) + b"\x86R"
    with pytest.raises(ValueError, match=f"a method of {QUEUEING}.state.ChannelState: {name}"):
        ChannelImage.read(image(asked), memoryview(b""))


@pytest.mark.parametrize(
    "content",
    [b"", b"R", b"\x85R", named("builtins", "set") + text("a") + b"R", pickle.dumps(5)[2:-1]],
    ids=["empty", "calls nothing", "calls with nothing", "calls it wrongly", "something else"],
)
def test_what_makes_no_image_is_a_clear_error(content):
    with pytest.raises(ValueError, match=r"another version of this library|no image of a channel"):
        ChannelImage.read(image(content), memoryview(b""))


def test_what_a_channel_is_made_of_is_made():
    state = named(f"{QUEUEING}.state", "ChannelState") + b")R"
    assert ChannelState.__module__ == f"{QUEUEING}.state"
    with pytest.raises(ValueError, match="it is no image of a channel"):
        ChannelImage.read(image(state), memoryview(b""))
