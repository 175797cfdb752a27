"""A program in one file: its dataclass and its enum travel in every direction."""

import enum
from dataclasses import dataclass

from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker
from rlinf_scheduler.errors import WorkerError


@dataclass(frozen=True)
class Message:
    """Something that a script defines."""

    number: int


class Mark(enum.Enum):
    """A marker that a script defines."""

    STOP = "stop"


class Odd(Exception):
    """What a script raises."""


class Peer(Worker):
    """Makes, judges and forwards messages."""

    def __init__(self, expected):
        super().__init__()
        self.expected = expected

    def make(self):
        return Message(1)

    def refuse(self, number):
        raise Odd(number) from Odd("a cause")

    def judge(self, message, mark):
        return isinstance(message, Message) and message == self.expected and mark is Mark.STOP

    def forward(self):
        channel = self.connect_channel("script")
        item = channel.get(timeout_s=60)
        channel.put((item == Message(2), item), queue_name="back")


def main():
    with Cluster() as cluster:
        group = Peer.create_group(Message(1)).launch(cluster, NodePlacementStrategy([0]))
        (made,) = group.make().wait(60)
        assert isinstance(made, Message)
        assert made == Message(1)
        assert group.judge(Message(1), Mark.STOP).wait(60) == [True]
        channel = Channel.create("script")
        channel.put(Message(2))
        group.forward().wait(60)
        assert channel.get("back", timeout_s=60) == (True, Message(2))
        (error,) = group.refuse(3).results(return_exceptions=True)
        assert isinstance(error, WorkerError)
        assert type(error.cause) is Odd
        assert error.cause.args == (3,)
        assert type(error.cause.__cause__) is Odd
        print("all the same")


if __name__ == "__main__":
    main()
