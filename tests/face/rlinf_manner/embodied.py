"""An embodied run: environments, rollout and actor, which the runner leads through steps by channels.

A point on a line is to be brought to 0: the policy is `action = -gain * position`, and the actor learns the gain.
"""

from dataclasses import dataclass

import torch

from rlinf.scheduler import Channel, Cluster, CollectiveGroupOptions, ComponentPlacement, Worker
from rlinf.scheduler import WorkerGroupFuncResult as Handle

CONFIG = {
    "cluster": {
        "num_nodes": 2,
        "component_placement": {"actor": "0-1", "rollout": "2-3", "env": "4-6"},
    },
    "steps": 4,
    "horizon": 3,
    "num_envs": 12,
    "lr": 0.4,
}


class Placement(ComponentPlacement):
    """Reads what the class that it extends has found in the config, as placements of RLinf's do."""

    def __init__(self, config, cluster):
        super().__init__(config, cluster)
        self._placement_mode = "hybrid"

    @property
    def ranks(self):
        """How many ranks each component has."""
        return {each: self.get_world_size(each) for each in self._components}


@dataclass
class PolicyOutput:
    """What the policy says of some rows of observations."""

    actions: torch.Tensor
    version: int

    @staticmethod
    def merge(outputs):
        """Those of several ranks as one."""
        return PolicyOutput(torch.cat([each.actions for each in outputs]), outputs[0].version)


def split_output(output, sizes):
    """The rows of each rank."""
    return [PolicyOutput(part, output.version) for part in output.actions.split(sizes)]


def rows_of_output(output):
    """How many rows it has."""
    return len(output.actions)


class Env(Worker):
    def __init__(self, config):
        Worker.__init__(self)
        self.config = config
        self.num_envs = config["num_envs"] // self._world_size

    def init_worker(self):
        """Begin at positions that follow from the rank, when every rank has come so far."""
        self.broadcast(True, groups=[(self._group_name, list(range(self._world_size)))])
        first = self._rank * self.num_envs
        self.start = torch.arange(first, first + self.num_envs).float().add(1).div(self.config["num_envs"])

    @Worker.timer("interact")
    async def interact(self, input_channel, rollout_channel, actor_channel):
        position = self.start.clone()
        trajectory = []
        self.ask(rollout_channel, position)
        for _ in range(self.config["horizon"]):
            output = self.recv_from(
                group_name="RolloutGroup",
                channel=input_channel,
                tag="train_actions",
                batch_size=self.config["num_envs"],
                merge_fn=PolicyOutput.merge,
                infer_batch_size_fn=rows_of_output,
            )
            with self.worker_timer("env_step"):
                trajectory.append({"position": position, "actions": output.actions})
                position = position + output.actions
            self.ask(rollout_channel, position)
        actor_channel.put({"steps": trajectory, "version": output.version}, async_op=True)
        return {"distance": position.abs().mean().item()}

    def ask(self, channel, position):
        """Send the observations to the rollout, which answers, but for those of the last step."""
        self.send_to(
            group_name="RolloutGroup",
            channel=channel,
            data={"obs": {"states": position}, "final": None},
            mode="train",
            tag="obs",
        )


class Rollout(Worker):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.gain, self.version = torch.zeros(()), -1
        self.options = CollectiveGroupOptions(use_ring_broadcast=True)
        self.device = self.torch_platform.current_device()

    def init_worker(self):
        self.ranks = list(range(self._world_size))

    @Worker.timer("sync_model_from_actor")
    async def sync_model_from_actor(self):
        work = self.broadcast(
            None,
            groups=[("ActorGroup", 0), (self._group_name, self.ranks)],
            src=("ActorGroup", 0),
            async_op=True,
            options=self.options,
        )
        weights = await work.async_wait()
        self.gain, self.version = weights["gain"].to(self.device), weights["version"]

    async def generate(self, input_channel, output_channel):
        for _ in range(self.config["horizon"]):
            observation = await self.observe(input_channel)
            with self.worker_timer("predict"):
                output = PolicyOutput(-self.gain * observation["obs"]["states"], self.version)
            self.send_to(
                group_name="EnvGroup",
                channel=output_channel,
                data=output,
                mode="train",
                tag="actions",
                split_fn=split_output,
                batch_size=self.config["num_envs"],
            )
        await self.observe(input_channel)

    async def observe(self, channel):
        """What comes from the environments, all rows of this rank."""
        return await self.recv_from(
            group_name="EnvGroup",
            channel=channel,
            tag="train_obs",
            batch_size=self.config["num_envs"],
            async_op=True,
        ).async_wait()


class Actor(Worker):
    def __init__(self, config):
        super().__init__()
        self.config, self.version = config, 0
        self.gain = torch.tensor(0.1, requires_grad=True)

    def init_worker(self):
        self.optimizer = torch.optim.SGD([self.gain], lr=self.config["lr"])

    def set_global_step(self, step):
        self.version = step

    async def sync_model_to_rollout(self):
        if self._rank:
            return
        await self.broadcast(
            {"gain": self.gain.detach(), "version": self.version},
            groups=[(self._group_name, 0), ("RolloutGroup", [0, 1])],
            src=(self._group_name, 0),
            async_op=True,
            options=CollectiveGroupOptions(use_ring_broadcast=True),
        ).async_wait()

    async def recv_rollout_trajectories(self, input_channel, number):
        gets = [input_channel.get(async_op=True) for _ in range(number)]
        self.batch = [await each.async_wait() for each in gets]
        return sorted({each["version"] for each in self.batch})

    @Worker.timer("run_training")
    def run_training(self):
        self.optimizer.zero_grad()
        ends = []
        for trajectory in self.batch:
            position = trajectory["steps"][0]["position"]
            for _ in trajectory["steps"]:
                position = position - self.gain * position
            ends.append(position)
        loss = torch.cat(ends).square().mean()
        loss.backward()
        # Each of both actors has a part of the trajectories; all have the same weights.
        self.gain.grad = self.mean_of_all(self.gain.grad)
        self.optimizer.step()
        return {"loss": loss.item(), "gain": self.gain.item()}

    def mean_of_all(self, value):
        """The mean over all ranks of this group."""
        everybody = [(self._group_name, list(range(self._world_size)))]
        parts = [
            self.broadcast(
                value if rank == self._rank else None, groups=everybody, src=(self._group_name, rank)
            )
            for rank in range(self._world_size)
        ]
        return torch.stack(parts).mean(0)


class Runner:
    """Leads the groups; only handles and metrics pass through it."""

    def __init__(self, config, actor, rollout, env):
        self.config = config
        self.actor, self.rollout, self.env = actor, rollout, env
        self.env_channel = Channel.create("Env")
        self.rollout_channel = Channel.create("Rollout")
        self.actor_channel = Channel.create("Actor")

    def init_workers(self):
        rollout: Handle = self.rollout.init_worker()
        env: Handle = self.env.init_worker()
        rollout.wait()
        env.wait()
        self.actor.init_worker().wait()

    def update_rollout_weights(self):
        rollout = self.rollout.sync_model_from_actor()
        actor = self.actor.sync_model_to_rollout()
        actor.wait()
        rollout.wait()

    def run(self):
        return [self.step(number) for number in range(self.config["steps"])]

    def step(self, number):
        self.actor.set_global_step(number).wait()
        self.update_rollout_weights()
        env = self.env.interact(
            input_channel=self.env_channel,
            rollout_channel=self.rollout_channel,
            actor_channel=self.actor_channel,
        )
        rollout = self.rollout.generate(input_channel=self.rollout_channel, output_channel=self.env_channel)
        # Three environments for two actors: the first has one more.
        received = [
            self.actor.execute_on(rank).recv_rollout_trajectories(self.actor_channel, number)
            for rank, number in enumerate((2, 1))
        ]
        versions = [each.wait() for each in received]
        rollout.wait()
        training = self.actor.run_training()
        metrics = training.wait()
        durations, of_ranks = env.consume_durations(return_per_rank=True)
        return {
            "versions": versions,
            "loss": [each["loss"] for each in metrics],
            "gain": [each["gain"] for each in metrics],
            "distance": [each["distance"] for each in env.wait()],
            "timers": (sorted(durations), len(of_ranks), training.consume_duration() > 0),
        }


def launch(config):
    cluster = Cluster(cluster_cfg=config["cluster"])
    placement = Placement(config, cluster)
    return {
        name: worker.create_group(config).launch(
            cluster, name=f"{name.capitalize()}Group", placement_strategy=placement.get_strategy(name)
        )
        for name, worker in {"actor": Actor, "rollout": Rollout, "env": Env}.items()
    }


def run(config, groups):
    runner = Runner(config, **groups)
    runner.init_workers()
    return runner.run()
