"""The control flow of a training: what may be begun when, and what was learned. The data goes through the channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from post_training.launch import Parts
from post_training.progress import Progress
from post_training.records import Prompt
from post_training.report import PartTaken, StepReport, mean_reward
from post_training.rollout_size import RolloutSize
from post_training.settings import Settings
from rlinf.scheduler.channel import Slot
from rlinf.scheduler.errors import ChannelTimeout, WorkerDied
from rlinf.scheduler.worker import GroupResult, wait_first

R = TypeVar("R")
# A worker that waits too long says so itself, and better; the driver only catches those that say nothing.
_GRACE_S = 10.0


class Training:
    """Write, score, judge and learn, until the answers are good enough.

    Args:
        parts: the groups, and the channels that end them.
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
        self._serving: dict[str, GroupResult[Any]] = {}
        self._waits_s = settings.timeout_s + _GRACE_S
        self._size = RolloutSize(parts.rollout, parts.requests, settings.rollout.sizes, self._waits_s)
        self.steps: list[StepReport] = []
        self.progress = Progress()
        self._is_saved = False  # this training's checkpoint, and not that of one before

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
            self._is_saved = True
        # A rank that dies and comes back goes on serving.
        rollout = self._serving["rollout"] = self._parts.rollout.retrying().serve(self._parts.requests)
        for name in ("reward", "inference"):
            self._serving[name] = getattr(self._parts, name).serve()
        self._answer(self._parts.actor.publish())
        self._size.at_step(self.progress.num_steps)
        self._learn()
        self._parts.prompts.close()
        for name in ("reward", "inference"):
            self._serving[name].wait(self._waits_s)
        self._parts.requests.close()
        rollout.wait(self._waits_s)
        self._size.close()
        self._parts.rollout.close().wait(self._waits_s)

    def _learn(self) -> None:
        self._slots: dict[int, Slot] = {}  # of the prompts under way; whoever puts a group uses one up
        self._version = self.progress.num_steps
        self._begin_version(begins=True)
        self._plan()
        while self.progress.num_steps < self._settings.num_steps and not self._is_good_enough:
            self._request()
            try:
                self._step()
            except WorkerDied as death:
                if death.group != "actor":
                    raise
                self._go_on()

    def _plan(self) -> None:
        """Say which prompts are left to be begun: those that are neither learned from nor under way."""
        settings, under_way = self._settings, frozenset(self._slots)
        num_prompts = (settings.num_steps - self.progress.num_steps) * settings.grpo.prompts_per_step
        new = (prompt for prompt in self.progress.prompts_left() if prompt not in under_way)
        self._prompts = islice(new, max(0, num_prompts - len(under_way)))

    def _step(self) -> None:
        taken = self._take()
        ranks = self._answer(self._parts.actor.learn(sum(part.num_written for part in taken)))
        prompts = list(chain.from_iterable(part.prompts for part in taken))
        for prompt in prompts:
            del self._slots[prompt]
        self.progress.add(prompts)
        self._version += 1
        self._begin_version()
        self.steps.append(StepReport.of(self.progress.num_steps, ranks))
        self._save()
        self._on_step(self.steps[-1])
        self._size.at_step(self.progress.num_steps)

    def _take(self) -> list[PartTaken]:
        """What each rank has of the next global batch; after a death some may have parts that others are done with."""
        taken = self._answer(self._parts.actor.take())
        newest = max(part.step for part in taken)
        while behind := [rank for rank, part in enumerate(taken) if part.step < newest]:
            again = self._answer(self._parts.actor.execute_on(*behind).take())
            for rank, part in zip(behind, again, strict=True):
                taken[rank] = part
        return taken

    def _go_on(self) -> None:
        """A rank of the actor has died: let all of them, which come back, go on from the checkpoint."""
        path = self._checkpoint if self._is_saved else None
        self.progress = self._answer(self._parts.actor.retrying().go_on(path, self._version))[0]
        self._plan()

    def _begin_version(self, *, begins: bool = False) -> None:
        """Say that what is taken from now on is learned from by the newest weights."""
        self._parts.groups.set_version(
            self._version,
            batch_items=self._settings.grpo.prompts_per_step,
            begins=begins,
            timeout_s=self._settings.timeout_s,
        )

    def _request(self) -> None:
        """Have as many prompts begun as the bound on staleness allows now; each has a slot until it is taken."""
        puts = []
        for slot, prompt in zip(self._admitted(), self._prompts, strict=False):  # a slot too many goes back
            self._slots[prompt] = slot
            puts.append(
                self._parts.prompts.put(
                    Prompt(prompt, slot), async_op=True, timeout_s=self._settings.timeout_s
                )
            )
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
            self._is_saved = True

    @property
    def _is_good_enough(self) -> bool:
        window = self._settings.window
        return len(self.steps) >= window and mean_reward(self.steps, window) >= self._settings.stop_reward

    def _answer(self, call: GroupResult[R]) -> list[R]:
        """What a call returns, one result a rank; the failure of any component that serves is raised too."""
        waited_for: list[GroupResult[Any]] = [call, *self._serving.values(), *self._size.serving()]
        wait_first(waited_for, self._waits_s).wait()
        return call.wait(self._waits_s)
