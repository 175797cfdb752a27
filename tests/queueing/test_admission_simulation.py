"""A hundred thousand items of heavy-tailed durations: none too old when it is taken, none dropped, none held back."""

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from random import Random

import pytest

from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import Accept, Deliver, Get, Put
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.surveying import QueueSurvey
from rlinf_scheduler.queueing.version_gate import OnSlot
from rlinf_scheduler.queueing.versions import AskForSlot, SetVersion
from rlinf_scheduler.queueing.wanted import Limits

NUM_ITEMS = 100_000
NUM_MAKERS = 96
BATCH_ITEMS = 64
MEDIAN, SIGMA = (
    1.0,
    1.2,
)  # of the durations, which are log-normal: the mean is twice the median, one in 1,000 is 40 times
TRAINING = 0.7


class Story:
    """Makers that make one item after the other, and a trainer; time is a number.

    Attributes:
        taken: durations of the items that were trained on.
        lags: how many versions each was behind.
        num_idle: how often a maker had to wait for a slot.
    """

    def __init__(self, max_lag: int, seed: int) -> None:
        self.state = ChannelState()
        self.max_lag = max_lag
        self.taken: list[float] = []
        self.lags: list[int] = []
        self.made = 0
        self._random = Random(seed)
        self._ticket = count(1).__next__
        self._now = 0.0
        self._number = count().__next__
        self._events: list[tuple[float, int, str, tuple]] = []
        self._version = 0
        self._do(
            self.state.apply(
                SetVersion(self._ticket(), "default", True, 0, BATCH_ITEMS, begins=True), "trainer"
            )
        )
        self._get()
        for maker in range(NUM_MAKERS):
            self._do(self.state.apply(AskForSlot(self._ticket(), "default", True, max_lag), f"maker{maker}"))

    def run(self, num_items: int) -> None:
        while len(self.taken) < num_items:
            assert self._events, self.state.queues.describe("default")
            self._now, _, what, about = heappop(self._events)
            getattr(self, what)(*about)

    def _later(self, after: float, what: str, *about: object) -> None:
        heappush(self._events, (self._now + after, self._number(), what, about))

    def _put(self, maker: str, duration: float, slot: int) -> None:
        self.made += 1
        self._do(self.state.apply(Put(self._ticket(), "default"), maker, Item(duration, slot=slot)))
        self._do(self.state.apply(AskForSlot(self._ticket(), "default", True, self.max_lag), maker))

    def _get(self) -> None:
        limits = Limits(BATCH_ITEMS, BATCH_ITEMS)
        self._do(self.state.apply(Get(self._ticket(), "default", limits=limits), "trainer"))

    def _trained(self) -> None:
        self._version += 1
        self._do(self.state.apply(SetVersion(self._ticket(), "default", True, self._version), "trainer"))
        self._get()

    def _do(self, instructions) -> None:
        for each in instructions:
            if isinstance(each, Deliver) and isinstance(each.grant, OnSlot):
                assert each.grant.version == self._version
                duration = self._random.lognormvariate(math.log(MEDIAN), SIGMA)
                self._later(duration, "_put", each.client, duration, each.grant.number)
            elif isinstance(each, Deliver):
                assert (each.complete, len(each.items)) == (True, BATCH_ITEMS)
                self.taken += [item.payload for item in each.items]
                self.lags += [self._version - item.version for item in each.items]
                self._do(self.state.confirm(each.client, (each.ticket,)))
                self._later(TRAINING, "_trained")
            else:
                assert isinstance(each, Accept)


def kolmogorov_smirnov(sample: list[float]) -> float:
    """The probability that such a sample comes of the distribution of the durations (asymptotic, one sample)."""
    ordered = sorted(sample)
    num = len(ordered)
    distance = 0.0
    for place, value in enumerate(ordered):
        expected = 0.5 * (1 + math.erf((math.log(value) - math.log(MEDIAN)) / (SIGMA * math.sqrt(2))))
        distance = max(distance, expected - place / num, (place + 1) / num - expected)
    scaled = distance * (math.sqrt(num) + 0.12 + 0.11 / math.sqrt(num))
    return min(1.0, 2 * sum(_terms(scaled)))


def _terms(scaled: float) -> Iterator[float]:
    for number in range(1, 101):
        yield (-1) ** (number - 1) * math.exp(-2 * (number * scaled) ** 2)


@pytest.mark.parametrize(
    ("max_lag", "num_items"), [(0, 20_000), pytest.param(1, NUM_ITEMS, marks=pytest.mark.system), (4, 20_000)]
)
def test_no_item_is_too_old_or_dropped_and_long_ones_are_taken_as_often_as_they_are_made(max_lag, num_items):
    story = Story(max_lag, seed=17 + max_lag)
    story.run(num_items)
    assert max(story.lags) == max_lag
    assert (
        story.made - len(story.taken)
        == QueueSurvey(story.state).num_items("default")
        <= (max_lag + 1) * BATCH_ITEMS
    )
    assert kolmogorov_smirnov(story.taken) > 0.01


def test_the_comparison_of_distributions_would_notice_that_the_longest_items_are_missing():
    random = Random(3)
    durations = [random.lognormvariate(math.log(MEDIAN), SIGMA) for _ in range(NUM_ITEMS)]
    assert kolmogorov_smirnov(durations) > 0.01
    longest = sorted(durations)[-NUM_ITEMS // 100]
    assert kolmogorov_smirnov([each for each in durations if each < longest]) < 0.01
