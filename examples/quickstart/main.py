"""Two groups and a channel: producers put numbers, a consumer takes batches of a given weight.

python examples/quickstart/main.py
"""

from pathlib import Path

from rlinf.scheduler import Channel, Cluster, ComponentPlacement, Worker
from rlinf.scheduler.errors import ChannelClosed

CONFIG = Path(__file__).with_name("placement.yaml")


class Producer(Worker):
    """Puts pieces of work into the channel."""

    def produce(self, count: int) -> None:
        """Put `count` items; an item's weight is its length."""
        channel = self.connect_channel("work")
        for index in range(count):
            text = f"item {index} of rank {self.rank}"
            channel.put(text, weight=len(text))


class Consumer(Worker):
    """Takes what the producers made."""

    def consume(self) -> int:
        """Take batches of 60 characters until the channel is closed; returns how many items came."""
        channel = self.connect_channel("work")
        taken = 0
        while True:
            try:
                batch = channel.get_batch(60, timeout_s=30)
            except ChannelClosed:
                return taken
            self.log_info(f"a batch of {len(batch)}: {batch}")
            taken += len(batch)


def main() -> None:
    """Run both groups on two simulated nodes."""
    with Cluster(CONFIG, simulate="2x4") as cluster:
        placement = ComponentPlacement(CONFIG, cluster)
        producers = Producer.create_group().launch(
            cluster, placement_strategy=placement.get_strategy("producer")
        )
        consumers = Consumer.create_group().launch(
            cluster, placement_strategy=placement.get_strategy("consumer")
        )
        channel = Channel.create("work", maxsize=8)
        consumed = consumers.consume()
        producers.produce(10).wait(timeout_s=60)
        channel.close()
        print("items consumed:", consumed.wait(timeout_s=60))


if __name__ == "__main__":
    main()
