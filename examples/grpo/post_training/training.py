"""The control flow of a training: what may be begun when, and what was learned. The data goes through the channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from post_training.launch import Parts, end_recordings
from post_training.progress import Progress
from post_training.records import Request
from post_training.report import StepReport, mean_reward
from post_training.settings import Settings
from rlinf.scheduler.channel import Slot
from rlinf.scheduler.errors import ChannelTimeout
from rlinf.scheduler.worker import GroupResult, wait_first

R = TypeVar("R")
# A worker that waits too long says so itself, and better; the driver only catches those that say nothing.
_GRACE_S = 10.0


class Training:
    """Write, score, judge and learn, until the answers are good enough.

    Args:
        parts: the groups, and the channel of the requests.
        settings: of the training.
        max_lag: how many versions after it was begun a prompt is learned from, at most.
        checkpoint: the folder to save to; None for no checkpoints.
        on_step: called with each step's report.
    """

    def __init__(
        self,
        parts: Parts,
        settings: Settings,
        max_lag: int,
        checkpoint: Path | None = None,
        on_step: Callable[[StepReport], None] = lambda _: None,
    ) -> None:
        self._parts = parts
        self._settings = settings
        self._max_lag = max_lag
        self._checkpoint = checkpoint
        self._on_step = on_step
        self._serving: dict[str, GroupResult[None]] = {}
        self._waits_s = settings.timeout_s + _GRACE_S
        self.steps: list[StepReport] = []
        self.progress = Progress()

    def run(self, *, resume: bool = False) -> None:
        """Train; then wait until every worker has come to rest.

        Args:
            resume: go on from the checkpoint.

        Raises:
            rlinf.scheduler.errors.WorkerError: a worker failed; raised at once, whatever else is going on.
            rlinf.scheduler.errors.ResultTimeout: a worker says nothing any more.
        """
        if resume and self._checkpoint is not None:
            self.progress = self._answer(self._parts.actor.restore(self._checkpoint))[0]
        # A rank that dies and comes back goes on serving.
        self._serving["rollout"] = self._parts.rollout.retrying().serve()
        for name in ("reward", "inference"):
            self._serving[name] = getattr(self._parts, name).serve()
        self._answer(self._parts.actor.publish())
        self._learn()
        self._parts.requests.close()
        for serving in self._serving.values():
            serving.wait(self._waits_s)
        if self._settings.record is not None:
            end_recordings()

    def _learn(self) -> None:
        settings, progress = self._settings, self.progress
        self._slots: dict[int, Slot] = {}  # of the prompts under way; whoever puts a group uses one up
        self._begin_version(begins=True)
        num_left = (settings.num_steps - progress.num_steps) * settings.grpo.prompts_per_step
        self._prompts = islice(progress.prompts_left(), max(0, num_left))
        while progress.num_steps < settings.num_steps and not self._is_good_enough:
            self._request()
            taken = self._answer(self._parts.actor.take())
            prompts = list(chain.from_iterable(part.prompts for part in taken))
            for prompt in prompts:
                del self._slots[prompt]
            ranks = self._answer(self._parts.actor.learn(sum(part.num_written for part in taken)))
            progress.add(prompts)
            self._begin_version()
            self.steps.append(StepReport.of(progress.num_steps, ranks))
            self._save()
            self._on_step(self.steps[-1])

    def _begin_version(self, *, begins: bool = False) -> None:
        """Say that what is taken from now on is learned from by the newest weights."""
        self._parts.groups.set_version(
            self.progress.num_steps,
            batch_items=self._settings.grpo.prompts_per_step,
            begins=begins,
            timeout_s=self._settings.timeout_s,
        )

    def _request(self) -> None:
        """Have as many prompts begun as the bound on staleness allows now; each has a slot until it is taken."""
        puts = []
        for slot, prompt in zip(self._admitted(), self._prompts, strict=False):  # a slot too many goes back
            self._slots[prompt] = slot
            puts += [
                self._parts.requests.put(
                    Request(prompt, sample, slot), async_op=True, timeout_s=self._settings.timeout_s
                )
                for sample in range(self._settings.grpo.group_size)
            ]
        for put in puts:
            put.wait()

    def _admitted(self) -> Iterator[Slot]:
        while True:
            try:
                yield self._parts.groups.admit(self._max_lag, timeout_s=0)
            except ChannelTimeout:
                return

    def _save(self) -> None:
        is_due = self.progress.num_steps % self._settings.checkpoint_every == 0
        if self._checkpoint is not None and is_due:
            self._answer(self._parts.actor.save(self._checkpoint, self.progress))

    @property
    def _is_good_enough(self) -> bool:
        window = self._settings.window
        return len(self.steps) >= window and mean_reward(self.steps, window) >= self._settings.stop_reward

    def _answer(self, call: GroupResult[R]) -> list[R]:
        """What a call returns, one result a rank; the failure of any component that serves is raised too."""
        waited_for: list[GroupResult[Any]] = [call, *self._serving.values()]
        wait_first(waited_for, self._waits_s).wait()
        return call.wait(self._waits_s)
