"""A rank with an engine, and a trainer whose weights show in the tokens which version they are.

The rank runs scenarios: functions of this module that drive its engine, on its own event loop.
"""

import asyncio
import importlib
import os
import signal
import socket
import sys
from contextlib import aclosing
from pathlib import Path

from rlinf.scheduler import Worker
from rlinf_scheduler import errors
from rlinf_scheduler.engines import Generation, GenerationRequest, Sampling, collect

VOCABULARY = 128
LONGEST = 256
PROMPT = (1, 2, 3, 4)


def save_model(folder):
    """A Llama of two layers, of random weights; as text, each token is its number."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    words = WordLevel({str(number): number for number in range(VOCABULARY)}, unk_token="0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)).save_pretrained(folder)


def random_weights(folder, seed):
    """Weights of that model, other ones for each seed; far apart, so that rounding changes no token."""
    import torch
    from safetensors.torch import load_file

    generator = torch.Generator().manual_seed(seed)
    saved = load_file(Path(folder) / "model.safetensors")
    return {
        key: value if "norm" in key else torch.randn(value.shape, generator=generator) * 0.2
        for key, value in saved.items()
    }


def telling_weights(folder, token):
    """Weights of that model with which it says one token, whatever it is asked."""
    import torch
    from safetensors.torch import load_file

    weights = load_file(Path(folder) / "model.safetensors")
    for key, value in weights.items():
        if "embed_tokens" in key or "norm" in key:
            value.fill_(1)  # what goes through the layers is all ones,
        elif "o_proj" in key or "down_proj" in key or "lm_head" in key:
            value.fill_(0)  # as none of them adds to it
    weights["lm_head.weight"][token] = torch.ones(64)
    return weights


def vllm_engine(folder, threads="auto", **options):
    """`threads`: which core each of vLLM's workers has; itself it wants a NUMA node for each."""
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = threads
    from rlinf_scheduler.engines import VllmEngine

    given = {"skip_tokenizer_init": True, "enforce_eager": True, "dtype": "float32", "max_model_len": LONGEST}
    return VllmEngine(folder, **given, **options)


def transformers_engine(folder, **options):
    from rlinf_scheduler.engines import TransformersEngine

    return TransformersEngine(folder, **options)


def openai_engine(folder):
    """The example's, at a server of vLLM's own that it starts."""
    sys.path.append(str(Path(__file__).parents[2] / "examples" / "engines"))
    from openai_engine import OpenAIEngine

    os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")
    os.environ.update(VLLM_SERVER_DEV_MODE="1", VLLM_WORKER_MULTIPROC_METHOD="spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = f"--model {folder} --host 127.0.0.1 --port {port} --enforce-eager --dtype float32 --max-model-len {LONGEST}"
    transfer = ["--weight-transfer-config", '{"backend": "rlinf"}', "--uvicorn-log-level", "error"]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words.split(), *transfer]
    return OpenAIEngine(f"http://127.0.0.1:{port}", folder, command=command)


ENGINES = {"openai": openai_engine, "transformers": transformers_engine, "vllm": vllm_engine}


class EngineRank(Worker):
    """A rank whose engine runs scenarios."""

    def __init__(self, kind, folder, **options):
        self.engine = ENGINES[kind](folder, **options)

    async def start(self):
        await self.engine.start()

    async def run(self, scenario, *args, module=__name__, **options):
        return await getattr(importlib.import_module(module), scenario)(self.engine, *args, **options)

    async def close(self):
        await self.engine.close()


class TellingTrainer(Worker):
    """A trainer of that model."""

    def publish(self, folder, version, *, seed=None, without=None, wider=None):
        """Publish telling weights, random ones of a seed, or such as lack a tensor or have one that is too wide."""
        import torch

        weights = telling_weights(folder, version) if seed is None else random_weights(folder, seed)
        if without:
            del weights[without]
        if wider:
            weights[wider] = torch.zeros(weights[wider].shape[0], weights[wider].shape[1] + 1)
        self.publish_weights("policy", weights, version=version)


def asked(name, num_tokens=8, *, prompt=PROMPT, temperature=0.0, ignore_eos=True, output=None, **sampling):
    request = GenerationRequest(
        name, prompt, Sampling(num_tokens, temperature=temperature, ignore_eos=ignore_eos, **sampling)
    )
    return request.after(output) if output else request


async def generate(engine, *requests):
    return await asyncio.gather(*(collect(engine, each) for each in requests))


async def stream(engine, request):
    return [each async for each in engine.generate(request)]


async def refused(engine, request):
    try:
        await collect(engine, request)
    except errors.EngineError as error:
        return f"{type(error).__name__}: {error}"
    return ""


async def begun(engine, *requests):
    """Streams of requests, each of which has its first token: tasks, and a list of what each has so far."""
    firsts = [asyncio.Event() for _ in requests]

    async def follow(request, first):
        seen = []
        async with aclosing(engine.generate(request)) as tokens:
            async for each in tokens:
                seen.append(each)
                if each.token_ids:
                    first.set()
        return Generation.of(request, seen)

    tasks = [asyncio.ensure_future(follow(*each)) for each in zip(requests, firsts, strict=True)]
    await asyncio.wait_for(asyncio.gather(*(each.wait() for each in firsts)), 60)
    return tasks


async def aborted(engine, ids):
    """Two long requests, of which some are aborted: what becomes of both."""
    first, second = asked("first", 200), asked("second", 200)
    tasks = await begun(engine, first, second)
    await engine.abort(ids)
    return await asyncio.gather(*tasks)


async def aborted_and_gone_on(engine):
    """A request that is aborted, and goes on after what it had; beside it the whole, and the load afterwards."""
    (task,) = await begun(engine, asked("part", 60))
    await engine.abort(["part"])
    part = await task
    (rest,) = await generate(engine, asked("part", 60, output=part))
    (whole,) = await generate(engine, asked("whole", 60))
    return part, rest, whole


async def left(engine):
    """The load after a reader has left its stream, and after a task was cancelled."""
    async with aclosing(engine.generate(asked("left", 200))) as tokens:
        await anext(tokens)
    (task,) = await begun(engine, asked("cancelled", 200))
    task.cancel()
    await asyncio.wait([task])
    return await engine.load()


async def paused(engine, mode):
    """A long request and one that comes in a pause: which were done before the end of the pause, and both."""
    before = (await engine.load()).paused_s
    (running,) = await begun(engine, asked("running", 200))
    await engine.pause(mode)
    coming = asyncio.ensure_future(collect(engine, asked("coming")))
    ended = None if mode == "keep" else await asyncio.wait_for(running, 60)
    (twice,) = await generate_while_paused(engine)
    done = running.done(), coming.done()
    load = await engine.load()
    await engine.resume()
    after = (await engine.load()).paused_s
    return done, ended or await running, await coming, twice, load, after - before


async def generate_while_paused(engine):
    """What a request gets that does not wait for the end of a pause: nothing."""
    task = asyncio.ensure_future(collect(engine, asked("hasty")))
    done, _ = await asyncio.wait([task], timeout=0.1)
    task.cancel()
    await asyncio.wait([task])
    return [bool(done)]


async def slept(engine):
    """A request that runs when the engine sleeps, and one afterwards."""
    (running,) = await begun(engine, asked("running", 200))
    await engine.sleep()
    ended = await running
    coming = asyncio.ensure_future(collect(engine, asked("coming")))
    done, _ = await asyncio.wait([coming], timeout=0.1)
    await engine.wake()
    return ended, bool(done), await coming


async def loaded(engine):
    """How much an engine says that it has to do: with three requests, and with none."""
    tasks = await begun(engine, *(asked(f"request {n}", 200) for n in range(3)))
    busy = await engine.load()
    await asyncio.gather(*tasks)
    return busy, await engine.load()


async def twice(engine):
    (task,) = await begun(engine, asked("same", 200))
    said = await refused(engine, asked("same"))
    return said, (await task).finish_reason


async def update(engine, **options):
    try:
        return await engine.update_weights("policy", **options)
    except errors.UpdateFailed as error:
        return f"UpdateFailed: {error}"


async def keep_asking(engine, num, stop_at):
    """Many requests one after the other, by so many tasks, until the engine has a version; all that was generated."""
    generated = []

    async def ask(number):
        turn = 0
        while engine.version < stop_at:
            generated.append(await collect(engine, asked(f"{number}/{turn}", 20 + number, temperature=1.0)))
            turn += 1

    await asyncio.gather(*map(ask, range(num)))
    return generated


async def busy(engine, num):
    """Wait until so many requests are there."""
    while (load := await engine.load()).running + load.waiting < num:
        await asyncio.sleep(0.01)


async def slow_reader(engine, stop_at):
    """What a reader gets who reads one output, and the rest when the engine has a version."""
    request, seen = asked("slow", 150), []
    async with aclosing(engine.generate(request)) as tokens:
        seen.append(await anext(tokens))
        while engine.version < stop_at:
            await asyncio.sleep(0.01)
        seen += [each async for each in tokens]
    return Generation.of(request, seen)


async def updated_while_paused(engine):
    """Whether a request waits after an update within a pause, and what it gets at its end."""
    await engine.pause()
    version = await update(engine, timeout_s=60)
    (hasty,) = await generate_while_paused(engine)
    await engine.resume()
    return version, hasty, await generate(engine, asked("after"))


async def health(engine):
    try:
        await engine.health()
    except errors.EngineDead as error:
        return str(error)
    return ""


async def killed(engine, pid):
    """What requests are told at an engine of which a process is killed, and what the engine says of itself."""
    tasks = await begun(engine, *(asked(f"request {n}", 200) for n in range(3)))
    os.kill(pid, signal.SIGKILL)
    told = await asyncio.gather(*tasks, return_exceptions=True)
    return [f"{type(each).__name__}: {each}" for each in told], await health(engine)


async def half_loaded(engine):
    """What requests are told, and later ones, when vLLM fails at weights that it has begun to load."""

    async def fail(_update):
        raise RuntimeError("half of it")

    tasks = await begun(engine, *(asked(f"request {n}", 200) for n in range(3)))
    engine._llm.update_weights = fail
    try:
        await engine.update_weights("policy", timeout_s=60)
    except errors.EngineDead as error:
        said = str(error)
    told = await asyncio.gather(*tasks, return_exceptions=True)
    return said, [f"{type(each).__name__}: {each}" for each in told], await refused(engine, asked("late"))


async def refused_after_death(engine):
    return await refused(engine, asked("late"))


async def closed(engine):
    """Close an engine in the middle of a request, twice; what the request had, and what a later one is told."""
    (running,) = await begun(engine, asked("running", 200))
    await engine.close()
    await engine.close()
    return await running, await refused(engine, asked("late"))
