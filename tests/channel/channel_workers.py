"""Workers that the tests of channels launch on Ray."""

from rlinf.scheduler import Worker
from rlinf_scheduler.channel import Channel, host_channel
from rlinf_scheduler.session import current_session


class Holder(Worker):
    """Holds many channels in one process."""

    def __init__(self):
        super().__init__()
        self.servers = []

    def hold(self, spec):
        session = current_session()
        self.servers.append(host_channel(session, spec))
        return session.messenger.endpoint


class Runner(Worker):
    """Runs functions."""

    def run(self, function, *args):
        return function(*args)


class Maker(Worker):
    """Creates channels and uses them."""

    def make(self, name, **options):
        self.create_channel(name, **options)

    def put(self, name, items):
        channel = self.connect_channel(name)
        for item in items:
            channel.put(item, weight=1)

    def take(self, name, count):
        channel = self.connect_channel(name)
        return [channel.get(timeout_s=60) for _ in range(count)]

    async def get_async(self, name, count):
        channel = Channel.connect(name)
        return [await channel.get(async_op=True, timeout_s=60) for _ in range(count)]
