"""A plugin of pytest for RLinf's own tests of channels: its class `DistributedChannel` makes channels of ours.

That class of the tests starts three `ChannelWorker`s by itself and puts them into members of RLinf's `Channel`. Here no
channel is made of such. A fixture of every test of the file makes one: without this, none of them would run.
"""

from rlinf.scheduler import Channel

NUM_NODES = 3


def create(_cls, name, maxsize=0, **_options):
    channel = Channel.create(name, maxsize=maxsize, distributed=True)
    # What the fixture looks at before it hands the channel out.
    channel._distributed = True
    channel._channel_actors_by_rank = dict.fromkeys(range(NUM_NODES))
    return channel


def pytest_collection_modifyitems(items):
    for module in {item.module for item in items}:
        if (made := getattr(module, "DistributedChannel", None)) is not None:
            made.create = classmethod(create)
