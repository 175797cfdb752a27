"""How often a process asks again for an item on a device that it cannot have now."""

from types import SimpleNamespace

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.receiving import ASK_AGAIN_S, MAX_ASK_AGAIN_S, Receiving
from rlinf_scheduler.errors import CommError


class Producer:
    """Its items cannot be had; it counts who asks, at the time that a clock says which this is, too."""

    def __init__(self):
        self.name, self.outbox = "items", []
        self.now, self.due, self.asked_at = 0.0, [], []
        # An item that does not come is on its way for ever.
        on_its_way = SimpleNamespace(cancel=lambda: None)
        self.operations = {}
        self.receiving = Receiving(self, self)
        self.receiving._fetches[7] = on_its_way

    def call_later(self, delay_s, callback):
        self.due.append((self.now + delay_s, callback))

    def flush(self):
        for message, _ in self.outbox:
            self.asked_at.append(self.now)
            self.fail(message.ticket)
        self.outbox.clear()

    def fail(self, ticket):
        self.receiving._on_landed(
            ticket, wire.Delivered(ticket, [1]), None, CommError("it cannot be reached")
        )

    def run_until(self, when):
        while self.due and min(self.due)[0] <= when:
            self.now, callback = self.due.pop(self.due.index(min(self.due)))
            callback()


def test_who_cannot_have_an_item_asks_for_it_ever_more_seldom():
    producer = Producer()
    producer.fail(7)
    producer.run_until(60.0)
    pauses_s = [
        after - before for before, after in zip([0.0, *producer.asked_at], producer.asked_at, strict=False)
    ]
    assert [round(pause_s, 3) for pause_s in pauses_s[:6]] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
    assert all(round(pause_s, 3) == MAX_ASK_AGAIN_S for pause_s in pauses_s[6:])
    assert len(pauses_s) < 40, "that many in a minute"


def test_who_has_given_up_asks_no_more_and_begins_anew_for_the_next_item():
    producer = Producer()
    producer.fail(7)
    producer.run_until(1.0)
    producer.receiving.stop(7)
    num_asked = len(producer.asked_at)
    producer.run_until(60.0)
    assert len(producer.asked_at) == num_asked
    assert not producer.receiving._pauses_s
    producer.receiving._fetches[8] = SimpleNamespace(cancel=lambda: None)
    began = producer.now
    producer.fail(8)
    producer.run_until(began + 60.0)
    assert round(producer.asked_at[num_asked] - began, 3) == ASK_AGAIN_S
