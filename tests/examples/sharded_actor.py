"""The example's actor, asked whether its shards and those of the other ranks are one model."""

import os
import signal

import torch

from post_training.actor_worker import ActorWorker
from post_training.model import Transformer
from post_training.sharding import gather, reduce


class AskedActor(ActorWorker):
    """All ranks have to be asked together."""

    def has_the_gradient_of_a_whole_model(self):
        """Whether it is as of a model that is whole, with several batches on one rank and none on the others."""
        plain = Transformer(self.settings.model, self.settings.task)
        plain.load_state_dict({key: value.full_tensor() for key, value in self.model.state_dict().items()})
        batches = [torch.ones((3, 2, length), dtype=torch.int64) for length in (2, 5)]
        gather(self.model)
        for model in (plain, self.model) if self.rank == 0 else (plain,):
            for batch in batches:
                model(*batch).square().sum().backward()
        reduce(self.model)
        pairs = zip(plain.parameters(), self.model.parameters(), strict=True)
        return all(
            torch.allclose(mine.grad.full_tensor(), whole.grad, rtol=1e-4, atol=1e-5)
            for whole, mine in pairs
            if whole.requires_grad
        )


class DyingActor(ActorWorker):
    """Its second rank dies once in the middle of a step, while the others wait for its gradient."""

    def learn(self, num_written):
        if self.rank == 1 and self._version == 3 and self.num_restarts == 1:
            self._learner.add_gradient = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        return super().learn(num_written)
