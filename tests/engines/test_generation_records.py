"""Requests and answers of engines: what does not fit is said, and what was aborted goes on where it was."""

import asyncio
import importlib.util
import signal

import numpy as np
import pytest

from effort import case
from rlinf_scheduler import engines, errors
from rlinf_scheduler.engines import Generation, GenerationRequest, Sampling, Tokens, collect


def request(**given):
    return GenerationRequest(**{"request_id": "a", "prompt_ids": (1, 2), "sampling": Sampling(4), **given})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Sampling(0), "at least one token"),
        (lambda: Sampling(1, temperature=-1), "temperature=-1 is negative"),
        (lambda: Sampling(1, top_p=0), "top_p=0"),
        (lambda: Sampling(1, top_k=0), "top_k=0"),
        (lambda: request(prompt_ids=()), "'a' has no prompt"),
        (lambda: request(prompt_ids=(1, -1)), r"'a': prompt_ids\[1\] is -1, and a token id is 0 or more"),
        (lambda: request(output_ids=(1,)), "1 tokens, 0 log-probabilities and 0 versions"),
        (
            lambda: request(output_ids=(1,) * 4, output_logprobs=(0.0,) * 4, output_versions=(1,) * 4),
            "max_tokens=4 leaves none",
        ),
    ],
)
def test_what_cannot_be_generated_is_refused_where_it_is_made(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("hello", r"'a': prompt_ids\[0\] is 'h', and a token id is an integer; text is tokenised before"),
        ((1, 2.0), r"prompt_ids\[1\] is 2.0"),
        ((1, True), r"prompt_ids\[1\] is True"),
    ],
)
def test_what_is_no_token_id_is_refused_where_it_is_made(prompt, says):
    with pytest.raises(TypeError, match=says):
        request(prompt_ids=prompt)


def test_integers_of_arrays_are_token_ids():
    prompt = request(prompt_ids=np.arange(3)).prompt_ids
    assert prompt == (0, 1, 2)
    assert {type(token) for token in prompt} == {int}


def test_a_generation_has_one_version_and_one_log_probability_a_token():
    stream = [Tokens((5, 6), (-1.0, -2.0), 3), Tokens((), (), 4), Tokens((7,), (-3.0,), 4, "stop")]
    assert Generation.of(request(), stream) == Generation((5, 6, 7), (-1.0, -2.0, -3.0), (3, 3, 4), "stop")


def test_a_stream_that_has_not_ended_is_no_generation():
    for stream in ([], [Tokens((5,), (-1.0,), 3)]):
        with case(stream), pytest.raises(ValueError, match="has not ended"):
            Generation.of(request(), stream)


def test_an_aborted_generation_goes_on_where_it_was():
    first = Generation.of(request(), [Tokens((5, 6), (-1.0, -2.0), 3, "abort")])
    rest = request().after(first)
    assert rest.remaining == 2
    whole = Generation.of(rest, [Tokens((7, 8), (-3.0, -4.0), 4, "length")])
    assert whole == Generation((5, 6, 7, 8), (-1.0, -2.0, -3.0, -4.0), (3, 3, 4, 4), "length")


def test_all_of_a_stream_is_collected():
    class Engine:
        async def generate(self, request):
            yield Tokens(request.prompt_ids, (0.0, 0.0), 1)
            yield Tokens((9,), (0.0,), 2, "length")

    assert asyncio.run(collect(Engine(), request())).versions == (1, 1, 2)


def test_an_engine_that_is_dead_says_what_died_and_how():
    for told, text in {
        (
            "EngineCore of vLLM",
            7,
            -signal.SIGKILL,
        ): "EngineCore of vLLM (pid 7) is gone: it was ended by SIGKILL",
        ("vLLM", None, 3): "vLLM is gone: it ended with exit code 3",
        ("vLLM", 7, -200, "no more"): "vLLM (pid 7) is gone: it was ended by signal 200: no more",
        ("vLLM",): "vLLM is gone",
    }.items():
        with case(text):
            assert str(errors.EngineDead(*told)) == text


def test_names_of_engines_are_there_when_they_are_asked_for():
    assert set(dir(engines)) == set(engines.__all__)
    assert all(getattr(engines, name) for name in ("Tokens", "RolloutEngine"))
    with pytest.raises(AttributeError, match="did you mean 'VllmEngine'"):
        engines.VlmEngine  # noqa: B018


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed")
def test_an_engine_whose_library_is_not_installed_says_which_extra_brings_it():
    with pytest.raises(ModuleNotFoundError, match=r"VllmEngine needs 'vllm'.*\[vllm\]"):
        engines.VllmEngine  # noqa: B018
