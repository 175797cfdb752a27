"""Engines in processes that rollout ranks start: each joins the job below its rank, and takes its weights itself."""

import multiprocessing

from rlinf.scheduler import Channel, Cluster, ComponentPlacement, Worker

CONFIG = {
    "cluster": {"num_nodes": 2, "component_placement": {"actor": "0-1", "rollout": "2-5:0-1"}},
    "tensor_parallel": 2,
    "prompts": [[1.0, 2.0], [3.0]],
}


def serve(parent_address, world_size, rank, requests, answers):
    """What the process of an engine runs; its rank speaks with it by pipes, and the job by its worker."""
    worker = Worker(parent_address=parent_address, world_size=world_size, rank=rank)
    weights = 0.0
    for request in iter(requests.recv, None):
        if request == "who":
            answers.send((worker.get_parent_rank(), worker._rank, worker._world_size, worker.get_name()))
        elif request == "sync":
            # An actor's rank has the weights of the engines that have its place below their ranks.
            weights = worker.recv(src_group_name="ActorGroup", src_rank=worker._rank)["shard"]
            answers.send("synced")
        else:
            answers.send([weights * prompt for prompt in request])


class Rollout(Worker):
    def __init__(self, config):
        super().__init__()
        self.config = config

    def init_worker(self):
        context = multiprocessing.get_context("spawn")
        number = self.config["tensor_parallel"]
        self.engines = []
        for rank in range(number):
            theirs, requests = context.Pipe(duplex=False)
            answers, their_answers = context.Pipe(duplex=False)
            arguments = (self.worker_address, number, rank, theirs, their_answers)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            self.engines.append((process, requests, answers))
        return self.ask("who")

    def ask(self, request):
        for _, requests, _ in self.engines:
            requests.send(request)
        return [answers.recv() for _, _, answers in self.engines]

    def sync_model_from_actor(self):
        return self.ask("sync")

    def rollout(self, input_channel, output_channel):
        prompts = input_channel.get()
        # Each engine has a part of the model.
        output_channel.put([sum(parts) for parts in zip(*self.ask(prompts), strict=True)])

    def shutdown(self):
        """Ours, which a group of these has first."""
        for process, requests, _ in self.engines:
            requests.send(None)
            process.join()
        return [process.exitcode for process, _, _ in self.engines]


class Actor(Worker):
    def sync_model_to_rollout(self, scale, engines):
        """Send this rank's part of the weights to its engine below each rollout rank."""
        for rank in range(engines):
            self.send(
                {"shard": scale * (self._rank + 1)},
                dst_group_name="RolloutGroup",
                dst_rank=(rank, self._rank),
            )


def launch(config):
    cluster = Cluster(cluster_cfg=config["cluster"])
    placement = ComponentPlacement(config, cluster)
    return {
        name: worker.create_group(*arguments).launch(
            cluster, name=f"{name.capitalize()}Group", placement_strategy=placement.get_strategy(name)
        )
        for name, worker, arguments in (("actor", Actor, ()), ("rollout", Rollout, (config,)))
    }


def run(config, groups):
    actor, rollout = groups["actor"], groups["rollout"]
    requests, answers = Channel.create("Requests"), Channel.create("Answers")
    who = rollout.init_worker().wait()
    answered = []
    for scale in (1.0, 10.0):
        synced = rollout.sync_model_from_actor()
        actor.sync_model_to_rollout(scale, len(who)).wait()
        synced.wait()
        for prompts in config["prompts"]:
            requests.put(prompts)
        rollout.rollout(input_channel=requests, output_channel=answers).wait()
        answered.append(sorted(answers.get() for _ in config["prompts"]))
    return {"who": who, "answered": answered, "ended": rollout.shutdown().wait()}
