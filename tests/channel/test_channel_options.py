"""What a channel is created with reaches its process and whoever connects, and can be said wherever one is created."""

import inspect

import msgspec
import pytest

from rlinf.scheduler import Worker
from rlinf.scheduler.channel import Channel, ChannelRef, ChannelSpec, StartChannel
from rlinf.scheduler.comm import Endpoint, Entry

OPTIONS = set(ChannelSpec.__struct_fields__) - {"name", "channel_id", "creator"}
AFFINITY = {"group_affinity", "group_rank_affinity"}


@pytest.mark.parametrize("create", [Channel.create, Worker.create_channel])
def test_every_option_can_be_said_wherever_a_channel_is_created(create):
    parameters = set(inspect.signature(create).parameters)
    assert parameters >= OPTIONS | AFFINITY


def test_a_spec_goes_to_its_process_and_to_the_directory_as_it_is():
    spec = ChannelSpec("items", 7)
    asked = msgspec.msgpack.decode(msgspec.msgpack.encode(StartChannel(spec, "actor", 3)), type=StartChannel)
    assert asked == StartChannel(spec, "actor", 3)
    entry = Entry("items:0", Endpoint("id", "machine", "", ""), {"placement": b"", **spec.to_info()})
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(entry), type=Entry)
    assert ChannelRef.from_entry("items", told).spec == spec
