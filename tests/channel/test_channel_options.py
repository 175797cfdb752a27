"""What a channel is created with reaches its process and whoever connects, and can be said wherever one is created."""

import inspect

import msgspec
import pytest

from rlinf.scheduler import Worker
from rlinf.testing import LocalRuntime
from rlinf_scheduler.channel import Channel, ChannelRef, ChannelSpec, StartChannel
from rlinf_scheduler.channel.channel import ChannelOptions
from rlinf_scheduler.comm import Endpoint, Entry
from rlinf_scheduler.errors import ChannelError

OPTIONS = set(ChannelSpec.__struct_fields__) - {"name", "channel_id", "creator", "producer_group"}
AFFINITY = {"group_affinity", "group_rank_affinity"}


def test_every_option_can_be_said_wherever_a_channel_is_created():
    parameters = inspect.signature(Channel.create).parameters
    assert set(parameters) >= OPTIONS | AFFINITY
    by_name = {name: each.annotation for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}
    del by_name[
        "disable_distributed_log"
    ]  # of RLinf's programs, which create channels by `Channel.create` alone
    assert {name: each.__forward_arg__ for name, each in ChannelOptions.__annotations__.items()} == by_name
    assert inspect.get_annotations(Worker.create_channel)["options"] == "Unpack[ChannelOptions]"


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
