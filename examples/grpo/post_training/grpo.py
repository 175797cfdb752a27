"""Group-relative policy optimisation (Shao et al., 2024, arXiv:2402.03300) on groups of answers, some of them stale.

For answers that older weights wrote, the objective is the decoupled one of Hilton et al. (2021, arXiv:2110.00641) and
AReaL (Fu et al., 2025, arXiv:2505.24298): the ratio is clipped around newer, *proximal* weights, and a capped
importance weight corrects for those that wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from post_training.model import Transformer
from post_training.records import Group
from post_training.settings import GRPOSettings
from rlinf.scheduler.channel import ShardBatch


def group_advantages(rewards: Sequence[float]) -> NDArray[np.float32]:
    """How much better each answer is than its group, in standard deviations; zeros where all are alike.

    >>> group_advantages([0.0, 1.0, 1.0, 0.0]).round(2).tolist()
    [-1.0, 1.0, 1.0, -1.0]
    """
    values = np.asarray(rewards, np.float32)
    advantages: NDArray[np.float32] = (values - values.mean()) / (values.std() + np.float32(1e-4))
    return advantages


def micro_batches(part: ShardBatch, token_budget: int) -> list[list[Group]]:
    """Divide a rank's part of a step into groups of similar length, so that little of a micro-batch is padding."""
    order = sorted(range(len(part)), key=part.weights.__getitem__)
    by_length = ShardBatch([part[place] for place in order], weights=[part.weights[place] for place in order])
    return by_length.split(token_budget)


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Answers in rows, right-padded, and where their tokens were written.

    Args:
        inputs: tokens, places and parts (see `Transformer.forward`), (3, rows, length).
        row: of each written token, (tokens,).
        column: where its logits are, (tokens,).
        token: what was written, (tokens,).
        lengths: tokens of each answer, (rows,).
    """

    inputs: Tensor
    row: Tensor
    column: Tensor
    token: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, groups: Sequence[Group], start: int, device: torch.device) -> TokenBatch:
        """The answers of groups, in their order."""
        pairs = [(group.symbols, answer.tokens) for group in groups for answer in group.answers]
        longest = max(len(symbols) + len(tokens) for symbols, tokens in pairs)
        inputs = np.zeros((3, len(pairs), longest), np.int64)
        for row, (symbols, tokens) in enumerate(pairs):
            first, end = len(symbols), len(symbols) + len(tokens)
            inputs[0, row, :end] = [*symbols, start, *tokens[:-1]]
            inputs[1, row, :end] = [*range(first), *range(len(tokens))]
            inputs[2, row, first:end] = 1
        lengths = [len(tokens) for _, tokens in pairs]
        columns = [np.arange(len(tokens)) + len(symbols) for symbols, tokens in pairs]
        return cls(
            inputs=torch.from_numpy(inputs).to(device),
            row=torch.from_numpy(np.repeat(np.arange(len(pairs)), lengths)).to(device),
            column=torch.from_numpy(np.concatenate(columns)).to(device),
            token=torch.from_numpy(np.concatenate([tokens for _, tokens in pairs])).to(device),
            lengths=torch.tensor(lengths, device=device),
        )

    def log_probs(self, model: Transformer) -> Tensor:
        """Of the written tokens, (tokens,)."""
        logits = model(*self.inputs)[self.row, self.column]
        return logits.log_softmax(-1).gather(1, self.token[:, None])[:, 0]


def objective(
    new: Tensor, proximal: Tensor, behaviour: Tensor, advantage: Tensor, settings: GRPOSettings
) -> Tensor:
    """What a step makes larger, for each token, (tokens,).

    Args:
        new: log-probabilities under the weights that learn, (tokens,), like the rest.
        proximal: under the newest weights that inference had: the ratio is clipped around them.
        behaviour: under the weights that wrote.
        advantage: of the token's answer.
        settings: clip and cap.
    """
    ratio = (new - proximal).exp()
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    importance = (proximal - behaviour).exp().clamp(max=settings.importance_cap)
    return importance * torch.minimum(ratio * advantage, clipped * advantage)


def proximal_log_probs(
    model: Transformer, groups: Sequence[Group], start: int, device: torch.device
) -> list[NDArray[np.float32]]:
    """The log-probabilities of each group's written tokens under a model."""
    with torch.no_grad():
        log_probs = TokenBatch.of(groups, start, device).log_probs(model).cpu().numpy()
    ends = np.cumsum([group.num_written for group in groups])[:-1]
    return np.split(log_probs, ends)


class Learner:
    """Improves a model in place: add up the gradients of micro-batches, then step.

    Args:
        model: whose parameters are updated.
        settings: of the objective and the optimiser.
        start: the token that stands before answers.
        device: where the model is.
    """

    def __init__(self, model: Transformer, settings: GRPOSettings, start: int, device: torch.device) -> None:
        self._model = model
        self._settings = settings
        self._start = start
        self._device = device
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.Adam(self._parameters, lr=settings.learning_rate, betas=(0.9, 0.95))

    def add_gradient(self, groups: Sequence[Group], num_tokens: int) -> float:
        """Add the gradient of a micro-batch, as a share of a step of `num_tokens` written tokens.

        Returns:
            Its share of the mean divergence of these weights from those that wrote, in nats a token (Schulman's
            estimator (r - 1) - log r).
        """
        batch = TokenBatch.of(groups, self._start, self._device)
        behaviour = self._tensor([answer.log_probs for group in groups for answer in group.answers])
        proximal = self._tensor([group.proximal for group in groups])
        advantage = self._tensor([group.advantages for group in groups]).repeat_interleave(batch.lengths)
        new = batch.log_probs(self._model)
        loss = -objective(new, proximal, behaviour, advantage, self._settings).sum() / num_tokens
        loss.backward()
        log_ratio = (new - behaviour).detach()
        return float((log_ratio.exp() - 1 - log_ratio).sum()) / num_tokens

    def step(self) -> None:
        """Update the model by the gradient that was added up, and forget it."""
        nn.utils.clip_grad_norm_(self._parameters, self._settings.max_gradient_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _tensor(self, arrays: Sequence[NDArray[np.float32] | None]) -> Tensor:
        return torch.from_numpy(np.concatenate([array for array in arrays if array is not None])).to(
            self._device
        )
