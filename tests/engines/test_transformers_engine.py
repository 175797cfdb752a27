"""The engine on transformers: batches, caches, draws and weights, against plain forward passes."""

import asyncio
import math

import pytest

pytest.importorskip("transformers", reason="transformers is not installed (the extra [transformers])")

import torch
import transformers

from rlinf_scheduler.engines import Generation, GenerationRequest, Sampling, TransformersEngine, collect
from rlinf_scheduler.engines.transformers import drawn
from rlinf_scheduler.errors import EngineDead, EngineError

CONFIG = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": 96,
    "bos_token_id": None,
    "pad_token_id": None,
}
PROMPTS = [(5,), (7, 3, 22, 9, 1, 40), (11, 12), (60, 61, 62, 63)]


def llama():
    return transformers.LlamaConfig(**CONFIG)


def request(name, prompt, num_tokens=12, **sampling):
    sampling.setdefault("temperature", 0)
    sampling.setdefault("ignore_eos", True)
    return GenerationRequest(str(name), tuple(prompt), Sampling(num_tokens, **sampling))


def drive(run, **options):
    """What a coroutine of an engine returns."""

    async def drive():
        engine = TransformersEngine(llama(), **options)
        await engine.start()
        try:
            return await asyncio.wait_for(run(engine), 60)
        finally:
            await engine.close()

    return asyncio.run(drive())


@torch.inference_mode()
def one_by_one(model, prompt, num_tokens):
    """The likeliest tokens and their log-probabilities, by a whole forward pass for each."""
    ids, logprobs = list(prompt), []
    for _ in range(num_tokens):
        line = model(torch.tensor([ids])).logits[0, -1].float()
        ids.append(int(line.argmax()))
        logprobs.append(float(line.log_softmax(-1)[ids[-1]]))
    return tuple(ids[len(prompt) :]), logprobs


def agrees(engine, asked, generation):
    tokens, logprobs = one_by_one(engine.model, asked.prompt_ids, len(generation.token_ids))
    assert generation.token_ids == tokens
    assert generation.logprobs == pytest.approx(logprobs, abs=1e-4)


def test_prompts_of_different_lengths_are_generated_together_as_one_by_one():
    async def run(engine):
        asked = [request(place, prompt, 5 + 3 * place) for place, prompt in enumerate(PROMPTS)]
        for each, generation in zip(
            asked, await asyncio.gather(*(collect(engine, each) for each in asked)), strict=True
        ):
            agrees(engine, each, generation)
            assert generation.finish_reason == "length"
            assert set(generation.versions) == {0}

    drive(run)


def test_requests_join_and_leave_between_tokens_and_those_without_room_wait():
    async def run(engine):
        first = request("first", PROMPTS[1], 30)
        stream = engine.generate(first)
        parts = [await anext(stream) for _ in range(4)]
        others = [request(place, prompt, 6) for place, prompt in enumerate(PROMPTS)]
        generations = await asyncio.gather(*(collect(engine, each) for each in others))
        parts += [tokens async for tokens in stream]
        agrees(engine, first, Generation.of(first, parts))
        for each, generation in zip(others, generations, strict=True):
            agrees(engine, each, generation)
        load = await engine.load()
        assert (load.running, load.waiting, load.tokens) == (0, 0, 0)

    drive(run, max_requests=2)


def test_draws_depend_on_their_seed_and_on_no_other_request():
    async def run(engine):
        alone = await collect(engine, request("a", PROMPTS[0], temperature=1.0, seed=3))
        crowd = [
            request(place, PROMPTS[place % 4], temperature=1.0, seed=place, top_p=0.9) for place in range(6)
        ]
        again, *_ = await asyncio.gather(
            collect(engine, request("b", PROMPTS[0], temperature=1.0, seed=3)),
            *(collect(engine, each) for each in crowd),
        )
        assert again.token_ids == alone.token_ids
        other = await collect(engine, request("c", PROMPTS[0], temperature=1.0, seed=4))
        assert other.token_ids != alone.token_ids
        for place, (token, logprob) in enumerate(zip(alone.token_ids, alone.logprobs, strict=True)):
            ids = [*PROMPTS[0], *alone.token_ids[:place]]
            with torch.inference_mode():
                line = engine.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            assert logprob == pytest.approx(float(line[token]), abs=1e-4)

    drive(run)


def test_draws_are_as_likely_as_they_should_be():
    class Row:
        def __init__(self, **sampling):
            self.request = request("x", (1,), 1, **sampling)
            self.dice = torch.Generator()

    class Dice:
        def __init__(self, num):
            self.chances = iter((place + 0.5) / num for place in range(num))

        def random(self):
            return next(self.chances)

    logits = torch.tensor([0.5, 0.2, 0.2, 0.1]).log()

    def counts(**sampling):
        row = Row(**sampling)
        row.dice = Dice(1000)
        tokens = [drawn(row, logits)[0] for _ in range(1000)]
        return [tokens.count(token) / 1000 for token in range(4)]

    assert counts(temperature=1.0) == pytest.approx([0.5, 0.2, 0.2, 0.1], abs=0.002)
    assert counts(temperature=1.0, top_k=2) == pytest.approx([5 / 7, 2 / 7, 0, 0], abs=0.002)
    assert counts(temperature=1.0, top_p=0.65) == pytest.approx([5 / 7, 2 / 7, 0, 0], abs=0.002)
    assert counts(temperature=0.5) == pytest.approx([25 / 34, 4 / 34, 4 / 34, 1 / 34], abs=0.002)
    assert drawn(Row(temperature=0), logits) == (0, pytest.approx(math.log(0.5)))


def test_an_output_ends_at_a_stop_at_the_models_end_and_at_its_length():
    async def run(engine):
        free = await collect(engine, request("free", PROMPTS[1]))
        stop = free.token_ids[3]
        stopped = await collect(engine, request("stop", PROMPTS[1], stop_token_ids=(stop,)))
        first = free.token_ids.index(stop)
        assert (stopped.token_ids, stopped.finish_reason) == (free.token_ids[: first + 1], "stop")
        engine._ends = frozenset([stop])
        ended = await collect(engine, request("end", PROMPTS[1], ignore_eos=False))
        assert ended.finish_reason == "stop"
        full = await collect(engine, request("full", range(60), 12))
        assert (len(full.token_ids), full.finish_reason) == (4, "length")
        with pytest.raises(EngineError, match="has 64 tokens, and the model takes 64"):
            await collect(engine, request("long", range(64)))

    drive(run)


def test_what_is_aborted_goes_on_where_it_was():
    async def run(engine):
        for temperature in (0, 1.0):
            whole = await collect(engine, request("whole", PROMPTS[1], temperature=temperature, seed=1))
            asked = request("part", PROMPTS[1], temperature=temperature, seed=1)
            parts = []
            async for tokens in engine.generate(asked):
                parts.append(tokens)
                if len(parts) == 3:
                    await engine.abort(["part"])
            partial = Generation.of(asked, parts)
            assert partial.finish_reason == "abort"
            assert 3 <= len(partial.token_ids) < 12
            rest = await collect(engine, asked.after(partial))
            assert rest.token_ids == whole.token_ids
            assert rest.logprobs == pytest.approx(whole.logprobs, abs=1e-4)

    drive(run)


def test_a_pause_keeps_finishes_or_aborts_and_sleep_gives_the_cache_back():
    async def run(engine):
        async def began(name):
            stream = engine.generate(request(name, PROMPTS[1], 40))
            return stream, await anext(stream)

        kept, _ = await began("kept")
        await engine.pause()
        came = (await engine.load()).tokens
        waiting = asyncio.ensure_future(collect(engine, request("waits", PROMPTS[0], 3)))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert (await engine.load()).tokens >= came
        await engine.resume()
        assert [tokens async for tokens in kept][-1].finish_reason == "length"
        assert (await waiting).finish_reason == "length"
        finished, _ = await began("finished")
        await engine.pause("finish")
        assert (await engine.load()).running == 0
        assert [tokens async for tokens in finished][-1].finish_reason == "length"
        await engine.resume()
        aborted, _ = await began("aborted")
        await engine.pause("abort")
        assert [tokens async for tokens in aborted][-1].finish_reason == "abort"
        await engine.resume()
        asleep, _ = await began("asleep")
        await engine.sleep()
        assert [tokens async for tokens in asleep][-1].finish_reason == "abort"
        assert engine._batch._layers == []
        late = asyncio.ensure_future(collect(engine, request("late", PROMPTS[2])))
        await engine.wake()
        agrees(engine, request("late", PROMPTS[2]), await late)
        assert 0 < (await engine.load()).paused_s < 60

    drive(run)


def test_who_leaves_a_stream_aborts_its_request():
    async def run(engine):
        stream = engine.generate(request("left", PROMPTS[0], 50))
        await anext(stream)
        await stream.aclose()
        assert (await engine.load()).running == 0
        with pytest.raises(EngineError, match="'twice' runs already"):
            await asyncio.gather(*(collect(engine, request("twice", PROMPTS[0], 40)) for _ in range(2)))

    drive(run)


def test_a_step_that_fails_is_the_end_of_the_engine_and_says_why():
    async def run(engine):
        engine.model.forward = lambda **_: 1 / 0
        with pytest.raises(EngineDead, match="ZeroDivisionError"):
            await collect(engine, request("dies", PROMPTS[0]))
        with pytest.raises(EngineDead, match="ZeroDivisionError"):
            await engine.health()

    drive(run)


def test_a_saved_model_is_loaded_in_another_dtype(tmp_path):
    transformers.LlamaForCausalLM(llama()).save_pretrained(tmp_path)

    async def run():
        engine = TransformersEngine(str(tmp_path), dtype="bfloat16")
        await engine.start()
        assert engine.model.dtype == torch.bfloat16
        generation = await collect(engine, request("x", PROMPTS[0]))
        await engine.close()
        with pytest.raises(EngineError, match="the engine was closed"):
            await engine.health()
        return generation

    assert len(asyncio.run(run()).token_ids) == 12
