"""The component `inference`: one pass of the newest weights over what older ones wrote."""

from __future__ import annotations

from dataclasses import replace

from post_training import channels
from post_training.component import ModelReader
from post_training.grpo import proximal_log_probs
from post_training.settings import Settings
from rlinf.scheduler.channel import Batch
from rlinf.scheduler.errors import ChannelClosed

# A pass waits so long for more groups before it begins with fewer tokens than its budget.
GATHER_S = 0.01


class InferenceWorker(ModelReader):
    """Gives each group its proximal log-probabilities, a token budget at a time.

    Args:
        settings: of the training.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._scored = self.connect_channel(channels.SCORED, timeout_s=settings.timeout_s)
        self._groups = self.connect_channel(channels.GROUPS, timeout_s=settings.timeout_s)

    def serve(self) -> None:
        """Go on until the last rank of the reward is done."""
        with self._groups.producer():
            while True:
                with self.timer("wait for groups"):
                    try:
                        groups: Batch = self._scored.get_batch(
                            self.settings.grpo.token_budget,
                            max_wait_s=GATHER_S,
                            timeout_s=self.settings.timeout_s,
                        )
                    except ChannelClosed:
                        return
                self.read_weights(max(group.version for group in groups))
                with self.device_lock(self.settings.timeout_s), self.timer("infer"):
                    log_probs = proximal_log_probs(self.model, groups, self.task.start, self.device)
                for group, proximal in zip(groups, log_probs, strict=True):
                    self._groups.put(
                        replace(group, proximal=proximal, proximal_version=self.version),
                        weight=group.num_tokens,
                        version=group.version,
                        slot=group.slot,
                        timeout_s=self.settings.timeout_s,
                    )
