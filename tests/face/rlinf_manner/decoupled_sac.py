"""An asynchronous run of soft actor-critic: whichever rollout rank is free answers whichever environment asks.

The best action for a state is half of it. The critic fits the reward by least squares over the replay, which has the
same answer whatever came first; the actor goes half the way to what the critic thinks best.
"""

import asyncio
import random
import threading

import torch

from rlinf.scheduler import Channel, Cluster, ComponentPlacement, Worker

CONFIG = {
    "cluster": {
        "num_nodes": 2,
        "component_placement": {"actor": "0", "rollout": "1", "env": "4-6"},
    },
    "steps": 4,
    "horizon": 2,
    "num_envs": 6,
    "min_replay": 3,
    "wait_s": 60.0,
}


class Stoppable(Worker):
    """Goes on with one thing, beside the calls that come, until it is stopped."""

    task = None

    async def go_on(self, work):
        self.task = asyncio.create_task(work)
        try:
            await self.task
        except asyncio.CancelledError:
            return "stopped"

    async def stop(self):
        self.task.cancel()


class Env(Stoppable):
    def __init__(self, config):
        Worker.__init__(self)
        self.config = config
        self.num_envs = config["num_envs"] // self._world_size
        self.generator = torch.Generator().manual_seed(self._rank)
        self.batch_router = {}

    async def interact(self, **channels):
        return await self.go_on(self.episodes(**channels))

    async def episodes(self, input_channel, rollout_channel, actor_channel, metric_channel):
        while True:
            steps = []
            for _ in range(self.config["horizon"]):
                await asyncio.sleep(0)
                steps.append(self.step(input_channel, rollout_channel))
            actor_channel.put(steps, async_op=True)
            reward = torch.stack([step["reward"] for step in steps]).mean().item()
            times = self.pop_execution_times()
            metric_channel.put({"rank": self._rank, "env": reward, "time": times}, async_op=True)

    @Worker.timer("step")
    def step(self, input_channel, rollout_channel):
        states = torch.randn(self.num_envs, generator=self.generator, dtype=torch.float64)
        self.send_to(
            group_name="RolloutGroup",
            channel=rollout_channel,
            data={"states": states},
            mode="train",
            tag="results",
            decoupled_mode=True,
        )
        answer = self.recv_from(
            group_name="RolloutGroup",
            channel=input_channel,
            tag="results",
            batch_size=self.config["num_envs"],
            decoupled_mode=True,
        )
        actions = answer["actions"]
        return {"states": states, "actions": actions, "reward": -(actions - states / 2).square()}


class Rollout(Stoppable):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.gain, self.version = 0.0, 0
        self.generator = torch.Generator().manual_seed(100 + self._rank)
        self.batch_router = {"results": []}

    async def generate(self, **channels):
        return await self.go_on(self.answers(**channels))

    async def answers(self, input_channel, output_channel, metric_channel):
        while True:
            asked = await self.recv_from(
                group_name="EnvGroup",
                channel=input_channel,
                tag="results",
                batch_size=self.config["num_envs"],
                recv_queue_size=1,
                decoupled_mode=True,
                async_op=True,
            ).async_wait()
            states = asked["states"]
            noise = torch.randn(len(states), generator=self.generator, dtype=torch.float64)
            self.send_to(
                group_name="EnvGroup",
                channel=output_channel,
                data={"actions": self.gain * states + noise},
                tag="results",
                batch_size=self.config["num_envs"],
                send_queue_size=1,
                decoupled_mode=True,
            )
            metric_channel.put({"rank": self._rank, "version": self.version}, async_op=True)

    async def sync_model_from_actor(self):
        """Beside what it generates."""
        self.gain, self.version = await self.recv("ActorGroup", 0, async_op=True).async_wait()


class Actor(Worker):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.gain, self.version = 0.0, 0
        self.replay, self.filled = [], threading.Condition()
        self.random = random.Random(1)

    async def recv_rollout_trajectories(self, input_channel):
        """A thread of its own takes them, so that training goes on meanwhile."""
        self.stopped = False
        self.receiver = threading.Thread(target=self.receive, args=(input_channel,), daemon=True)
        self.receiver.start()

    def receive(self, channel):
        while not self.stopped:
            trajectory = channel.get()
            with self.filled:
                self.replay.append(trajectory)
                self.filled.notify_all()

    def sync_model_to_rollout(self):
        self.send((self.gain, self.version), dst_group_name="RolloutGroup", dst_rank=0)

    @Worker.timer("run_training")
    def run_training(self):
        with self.filled:
            enough = self.filled.wait_for(
                lambda: len(self.replay) >= self.config["min_replay"] * (self.version + 1),
                self.config["wait_s"],
            )
            steps = [step for trajectory in self.replay for step in trajectory]
        if not enough:
            raise TimeoutError(f"{len(steps)} steps have come")
        sample = self.random.sample(steps, len(steps) - 1)
        states, actions, reward = (
            torch.cat([step[name] for step in sample]) for name in ("states", "actions", "reward")
        )
        return self.update(states, actions, reward)

    def update(self, states, actions, reward):
        features = torch.stack([actions.square(), actions * states, states.square()], dim=1)
        critic = torch.linalg.lstsq(features, reward[:, None]).solution[:, 0]
        loss = (features @ critic - reward).square().mean()
        best = (-critic[1] / (2 * critic[0])).item()
        self.gain += 0.5 * (best - self.gain)
        self.version += 1
        return {"critic_loss": loss.item(), "gain": self.gain}

    def stop(self):
        self.stopped = True


class Runner:
    def __init__(self, config, groups):
        self.config = config
        self.actor, self.rollout, self.env = groups["actor"], groups["rollout"], groups["env"]
        names = ("Env", "Rollout", "Actor", "EnvMetric", "RolloutMetric")
        self.channels = {name: Channel.create(name) for name in names}

    def update_rollout_weights(self):
        rollout = self.rollout.sync_model_from_actor()
        actor = self.actor.sync_model_to_rollout()
        actor.wait()
        rollout.wait()

    def metrics(self, name):
        """What has come so far."""
        found = []
        while True:
            try:
                found.append(self.channels[name].get_nowait())
            except asyncio.QueueEmpty:
                return found

    def metrics_of_all(self):
        """What every environment has told, once each has: one may be slow."""
        found = []
        while len({each["rank"] for each in found}) < self.env.world_size:
            found.append(self.channels["EnvMetric"].get(timeout_s=self.config["wait_s"]))
        return found

    def run(self):
        self.update_rollout_weights()
        env = self.env.interact(
            input_channel=self.channels["Env"],
            rollout_channel=self.channels["Rollout"],
            actor_channel=self.channels["Actor"],
            metric_channel=self.channels["EnvMetric"],
        )
        rollout = self.rollout.generate(
            input_channel=self.channels["Rollout"],
            output_channel=self.channels["Env"],
            metric_channel=self.channels["RolloutMetric"],
        )
        self.actor.recv_rollout_trajectories(self.channels["Actor"]).wait()
        history = []
        while len(history) < self.config["steps"]:
            training = self.actor.run_training()
            (metrics,) = training.wait()
            history.append(metrics)
            self.update_rollout_weights()
        told = self.metrics_of_all()
        self.env.stop().wait()
        ended = env.wait()
        self.rollout.stop().wait()
        ended += rollout.wait()
        self.actor.stop().wait()
        return {
            "history": history,
            "ended": ended,
            "env": told + self.metrics("EnvMetric"),
            "versions": [each["version"] for each in self.metrics("RolloutMetric")],
        }


def launch(config):
    cluster = Cluster(cluster_cfg=config["cluster"])
    placement = ComponentPlacement(config, cluster)
    return {
        name: worker.create_group(config).launch(
            cluster, name=f"{name.capitalize()}Group", placement_strategy=placement.get_strategy(name)
        )
        for name, worker in {"actor": Actor, "rollout": Rollout, "env": Env}.items()
    }


def run(config, groups):
    return Runner(config, groups).run()
