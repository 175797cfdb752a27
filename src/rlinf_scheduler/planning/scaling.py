"""When a group is to grow or shrink, from how it was waited for and how much it had to do. Pure.

A resize costs a start and some calls that wait, so it takes a reason that lasts: what counts is the mean over a window
that begins anew with each resize, growing and shrinking have thresholds apart, and a pause comes between two resizes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from rlinf_scheduler.checks import whole_number
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.wording import counted, seconds_text


@dataclass(frozen=True, slots=True)
class ScalingSample:
    """How a group did since the sample before.

    Attributes:
        at: when it was taken, in seconds of a monotonic clock.
        waited_for: what share of their time those who wait for it most have waited for it.
        spare: what share of its own time it waited itself, or was not called.
    """

    at: float
    waited_for: float
    spare: float


@dataclass(frozen=True, slots=True)
class ScalingOptions:
    """When a group grows and shrinks, and how.

    Attributes:
        step: how many ranks come or go at a time.
        grow_above: it grows when it is waited for more than this share of the time.
        shrink_below: it shrinks when it is waited for less than this share, and the ranks that stay could do its work.
        full: the ranks that stay are to be at work for no more than this share of their time.
        for_s: over how long these are looked at, in seconds: some steps of the job.
        cooldown_s: how long nothing is changed after a change, in seconds.
        every_s: how often it is looked at, in seconds.
        drain_s: how long a rank that leaves may take to finish what it has, in seconds.

    Raises:
        ConfigError: one of them is not what is said above, or they contradict each other.
    """

    step: int = 1
    grow_above: float = 0.2
    shrink_below: float = 0.05
    full: float = 0.9
    for_s: float = 30.0
    cooldown_s: float = 60.0
    every_s: float = 5.0
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        check_number("step", self.step)
        for name in ("grow_above", "shrink_below", "full"):
            if not _is_number(value := getattr(self, name)) or not 0 <= value <= 1:
                raise ConfigError(f"{name}={value!r}: it is a share, from 0 to 1")
        for name in ("for_s", "cooldown_s", "every_s", "drain_s"):
            if not _is_number(value := getattr(self, name)) or value < 0 or (name == "every_s" and not value):
                raise ConfigError(f"{name}={value!r}: it is a number of seconds")
        if self.shrink_below >= self.grow_above:
            problem = f"shrink_below={self.shrink_below} is not below grow_above={self.grow_above}"
            raise ConfigError(problem, hint="the group would grow and shrink in turns")


def check_number(name: str, value: object) -> None:
    """Make sure that it is a number of ranks.

    Raises:
        ConfigError: it is none.
    """
    if whole_number(value, lowest=1) is None:
        raise ConfigError(f"{name}={value!r}: it is a whole number from 1")


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """A decision about a group's size.

    Attributes:
        at: when it was decided, on the clock of the samples.
        before, after: how many ranks it has, and is to have.
        reason: why, with the figures.
    """

    at: float
    before: int
    after: int
    reason: str

    @property
    def action(self) -> Literal["grow", "shrink", "stay"]:
        """Grow, shrink or stay."""
        return "stay" if self.after == self.before else "grow" if self.after > self.before else "shrink"

    def __str__(self) -> str:
        what = (
            f"stay at {self.before}"
            if self.after == self.before
            else f"{self.action} from {self.before} to {self.after}"
        )
        return f"{what}: {self.reason}"


class ScalingPolicy:
    """Decides, sample by sample.

    Args:
        least, most: how many ranks the group has.
        options: when it grows and shrinks.

    Raises:
        ConfigError: the numbers contradict each other.

    >>> policy = ScalingPolicy(2, 8, ScalingOptions(for_s=10.0, cooldown_s=0.0))
    >>> for at in (0.0, 5.0, 10.0):
    ...     decision = policy.decide(ScalingSample(at, waited_for=0.4, spare=0.1), size=2)
    >>> print(decision)
    grow from 2 to 3: it was waited for 40% of the last 10 s, more than 20%
    >>> print(policy.decide(ScalingSample(15.0, waited_for=0.4, spare=0.1), size=3))
    stay at 3: it is looked at for 5 of 10 s since it was changed
    """

    def __init__(self, least: int, most: int, options: ScalingOptions) -> None:
        check_number("min", least)
        check_number("max", most)
        if most < least:
            raise ConfigError(f"max={most} is less than min={least}")
        if not isinstance(options, ScalingOptions):
            raise ConfigError(f"options={options!r}: these are ScalingOptions(...)")
        self.least, self.most, self.options = least, most, options
        self._samples: deque[ScalingSample] = deque()
        # Since when samples count: the first one, or the last change.
        self._since: float | None = None
        self._changed_at: float | None = None

    def decide(self, sample: ScalingSample, size: int) -> ScalingDecision:
        """Decide about a group of so many ranks; the decision counts as carried out.

        Samples come in the order of their times.
        """
        if self._since is None:
            self._since = sample.at
        elif sample.at > self._since:
            self._samples.append(sample)
        after, reason = self._wanted(sample.at, size)
        if after != size:
            self.changed(sample.at)
        return ScalingDecision(sample.at, size, after, reason)

    def changed(self, at: float) -> None:
        """The group has changed, or could not be: what was seen before does not count any more."""
        self._samples.clear()
        self._since = self._changed_at = at

    def _wanted(self, now: float, size: int) -> tuple[int, str]:
        options = self.options
        paused_s = options.cooldown_s if self._changed_at is None else now - self._changed_at
        if paused_s < options.cooldown_s:
            return (
                size,
                f"it was changed {seconds_text(paused_s)} ago, and stays for {seconds_text(options.cooldown_s)}",
            )
        if size < self.least:
            return min(self.least, size + options.step), f"it has fewer than {self.least}, the least"
        if size > self.most:
            return max(self.most, size - options.step), f"it has more than {self.most}, the most"
        seen_s = now - (now if self._since is None else self._since)
        if seen_s < options.for_s or not self._samples:
            since = "since it was changed" if self._changed_at is not None else "since the beginning"
            return size, f"it is looked at for {seen_s:.0f} of {seconds_text(options.for_s)} {since}"
        waited_for, spare = self._means(now)
        return self._by_load(size, waited_for, spare)

    def _by_load(self, size: int, waited_for: float, spare: float) -> tuple[int, str]:
        options = self.options
        share = share_beside(waited_for, options.shrink_below, options.grow_above)
        waited = f"it was waited for {share} of the last {seconds_text(options.for_s)}"
        if waited_for > options.grow_above:
            more = f"{waited}, more than {_percent(options.grow_above)}"
            if size == self.most:
                return size, f"{more}; it has {size}, the most"
            return min(self.most, size + options.step), more
        if waited_for >= options.shrink_below:
            return (
                size,
                f"{waited}, between {_percent(options.shrink_below)} and {_percent(options.grow_above)}",
            )
        less = f"{waited}, less than {_percent(options.shrink_below)}"
        fewer = max(self.least, size - options.step)
        if fewer == size:
            return size, f"{less}; it has {size}, the least"
        busy = (1 - spare) * size / fewer
        would = f"{counted(fewer, 'rank')} would be at work {min(1.0, busy):.0%} of the time"
        return (fewer, f"{less}, and {would}") if busy <= options.full else (size, f"{less}, but {would}")

    def _means(self, now: float) -> tuple[float, float]:
        """How much it was waited for, and had to spare, over the window; samples of before it are forgotten."""
        begin = now - self.options.for_s
        while len(self._samples) > 1 and self._samples[0].at <= begin:
            self._since = self._samples.popleft().at
        waited_s = spare_s = 0.0
        last = self._since or 0.0
        for sample in self._samples:
            took_s = sample.at - last
            waited_s += took_s * sample.waited_for
            spare_s += took_s * sample.spare
            last = sample.at
        seen_s = max(last - (self._since or 0.0), 1e-9)
        return min(1.0, waited_s / seen_s), min(1.0, spare_s / seen_s)


def share_beside(share: float, *limits: float) -> str:
    """A share for people, with as many digits as it takes to be on the right side of limits.

    >>> share_beside(0.0497, 0.05, 0.2), share_beside(0.052, 0.05), share_beside(0.05, 0.05)
    ('4.97%', '5.2%', '5%')
    """
    for digits in range(5):
        text = f"{share:.{digits}%}"
        shown = float(text[:-1])
        if all(
            (shown > 100 * limit, shown < 100 * limit) == (share > limit, share < limit) for limit in limits
        ):
            break
    return text


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
