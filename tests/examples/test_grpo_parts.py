"""The parts of the post-training that wait for nobody."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from post_training.grpo import (
    Learner,
    TokenBatch,
    group_advantages,
    micro_batches,
    objective,
    proximal_log_probs,
)
from post_training.model import Transformer, make_model
from post_training.progress import Progress
from post_training.records import Answer, Group
from post_training.settings import parse_settings
from post_training.task import SortingTask
from post_training.writer import Writer
from rlinf_scheduler.channel import ShardBatch
from rlinf_scheduler.engines import GenerationRequest, Sampling, collect
from rlinf_scheduler.errors import ConfigErrors

BASE = Path(__file__).parents[2] / "examples" / "grpo" / "conf" / "base.yaml"
CPU = torch.device("cpu")


def plain_settings():
    return OmegaConf.to_container(OmegaConf.load(BASE).training)


@pytest.fixture(params=["own", "transformers"])
def settings(request):
    if request.param != "own":
        pytest.importorskip(request.param)
    loaded = parse_settings(plain_settings())
    return replace(loaded, model=replace(loaded.model, width=16, kind=request.param))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def task(settings):
    return SortingTask(settings.task, seed=0)


@pytest.fixture
def model(settings):
    model = make_model(settings.model, settings.task)
    head = model.head if isinstance(model, Transformer) else model.lm_head
    torch.nn.init.normal_(head.weight, std=0.5)  # not all tokens equally likely
    return model


def asked(task, prompt, sample):
    prompt_ids = (*task.prompt(prompt), task.start)
    return GenerationRequest(
        f"{prompt}/{sample}", prompt_ids, Sampling(task.max_answer, stop_token_ids=(task.end,))
    )


async def generated(writer, requests):
    await writer.start()
    try:
        return await asyncio.gather(*(collect(writer, request) for request in requests))
    finally:
        await writer.close()


def written(model, settings, task, num_prompts, group_size=4, num_slots=5):
    writer = Writer(model, settings.model, task, num_slots)
    writer.version = 3
    requests = [asked(task, prompt, sample) for prompt in range(num_prompts) for sample in range(group_size)]
    generations = asyncio.run(generated(writer, requests))
    groups = []
    for prompt in range(num_prompts):
        its = tuple(map(Answer.of, generations[prompt * group_size : (prompt + 1) * group_size]))
        symbols = np.array(task.prompt(prompt), np.int64)
        rewards = [task.reward(symbols.tolist(), answer.tokens.tolist()) for answer in its]
        proximal = np.concatenate([answer.log_probs for answer in its])
        rewards, advantages = np.array(rewards, np.float32), group_advantages(rewards)
        groups.append(Group(prompt, symbols, its, rewards, advantages, proximal, 3))
    return groups


@pytest.mark.parametrize("num_turns", range(4))
@pytest.mark.parametrize("num_waiting", [0, 1])
def test_a_pause_that_finishes_ends_where_what_runs_is_given_up(
    model, settings, task, num_turns, num_waiting
):
    async def pause_and_go_on():
        writer = Writer(model, settings.model, task, num_slots=1)
        await writer.start()
        first, *waiting = (
            asyncio.create_task(collect(writer, asked(task, 0, sample))) for sample in range(1 + num_waiting)
        )
        while not (await writer.load()).running:
            await asyncio.sleep(0)
        pausing = asyncio.create_task(writer.pause("finish"))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait_for(pausing, 60)
        assert not any(each.done() for each in waiting)
        await writer.resume()
        await asyncio.wait_for(asyncio.gather(*waiting), 60)
        await writer.health()
        await writer.close()

    asyncio.run(pause_and_go_on())


def test_an_answer_that_was_aborted_goes_on_where_it_was(model, settings, task):
    writer = Writer(model, settings.model, task, num_slots=2)

    async def in_two_parts():
        await writer.start()
        whole = asyncio.create_task(collect(writer, replace(asked(task, 0, 0), sampling=Sampling(20))))
        while (await writer.load()).tokens < len(task.prompt(0)) + 6:
            await asyncio.sleep(0)
        await writer.pause("abort")
        first = await whole
        await writer.resume()
        writer.version = 1
        second = await collect(writer, replace(asked(task, 0, 0), sampling=Sampling(20)).after(first))
        await writer.close()
        return first, second

    first, second = asyncio.run(in_two_parts())
    assert (first.finish_reason, second.finish_reason) == ("abort", "length")
    num_first = len(first.token_ids)
    assert second.token_ids[:num_first] == first.token_ids
    assert second.versions == (0,) * num_first + (1,) * (20 - num_first)
    answer = Answer.of(second)
    symbols = np.array(task.prompt(0), np.int64)
    group = Group(0, symbols, (answer,), np.zeros(1, np.float32), np.zeros(1, np.float32))
    (log_probs,) = proximal_log_probs(model, [group], task.start, CPU)
    np.testing.assert_allclose(log_probs, answer.log_probs, atol=1e-5)


def test_each_answer_is_written_in_whole_with_the_probabilities_of_one_pass(model, settings, task):
    groups = written(model, settings, task, num_prompts=6)
    assert [(group.prompt, len(group.answers)) for group in groups] == [(prompt, 4) for prompt in range(6)]
    for group, log_probs in zip(groups, proximal_log_probs(model, groups, task.start, CPU), strict=True):
        np.testing.assert_allclose(log_probs, group.proximal, atol=1e-5)
        for answer in group.answers:
            ends = np.flatnonzero(answer.tokens == task.end).tolist()
            assert ends == [len(answer.tokens) - 1] or (not ends and len(answer.tokens) == task.max_answer)
            assert answer.version == 3


def test_lengths_of_prompts_are_heavy_tailed_and_prompts_are_a_function_of_their_number(settings):
    task, again = SortingTask(settings.task, seed=5), SortingTask(settings.task, seed=5)
    lengths = [len(task.prompt(number)) for number in range(2000)]
    assert [again.prompt(number) for number in (7, 3)] == [task.prompt(7), task.prompt(3)]
    assert np.median(lengths) == settings.task.median_length
    assert max(lengths) == settings.task.max_length
    assert np.mean(lengths) > 1.2 * np.median(lengths)


def test_micro_batches_give_the_gradient_of_the_whole_step_whatever_the_ranks_have(model, settings, task):
    groups = written(model, settings, task, num_prompts=7)
    num_written = sum(group.num_written for group in groups)

    def gradient(parts):
        model.zero_grad()
        learner = Learner(model, settings.grpo, task.start, CPU)
        for part in parts:
            for batch in micro_batches(ShardBatch(part, weights=[g.num_tokens for g in part]), 100):
                learner.add_gradient(batch, num_written)
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    whole, two_ranks = gradient([groups]), gradient([groups[:2], groups[2:]])
    assert whole.abs().max() > 1e-4
    torch.testing.assert_close(whole, two_ranks, atol=1e-6, rtol=1e-4)


def test_a_step_makes_good_answers_likelier_and_bad_ones_less_likely(model, settings, task):
    groups = written(model, settings, task, num_prompts=8)
    learner = Learner(model, settings.grpo, task.start, CPU)
    advantage = torch.from_numpy(np.concatenate([group.advantages for group in groups]))
    batch = TokenBatch.of(groups, task.start, CPU)
    advantage = advantage.repeat_interleave(batch.lengths)
    before = batch.log_probs(model).detach()
    learner.add_gradient(groups, sum(group.num_written for group in groups))
    learner.step()
    assert ((batch.log_probs(model).detach() - before) * advantage).sum() > 0


def test_objective_gives_no_gradient_beyond_the_clip_and_caps_old_tokens(settings):
    new = torch.tensor([0.5, -0.5, 0.5, -0.5, 0.0], requires_grad=True)
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0])
    behaviour = torch.tensor([0.0, 0.0, 0.0, 0.0, -9.0])
    value = objective(new, torch.zeros(5), behaviour, advantage, settings.grpo)
    value.sum().backward()
    assert (new.grad == 0).tolist() == [True, False, False, True, False]
    assert value[-1].item() == pytest.approx(settings.grpo.importance_cap)


def test_a_group_of_equal_rewards_teaches_nothing():
    assert group_advantages([0.5] * 8).tolist() == [0.0] * 8


def test_progress_knows_each_prompt_that_was_learned_from():
    progress = Progress()
    progress.add([1, 0, 4])
    progress.add([6, 2])
    assert (progress.num_steps, progress.first_left, progress.ahead) == (2, 3, {4, 6})
    prompts = iter(progress.prompts_left())
    assert [next(prompts) for _ in range(4)] == [3, 5, 7, 8]
    for again in (0, 4):
        with pytest.raises(ValueError, match="before"):
            progress.add([again])


def test_mistakes_in_the_settings_are_told_all_at_once():
    section = plain_settings()
    section["grpo"]["group_size"] = 0
    section["policy"] = "fair"
    with pytest.raises(ConfigErrors) as caught:
        parse_settings(section)
    assert {error.path for error in caught.value.each()} == {"training.grpo.group_size", "training.policy"}
