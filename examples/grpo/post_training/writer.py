"""Writes answers with continuous batching: a slot that has finished is free for the next prompt at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from post_training.model import Cache, Transformer
from post_training.records import Answer, Request
from post_training.settings import ModelSettings
from post_training.task import SortingTask


@dataclass(slots=True)
class _Slot:
    """A sequence under way: the prompt is fed first, then what is written."""

    request: Request
    version: int
    prompt: list[int]
    fed: int = 0
    written: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def next_token(self) -> tuple[int, int, int, int]:
        """The token to be fed, its place, its part, and its index in the cache."""
        index, length = self.fed, len(self.prompt) - 1
        if index < len(self.prompt):
            is_start = int(index == length)
            return self.prompt[index], 0 if is_start else index, is_start, index
        return self.written[-1], index - length, 1, index


class Writer:
    """Samples answers from a model, one token of every answer under way at a time.

    The slots in use are always the first rows of the cache, so that a few long answers cost what a few rows cost.

    Args:
        model: whose weights may change between two calls.
        settings: of the model.
        task: prompts by number.
        num_slots: answers at a time.
        device: where the model is.
    """

    def __init__(
        self,
        model: Transformer,
        settings: ModelSettings,
        task: SortingTask,
        num_slots: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._task = task
        self._num_slots = num_slots
        self._device = device
        self._slots: list[_Slot] = []
        self._cache = Cache(settings, num_slots, 2 * task.max_answer, device)

    @property
    def num_free(self) -> int:
        """Slots that have nothing to do."""
        return self._num_slots - len(self._slots)

    @property
    def is_busy(self) -> bool:
        """Whether answers are under way."""
        return bool(self._slots)

    def begin(self, request: Request, version: int) -> None:
        """Begin an answer in a free slot, with weights of this version."""
        prompt = [*self._task.prompt(request.prompt), self._task.start]
        self._slots.append(_Slot(request, version, prompt))

    def write(self) -> list[Answer]:
        """Write one token, or read one of the prompt, in every slot in use; return the answers that are finished."""
        with torch.inference_mode():
            sampled, chosen = self._sample()
        for slot, token, log_prob in zip(self._slots, sampled, chosen, strict=True):
            slot.fed += 1
            if slot.fed >= len(slot.prompt):
                slot.written.append(token)
                slot.log_probs.append(log_prob)
        return self._take_finished()

    def _sample(self) -> tuple[list[int], list[float]]:
        """A token for every slot in use, and its log-probability."""
        fed = torch.tensor([slot.next_token for slot in self._slots], device=self._device)
        tokens, places, parts, index = fed.unbind(1)
        log_probs = self._model.advance(tokens, places, parts, index, self._cache).log_softmax(-1)
        # The Gumbel-max trick samples a row without building a distribution object at every step.
        noise = -torch.empty_like(log_probs).exponential_().log()
        sampled = (log_probs + noise).argmax(-1)
        chosen = log_probs.gather(1, sampled[:, None])[:, 0]
        return sampled.tolist(), chosen.tolist()

    def _take_finished(self) -> list[Answer]:
        answers = []
        for row in range(len(self._slots) - 1, -1, -1):
            slot = self._slots[row]
            if slot.written and (
                slot.written[-1] == self._task.end or len(slot.written) == self._task.max_answer
            ):
                answers.append(_answer(slot))
                last = self._slots.pop()
                if last is not slot:
                    self._slots[row] = last
                    self._cache.move(len(self._slots), row)
        return answers


def _answer(slot: _Slot) -> Answer:
    return Answer(
        slot.request.prompt,
        slot.request.sample,
        np.array(slot.written, np.int64),
        np.array(slot.log_probs, np.float32),
        slot.version,
        slot.request.slot,
    )
