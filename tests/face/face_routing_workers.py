"""Workers in RLinf's manner: they name every argument, and split, merge and count by functions of their own."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rlinf.scheduler import Worker, get_batch_size, get_group_world_size, merge_batches, split_batch
from rlinf.scheduler.worker.routing import build_send_key, decoupled_build_recv_plan, split_channel_message

WAIT_S = 60.0


@dataclass
class PolicyOutput:
    """What a policy says of observations; some of it may be missing."""

    actions: Any = None
    values: Any = None
    forward_inputs: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def merge(outputs):
        return PolicyOutput(
            torch.cat([each.actions for each in outputs]),
            None,
            {"keys": torch.cat([each.forward_inputs["keys"] for each in outputs])},
        )


def split_output(output, sizes):
    actions, keys = torch.split(output.actions, sizes), torch.split(output.forward_inputs["keys"], sizes)
    return [PolicyOutput(a, None, {"keys": k}) for a, k in zip(actions, keys, strict=True)]


def rows_of_output(output):
    return output.actions.shape[0]


def keys_of(rank, rows):
    return torch.tensor([[rank, row] for row in range(rows)])


class Env(Worker):
    def share(self, total):
        return total // self._world_size + (self._rank < total % self._world_size)

    def interact(self, obs_channel, actions_channel, actor_channel, steps, total):
        rows, p2p = self.share(total), obs_channel is None
        keys = keys_of(self._rank, rows)
        for step in range(steps):
            observation = {
                "obs": {"states": keys + 0.0, "images": None},
                "texts": [f"{step}"] * rows,
                "keys": keys,
            }
            self.send_to(
                group_name="rollout",
                channel=obs_channel,
                data=observation,
                mode="train",
                tag="rollout_results",
                route_key=0,
                batch_size=total,
                enable_p2p=p2p,
            )
            output = self.recv_from(
                group_name="rollout",
                channel=actions_channel,
                tag="train_rollout_results",
                route_key=0,
                batch_size=total,
                merge_fn=PolicyOutput.merge,
                infer_batch_size_fn=rows_of_output,
                enable_p2p=p2p,
            )
            assert torch.equal(output.forward_inputs["keys"], keys)
            assert torch.equal(output.actions, keys * 2.0)
        self.send_to(
            "actor", actor_channel, {"keys": keys}, tag="trajectories", batch_size=total, enable_p2p=p2p
        )
        return rows

    def interact_decoupled(self, group, requests, answers, steps, total):
        self.batch_router = {}
        rows = total // self._world_size
        for step in range(steps):
            keys = keys_of(self._rank, rows) + step
            self.send_to(
                group_name=group,
                channel=requests,
                data={"keys": keys},
                mode="train",
                tag="rollout_results",
                decoupled_mode=True,
            )
            output = self.recv_from(
                group_name=group,
                channel=answers,
                tag="train_rollout_results",
                batch_size=total,
                merge_fn=PolicyOutput.merge,
                infer_batch_size_fn=rows_of_output,
                decoupled_mode=True,
            )
            assert torch.equal(output.forward_inputs["keys"], keys)
        return steps * rows

    def complaints(self):
        def told(**options):
            try:
                self.send_to(group_name="rollout", data=np.ones(3), **options)
            except ValueError as error:
                return f"{type(error).__name__}: {error}"

        return [
            told(channel=None),
            told(channel=None, enable_p2p=True, decoupled_mode=True),
            told(channel=self.create_channel("unused"), decoupled_mode=True),
            told(channel=None, enable_p2p=True),
        ]


class Rollout(Worker):
    async def generate(self, obs_channel, actions_channel, steps, total):
        p2p, seen = obs_channel is None, 0
        for _ in range(steps):
            observation = await self.recv_from(
                group_name="env",
                channel=obs_channel,
                tag="train_rollout_results",
                route_key=0,
                async_op=True,
                batch_size=total,
                infer_batch_size_fn=lambda batch: batch["keys"].shape[0],
                enable_p2p=p2p,
            ).async_wait()
            seen += len(observation["texts"])
            assert observation["obs"]["images"] is None
            output = PolicyOutput(
                observation["obs"]["states"] * 2, forward_inputs={"keys": observation["keys"]}
            )
            self.send_to(
                group_name="env",
                channel=actions_channel,
                data=output,
                tag="train_rollout_results",
                route_key=0,
                async_op=True,
                batch_size=total,
                split_fn=split_output,
                enable_p2p=p2p,
            )
        return seen


class Served(Worker):
    async def serve(self, group, requests, answers, total, num_messages):
        """Take what is there within some milliseconds, as RLinf's rollout does with the names of routing."""
        self.batch_router = {"rollout_results": []}
        size, seen, taken = get_group_world_size(None, group), 0, 0
        plan = decoupled_build_recv_plan(
            src_group_name=group,
            dst_group_name=self.group_name,
            recv_rank=None,
            src_world_size=self._world_size,
            dst_world_size=size,
            tag="rollout_results",
            batch_size=total,
        )
        while taken < num_messages:
            messages = [await requests.get(key=plan.entries[0].key, async_op=True).async_wait()]
            while len(messages) < min(len(plan.entries), num_messages - taken):
                more = requests.get(key=plan.entries[len(messages)].key, async_op=True, timeout_s=0.02)
                try:
                    messages.append(await more.async_wait())
                except TimeoutError:
                    break
            taken += len(messages)
            batch = merge_batches([message["batch"] for message in messages])
            sizes = [get_batch_size(message["batch"]) for message in messages]
            seen += sum(sizes)
            await asyncio.sleep(0)
            parts = split_output(PolicyOutput(batch["keys"] + 0.0, forward_inputs=batch), sizes)
            assert [len(part) for part in split_batch(batch["keys"], sizes)] == sizes
            for message, part in zip(messages, parts, strict=True):
                rank, _, mode, tag = split_channel_message(message["batch_index"])
                key = build_send_key(
                    src_group_name=self.group_name,
                    dst_group_name=group,
                    src_rank=None,
                    dst_rank=rank,
                    tag=f"{mode}_{tag}",
                )
                answers.put(
                    item={"batch_index": message["batch_index"], "batch": part}, key=key, async_op=True
                )
        return seen


class Actor(Worker):
    def train(self, channel, total):
        batch = self.recv_from(
            "env", channel, tag="trajectories", batch_size=total, enable_p2p=channel is None
        )
        return batch["keys"].numpy()
