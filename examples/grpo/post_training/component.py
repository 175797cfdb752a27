"""What the components that hold a model have in common."""

from __future__ import annotations

import time

import torch

from post_training.model import ADAPTERS, WEIGHTS, make_model
from post_training.report import READING
from post_training.settings import Settings
from post_training.task import SortingTask
from rlinf.scheduler import Worker
from rlinf.scheduler.errors import ConfigError, PeerDied, WeightsReplaced
from rlinf_scheduler.comm import AsyncHandle

# So often a reader asks for weights whose publisher is away.
AWAY_S = 0.1


def device_of(settings: Settings) -> torch.device:
    """Where this rank computes.

    Raises:
        rlinf.scheduler.errors.ConfigError: it has no such device.
    """
    worker, wanted = Worker(), settings.device
    device = torch.device("cpu") if wanted == "cpu" else worker.torch_device
    if device.type != wanted:
        raise ConfigError(f"there is no '{wanted}' device for {worker.address}", path="training.device")
    return device


class ModelWorker(Worker):
    """Holds a copy of the model on its device.

    Args:
        settings: of the training.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        torch.set_num_threads(1)
        torch.manual_seed(settings.seed)  # all ranks begin with the same weights
        self.settings = settings
        self.device = device_of(settings)
        self.task = SortingTask(settings.task, settings.seed)
        self.model = make_model(settings.model, settings.task).to(self.device)
        # Which weights learn, and so have to be handed over; None for all.
        self.learned = ADAPTERS if settings.model.lora_rank else None


class ModelReader(ModelWorker):
    """Follows the weights that the actor publishes.

    Args:
        settings: of the training.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.version = -1
        self._newer: AsyncHandle[int] | None = None

    def read_weights(self, min_version: int) -> None:
        """Take the newest weights that are there; wait for those of `min_version` if they are not."""
        if self._newer is None:
            self._newer = self._expect()
        while self.version < min_version or self._newer.done():
            with self.timer(READING):
                self.version = self._arrived(self._newer)
            self._newer = self._expect()

    def _arrived(self, newer: AsyncHandle[int]) -> int:
        """The version that has come; while the actor comes back from its checkpoint, the present one goes on."""
        try:
            return newer.wait(self.settings.timeout_s)
        except PeerDied:
            time.sleep(AWAY_S)
            return self.version
        except WeightsReplaced:  # whatever the actor has now
            return -1

    def _expect(self) -> AsyncHandle[int]:
        """Done when there are newer weights than the present ones; they are copied when it is waited for."""
        handle: AsyncHandle[int] = self.fetch_weights(
            WEIGHTS, into=self.model, keys=self.learned, min_version=self.version + 1, async_op=True
        )
        return handle
