"""vLLM behind the library's protocol and its service, against the same engine called directly; updates; a death.

On CPUs, with models made from a config. Sides run in turn in one run, on one engine; what counts is the ratio.

    python benchmarks/engines.py [--only NAME] [--quick]      # names: overhead, update, death
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from measure import MIB, Options, Table, duration_text, ratio_text, read_options
from rlinf.scheduler import Channel, Cluster, PackedPlacementStrategy, Worker
from rlinf_scheduler.engines import (
    GenerationRequest,
    RolloutClient,
    RolloutEngine,
    RolloutWorker,
    Sampling,
    collect,
)

IN_FLIGHT = (1, 8, 64)
NUM_TOKENS = 32
PROMPT = tuple(range(1, 17))
DIRECT, ENGINE, SERVICE = "AsyncLLM", "VllmEngine", "service"
OURS, DISK, RPC = "update_weights", "reload from disk", "collective_rpc"
TIMEOUT_S = 600.0


def save_model(folder: Path, num_layers: int, hidden: int, vocabulary: int) -> str:
    """Save a Llama of random weights; the path."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    path = folder / f"{num_layers}-{hidden}"
    LlamaForCausalLM(config).save_pretrained(path)
    return str(path)


def make_engine(path: str) -> RolloutEngine:
    """Make vLLM for CPUs."""
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = (
        "1"  # tensors in calls of vLLM's workers, for one of the sides
    )
    from rlinf_scheduler.engines import VllmEngine

    return VllmEngine(path, skip_tokenizer_init=True, enforce_eager=True, dtype="float32", max_model_len=512)


class Rank(RolloutWorker):
    """A rank of the service, whose engine is also called directly."""

    async def took(self, side: str, in_flight: int, times: int) -> float:
        """Generate so many requests at a time, so many times; seconds for each time."""
        engine: Any = self._engine
        ask = partial(directly, engine._llm) if side == DIRECT else partial(by_engine, engine)
        began = time.perf_counter()
        for turn in range(times):
            await asyncio.gather(*(ask(f"{turn}/{number}") for number in range(in_flight)))
        return (time.perf_counter() - began) / times

    async def keep_busy(self, num: int) -> None:
        """Generate in the background, so many at a time."""
        self._busy = [asyncio.ensure_future(self._ask_on(number)) for number in range(num)]

    async def _ask_on(self, number: int) -> None:
        for turn in range(1 << 30):
            await by_engine(self._engine, f"busy {number}/{turn}", 200)

    async def be_idle(self) -> None:
        """End that."""
        for each in self._busy:
            each.cancel()
        await asyncio.wait(self._busy)

    async def reload(self, path: str) -> tuple[float, float]:
        """Load a model's file, as vLLM itself does; how long requests stood still, and the whole."""
        return await self._replace("reload_weights", kwargs={"weights_path": path})

    async def call_with(self, weights: dict[str, Any]) -> tuple[float, float]:
        """Send weights with a call of vLLM's workers; likewise."""
        return await self._replace(load_pickled, args=(pickle.dumps(weights),))

    async def _replace(self, method: Any, **given: Any) -> tuple[float, float]:
        engine: Any = self._engine
        before_s, began = (await engine.load()).paused_s, time.perf_counter()
        await engine.pause()
        await engine._llm.collective_rpc(method, **given)
        await engine._llm.reset_prefix_cache(reset_running_requests=True)
        await engine.resume()
        return (await engine.load()).paused_s - before_s, time.perf_counter() - began

    def core(self) -> int:
        """Return the pid of vLLM's core."""
        return next(each.pid or 0 for each in multiprocessing.active_children() if "EngineCore" in each.name)


def load_pickled(worker: Any, data: bytes) -> None:
    """Load weights that came with a call, in a worker of vLLM."""
    worker.reload_weights(weights_iterator=iter(pickle.loads(data).items()))


async def directly(llm: Any, name: str) -> None:
    """Generate as a program would that knows vLLM alone."""
    from vllm import SamplingParams, TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        max_tokens=NUM_TOKENS,
        temperature=1.0,
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    prompt, ids, logprobs = TokensPrompt(prompt_token_ids=list(PROMPT)), [], []
    async for output in llm.generate(prompt, params, name):
        ids += output.outputs[0].token_ids
        logprobs += output.outputs[0].logprobs


async def by_engine(engine: Any, name: str, num_tokens: int = NUM_TOKENS) -> None:
    """Generate by the protocol."""
    await collect(engine, GenerationRequest(name, PROMPT, Sampling(num_tokens, ignore_eos=True)))


class Trainer(Worker):
    """A trainer of the larger model."""

    def __init__(self, path: str) -> None:
        super().__init__()
        from safetensors.torch import load_file

        self._weights = load_file(Path(path) / "model.safetensors")

    def publish(self, version: int) -> None:
        """Publish a version."""
        self.publish_weights("policy", self._weights, version=version)

    def save(self, path: str) -> float:
        """Write a file; seconds."""
        from safetensors.torch import save_file

        began = time.perf_counter()
        save_file(self._weights, Path(path) / "model.safetensors")
        return time.perf_counter() - began

    def weights(self) -> dict[str, Any]:
        """Return all of them."""
        return self._weights


def launch(cluster: Cluster, path: str, name: str, first: int, last: int) -> Any:
    """Launch ranks with an engine of a model each, and start these."""
    group = Rank.create_group(partial(make_engine, path)).launch(
        cluster, PackedPlacementStrategy(first, last), name=name
    )
    group.start().wait(TIMEOUT_S)
    return group


def overhead(cluster: Cluster, folder: Path, options: Options) -> None:
    """Tokens a second, and milliseconds a request, of the three sides."""
    group = launch(cluster, save_model(folder, 2, 64, 128), "rollout", 0, 0)
    channel = Channel.create("requests")
    serving = group.serve(channel)
    client, sampling = RolloutClient(channel), Sampling(NUM_TOKENS, ignore_eos=True)

    def service(in_flight: int, times: int) -> float:
        began = time.perf_counter()
        for _ in range(times):
            for each in [client.begin(PROMPT, sampling)[0] for _ in range(in_flight)]:
                each.wait(TIMEOUT_S)
        return (time.perf_counter() - began) / times

    def of_rank(side: str, in_flight: int, times: int) -> float:
        (took,) = group.took(side, in_flight, times).wait(TIMEOUT_S)
        return float(took)

    sides: dict[str, Callable[[int, int], float]] = {
        DIRECT: partial(of_rank, DIRECT),
        ENGINE: partial(of_rank, ENGINE),
        SERVICE: service,
    }
    columns = ("tokens/s", "of AsyncLLM", "a request", "more")
    table = Table(f"requests in flight, {NUM_TOKENS} tokens each", columns)
    for in_flight in IN_FLIGHT:
        times = max(1, int(options.budget_s * 20 / (1 + in_flight / 8)))
        took: dict[str, list[float]] = {side: [] for side in sides}
        for round_ in range(options.rounds + 1):
            for side, run in sides.items():
                seconds = run(in_flight, times)
                if round_:  # the first one warms up
                    took[side].append(seconds)
        medians = {side: median(each) for side, each in took.items()}
        for side, seconds in medians.items():
            table.row(
                f"{in_flight}: {side}",
                f"{in_flight * NUM_TOKENS / seconds:.0f}",
                f"{100 * medians[DIRECT] / seconds:.0f} %",
                duration_text(seconds),
                duration_text(seconds - medians[DIRECT]),
            )
    channel.close()
    serving.wait(TIMEOUT_S)
    group.close().wait(TIMEOUT_S)


def update(cluster: Cluster, folder: Path, options: Options) -> None:
    """How long requests stand still for new weights of some 50 MB."""
    path = save_model(folder, 3, 512, 4096)
    size = (Path(path) / "model.safetensors").stat().st_size
    group = launch(cluster, path, "rollout", 0, 0)
    trainer = Trainer.create_group(path).launch(cluster, PackedPlacementStrategy(1, 1), name="actor")
    group.keep_busy(8).wait(TIMEOUT_S)
    took: dict[str, list[tuple[float, float]]] = {OURS: [], DISK: [], RPC: []}
    for number in range(1, options.rounds + 2):
        began = time.perf_counter()
        trainer.publish(number).wait(TIMEOUT_S)
        (updated,) = group.update_weights("policy", number).wait(TIMEOUT_S)
        took[OURS].append((updated.paused_s, time.perf_counter() - began))
        began = time.perf_counter()
        trainer.save(path).wait(TIMEOUT_S)
        ((paused_s, _),) = group.reload(path).wait(TIMEOUT_S)
        took[DISK].append((paused_s, time.perf_counter() - began))
        began = time.perf_counter()
        (weights,) = trainer.weights().wait(TIMEOUT_S)
        ((paused_s, _),) = group.call_with(weights).wait(TIMEOUT_S)
        took[RPC].append((paused_s, time.perf_counter() - began))
    columns = ("pause", "ratio", "with the trainer's part", "ratio")
    table = Table(f"{size / MIB:.0f} MiB, while 8 requests run", columns)
    medians = {
        side: [median(column) for column in zip(*rows[1:], strict=True)] for side, rows in took.items()
    }
    for side, (paused_s, whole_s) in medians.items():
        ours = medians[OURS]
        table.row(
            side,
            duration_text(paused_s),
            ratio_text(paused_s / ours[0]),
            duration_text(whole_s),
            ratio_text(whole_s / ours[1]),
        )
    group.be_idle().wait(TIMEOUT_S)
    group.close().wait(TIMEOUT_S)


def death(cluster: Cluster, folder: Path, options: Options) -> None:
    """How long after an engine's death its requests are answered elsewhere, and its rank generates again."""
    group = launch(cluster, save_model(folder, 2, 64, 128), "rollout", 0, 1)
    channel = Channel.create("deaths")
    serving = group.serve(channel)
    client, num = RolloutClient(channel), 64
    took: dict[str, list[float]] = {"first": [], "last": [], "again": []}
    for _ in range(min(options.rounds, 3)):
        pending = [client.begin(PROMPT, Sampling(400, ignore_eos=True))[0] for _ in range(num)]
        while not group.execute_on(0).load().wait(TIMEOUT_S)[0].running:
            time.sleep(0.01)
        os.kill(group.core().wait(TIMEOUT_S)[0], signal.SIGKILL)
        began = time.perf_counter()
        ended = list[float]()
        while waiting := [each for each in pending if not each.done()]:
            time.sleep(0.001)
            if num_again := sum(each.wait(TIMEOUT_S).attempt > 1 for each in pending if each.done()):
                ended += [time.perf_counter() - began] * (num_again - len(ended))
        took["first"].append(ended[0] if ended else time.perf_counter() - began)
        took["last"].append(time.perf_counter() - began)
        group.start().wait(TIMEOUT_S)
        took["again"].append(time.perf_counter() - began)
        del waiting
    table = Table(f"{num} requests of 400 tokens on two engines, one is killed", ("median", "longest"))
    for row, name in {
        "first": "first of its requests answered elsewhere",
        "last": "all answered",
        "again": "its rank generates again",
    }.items():
        table.row(name, duration_text(median(took[row])), duration_text(max(took[row])))
    channel.close()
    serving.wait(TIMEOUT_S)
    group.close().wait(TIMEOUT_S)


def main() -> None:
    """Run what is asked for, each on a cluster of its own."""
    options = read_options(__doc__ or "", rounds=5, budget_s=1.0)
    for name, measure in {"overhead": overhead, "update": update, "death": death}.items():
        if options.wants(name):
            with tempfile.TemporaryDirectory() as folder, Cluster(simulate="1x4") as cluster:
                measure(cluster, Path(folder), options)


if __name__ == "__main__":
    main()
