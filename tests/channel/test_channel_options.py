"""What a channel is created with reaches its process and whoever connects, and can be said wherever one is created."""

import inspect

import msgspec
import pytest

from rlinf.scheduler import Worker
from rlinf.testing import LocalRuntime
from rlinf_scheduler.channel import Channel, ChannelRef, ChannelSpec, StartChannel
from rlinf_scheduler.comm import Endpoint, Entry
from rlinf_scheduler.errors import ChannelError

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


def test_without_a_cluster_a_group_that_is_not_there_is_refused_too():
    with LocalRuntime(own_name="actor:0") as local:
        with pytest.raises(ChannelError, match="there is no group 'nobody' of workers: none was launched"):
            Channel.create("items", group_affinity="nobody")
        local.directory.register("actor:0", local.messenger.endpoint)
        assert Channel.create("items", group_affinity="actor").qsize() == 0
