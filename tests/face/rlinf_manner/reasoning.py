"""A reasoning run: requests, answers, rewards, log probabilities and training, from channel to channel.

The policy answers with a number: its mean and the sample's own deviation. An answer of 3 has the best reward.
Disaggregated, each component has devices of its own, and all channels are the job's; collocated, all share the
devices, and the actors infer by themselves: from call to call their items stay in a local channel.
"""

from dataclasses import dataclass

import torch

from rlinf.scheduler import Channel, Cluster, ComponentPlacement, PackedPlacementStrategy, Worker

_APART = {
    "num_nodes": 2,
    "component_placement": {"actor": "0-1", "rollout": "2-3", "reward": "4", "inference": "5"},
}
DISAGGREGATED = {"cluster": _APART, "batches": [[0, 1, 2, 3]] * 3, "lr": 0.4}
COLLOCATED = {
    **DISAGGREGATED,
    "cluster": {"num_nodes": 2, "component_placement": {"actor,rollout": "0-1", "reward": "4"}},
}
DEVIATIONS = torch.tensor([-1.0, -0.5, 0.5, 1.0])
BEST = 3.0


class ModelPlacement(ComponentPlacement):
    """Chooses the strategies anew, once it has read which devices the components have."""

    def __init__(self, config, cluster):
        super().__init__(config, cluster)
        self.has_dedicated_inference = "inference" in self._components
        devices = {each: self.get_hardware_ranks(each) for each in self._components}
        for component, ranks in devices.items():
            self._placements[component] = PackedPlacementStrategy(ranks[0], ranks[-1])
        self.rollout_dp_size = len(devices["rollout"])


@dataclass
class Answers:
    """All answers to one prompt: a group of samples."""

    prompt: int
    answers: torch.Tensor
    deviations: torch.Tensor
    rewards: torch.Tensor | None = None
    prev_logprobs: torch.Tensor | None = None


class Rollout(Worker):
    def __init__(self, config, placement):
        Worker.__init__(self)
        self.mean = None

    def init_worker(self):
        self.log_on_first_rank(f"{self._world_size} ranks answer")

    def sync_model_from_actor(self):
        """Take the weights from the one actor that has this rank's, and what it says of them."""
        weights, version = self.recv("ActorGroup", src_rank=0)
        self.mean, self.version = weights["mean"], version

    async def rollout(self, input_channel, output_channel):
        prompts = input_channel.get()
        for prompt in prompts:
            with self.device_lock:
                answers = Answers(prompt, self.mean + DEVIATIONS, DEVIATIONS)
            await output_channel.put(answers, async_op=True).async_wait()
        return len(prompts)


class Reward(Worker):
    def __init__(self, config):
        super().__init__()
        self.number = len(config["batches"][0])

    def init_worker(self):
        pass

    @Worker.timer("compute_rewards")
    def compute_rewards(self, input_channel, output_channel):
        for _ in range(self.number):
            item = input_channel.get()
            item.rewards = -(item.answers - BEST).square()
            output_channel.put(item, async_op=True)


class Policy(Worker):
    """What has the model: it trains or infers."""

    def __init__(self, config, placement):
        super().__init__()
        self.config, self.placement = config, placement
        self.number = len(config["batches"][0])
        self.version = 0

    def init_worker(self):
        self.mean = torch.zeros((), requires_grad=True)

    def logprobs(self, item):
        return -0.5 * (item.answers - self.mean).square()

    def shared(self, channel):
        """An item for all ranks: the first gets it, and gives it to the others."""
        item = channel.get() if self._rank == 0 else None
        return self.broadcast(item, groups=[(self._group_name, list(range(self._world_size)))])

    def run_inference(self, input_channel, output_channel):
        """Each rank has all items; where the channel is local, it puts them for itself, else one does for all."""
        for _ in range(self.number):
            item = self.shared(input_channel)
            with self.device_lock(), torch.no_grad():
                item.prev_logprobs = self.logprobs(item)
            if output_channel.is_local or self._rank == 0:
                output_channel.put(item, async_op=True)


class Inference(Policy):
    def sync_model_from_actor(self):
        with torch.no_grad():
            self.mean.copy_(self.recv("ActorGroup", src_rank=0)["mean"])


class Actor(Policy):
    def sync_model_to_inference(self):
        if self._rank == 0:
            self.send({"mean": self.mean.detach()}, dst_group_name="InferenceGroup", dst_rank=0)

    def sync_model_to_rollout(self):
        """One rank has the weights of all rollout ranks; beside them goes their version."""
        if self._rank == 0:
            for rank in range(self.placement.get_world_size("rollout")):
                self.send({"mean": self.mean.detach()}, "RolloutGroup", rank, piggyback_payload=self.version)

    def del_reshard_state_dict(self):
        self.version += 1

    @Worker.timer("run_training")
    def run_training(self, input_channel):
        loss, prompts = torch.zeros(()), []
        for _ in range(self.number):
            item = input_channel.get() if input_channel.is_local else self.shared(input_channel)
            advantages = item.rewards - item.rewards.mean()
            ratio = (self.logprobs(item) - item.prev_logprobs).exp()
            loss = loss - (ratio * advantages).mean() / self.number
            prompts.append(item.prompt)
        loss.backward()
        with torch.no_grad():
            self.mean -= self.config["lr"] * self.mean.grad
            self.mean.grad = None
        return {"prompts": sorted(prompts), "reward": item.rewards.mean().item()}, self.mean.item()


class Runner:
    def __init__(self, config, groups):
        self.config = config
        self.placement = ModelPlacement(config, Cluster())
        self.rollout, self.actor, self.reward = groups["rollout"], groups["actor"], groups["reward"]
        self.inference = groups.get("inference", self.actor)
        self.dataloader_channel = Channel.create("DataLoader")
        self.rollout_channel = Channel.create("Rollout")
        self.reward_channel = Channel.create("Reward")
        self.inference_channel = Channel.create("Inference", local=not self.placement.has_dedicated_inference)

    def init_workers(self):
        for group in {
            id(group): group for group in (self.rollout, self.reward, self.actor, self.inference)
        }.values():
            group.init_worker().wait()

    def sync_weights(self):
        if self.placement.has_dedicated_inference:
            self.actor.sync_model_to_inference()
            self.inference.sync_model_from_actor().wait()
        self.actor.sync_model_to_rollout()
        self.rollout.sync_model_from_actor().wait()
        self.actor.del_reshard_state_dict().wait()

    def run(self):
        return [self.step(batch) for batch in self.config["batches"]]

    def step(self, batch):
        ranks = self.placement.rollout_dp_size
        for rank in range(ranks):
            self.dataloader_channel.put(batch[rank::ranks], async_op=True)
        self.sync_weights()
        answered = self.rollout.rollout(
            input_channel=self.dataloader_channel, output_channel=self.rollout_channel
        )
        rewarded = self.reward.compute_rewards(
            input_channel=self.rollout_channel, output_channel=self.reward_channel
        )
        inferred = self.inference.run_inference(
            input_channel=self.reward_channel, output_channel=self.inference_channel
        )
        trained = self.actor.run_training(input_channel=self.inference_channel)
        results = trained.wait()
        inferred.wait()
        return {
            "answered": sum(answered.wait()),
            "trained": results,
            "seconds": (trained.consume_duration() > 0, rewarded.consume_duration() > 0),
        }


def launch(config):
    cluster = Cluster(cluster_cfg=config["cluster"])
    placement = ModelPlacement(config, cluster)
    classes = {
        "rollout": (Rollout, placement),
        "inference": (Inference, placement),
        "reward": (Reward,),
        "actor": (Actor, placement),
    }
    groups = {}
    for name, (worker, *arguments) in classes.items():
        if name in placement._components:
            groups[name] = worker.create_group(config, *arguments).launch(
                cluster, name=f"{name.capitalize()}Group", placement_strategy=placement.get_strategy(name)
            )
    return groups


def run(config, groups):
    runner = Runner(config, groups)
    runner.init_workers()
    return runner.run()
