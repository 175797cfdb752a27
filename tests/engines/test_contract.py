"""What every engine of rollouts does: one model, one rank with the engine below it, and a trainer that publishes."""

import importlib.util

import numpy as np
import pytest

from engine_ranks import (
    ENGINES,
    LONGEST,
    PROMPT,
    VOCABULARY,
    EngineRank,
    TellingTrainer,
    asked,
    random_weights,
    save_model,
)
from forked_job import ForkedJob
from rlinf.scheduler import PackedPlacementStrategy
from rlinf_scheduler.engines import Tokens

START_S = 300.0
DEADLINE_S = 120.0
NEEDS = {
    "vllm": ("vllm", "transformers"),
    "openai": ("vllm", "transformers", "aiohttp"),  # the example, at vLLM's own server
    "transformers": ("transformers",),
}

pytestmark = pytest.mark.timeout(START_S + DEADLINE_S)


def check_installed(kind):
    for name in NEEDS.get(kind, ()):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    path = tmp_path_factory.mktemp("model")
    save_model(path)
    return str(path)


class Job:
    """A rank with an engine, and a trainer."""

    def __init__(self, kind, folder, **options):
        self.kind, self.job, self.folder, self.last = kind, ForkedJob(), folder, 0
        self.rank = EngineRank.create_group(kind, folder, **options).launch(
            self.job, PackedPlacementStrategy(0, 0), name="rollout"
        )
        self.trainer = TellingTrainer.create_group().launch(
            self.job, PackedPlacementStrategy(1, 1), name="actor", on_failure="restart_group"
        )
        self.rank.start().wait(START_S)

    def begin(self, scenario, *args, **options):
        return self.rank.run(scenario, *args, **options)

    def run(self, scenario, *args, **options):
        (value,) = self.begin(scenario, *args, **options).wait(DEADLINE_S)
        return value

    def publish(self, **options):
        """Publish the next version; its number, which is also the token that telling weights say."""
        self.last += 1
        self.trainer.publish(self.folder, self.last, **options).wait(DEADLINE_S)
        return self.last

    def update(self, **options):
        return self.run("update", timeout_s=60, **options)

    def close(self):
        try:
            self.rank.close().wait(DEADLINE_S)
        finally:
            self.job.close()


@pytest.fixture(scope="module", params=sorted(ENGINES))
def job(request, folder):
    check_installed(request.param)
    job = Job(request.param, folder)
    yield job
    job.close()


def reference(folder, seed, prompt, num_tokens):
    """What the model itself generates with weights of a seed: tokens, and log-probabilities of each."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder)
    model.load_state_dict(random_weights(folder, seed))
    ids, found = list(prompt), []
    with torch.no_grad():
        for _ in range(num_tokens):
            found.append(model(torch.tensor([ids])).logits[0, -1].log_softmax(-1))
            ids.append(int(found[-1].argmax()))
    return ids[len(prompt) :], torch.stack(found).numpy()


def test_tokens_and_log_probabilities_are_the_models(job, folder):
    version = job.publish(seed=1)
    assert job.update() == version
    (greedy,) = job.run("generate", asked("greedy", 12))
    tokens, logprobs = reference(folder, 1, PROMPT, 12)
    assert list(greedy.token_ids) == tokens
    np.testing.assert_allclose(greedy.logprobs, logprobs.max(axis=1), atol=1e-3)
    assert (greedy.versions, greedy.finish_reason) == ((version,) * 12, "length")


def test_log_probabilities_are_those_before_temperature_and_top_p(job, folder):
    job.publish(seed=1)
    job.update()
    first = reference(folder, 1, PROMPT, 1)[1][0]
    requests = [asked(f"warm {n}", 1, temperature=2.0, top_p=0.9, top_k=20) for n in range(8)]
    generated = job.run("generate", *requests)
    assert len({each.token_ids for each in generated}) > 1
    for each in generated:
        np.testing.assert_allclose(each.logprobs[0], first[each.token_ids[0]], atol=1e-3)


def test_many_requests_run_at_once_and_none_gets_what_is_anothers(job):
    prompts = [(5 + n, 6, 7) for n in range(24)]
    alone = [
        job.run("generate", asked(str(n), 4 + n % 5, prompt=prompt))[0]
        for n, prompt in enumerate(prompts[:4])
    ]
    together = job.run("generate", *(asked(str(n), 4 + n % 5, prompt=each) for n, each in enumerate(prompts)))
    assert [each.token_ids for each in together[:4]] == [each.token_ids for each in alone]
    assert [len(each.token_ids) for each in together] == [4 + n % 5 for n in range(24)]


def test_a_stream_yields_tokens_as_they_are_made_and_its_last_says_why_it_ended(job):
    stream = job.run("stream", asked("stream", 6))
    assert all(isinstance(each, Tokens) for each in stream)
    assert [each.finish_reason for each in stream] == [None] * (len(stream) - 1) + ["length"]
    assert len([token for each in stream for token in each.token_ids]) == 6
    assert all(len(each.token_ids) == len(each.logprobs) for each in stream)


def test_a_stop_token_is_the_last_one_and_what_is_drawn_with_a_seed_is_drawn_again(job):
    job.publish(seed=2)
    job.update()
    drawn, again = (job.run("generate", asked("drawn", 12, temperature=1.0, seed=5))[0] for _ in range(2))
    assert drawn == again
    stop = drawn.token_ids[3]
    (ended,) = job.run("generate", asked("stopped", 12, temperature=1.0, seed=5, stop_token_ids=(stop,)))
    assert ended.token_ids == drawn.token_ids[: drawn.token_ids.index(stop) + 1]
    assert ended.finish_reason == "stop"


def test_what_the_engine_cannot_take_is_said(job):
    assert "EngineError" in job.run("refused", asked("long", 4, prompt=(1,) * (LONGEST + 1)))
    said = job.run("refused", asked("unknown", 4, prompt=(1, VOCABULARY)))
    assert said.startswith("EngineError")
    assert str(VOCABULARY) in said
    said, reason = job.run("twice")
    assert "'same' runs already" in said
    assert reason == "length"


def test_some_requests_are_aborted_and_others_go_on(job):
    first, second = job.run("aborted", ["first", "nobody"])
    assert (first.finish_reason, second.finish_reason) == ("abort", "length")
    assert 0 < len(first.token_ids) < len(second.token_ids) == 200
    assert {each.finish_reason for each in job.run("aborted", None)} == {"abort"}


def test_what_was_aborted_goes_on_where_it_was(job):
    job.publish(seed=3)
    job.update()
    part, rest, whole = job.run("aborted_and_gone_on")
    assert (part.finish_reason, rest.finish_reason) == ("abort", "length")
    assert 0 < len(part.token_ids) < 60
    assert rest.token_ids == whole.token_ids
    np.testing.assert_allclose(rest.logprobs, whole.logprobs, atol=1e-3)


def test_a_stream_that_nobody_reads_any_more_runs_no_more(job):
    load = job.run("left")
    assert (load.running, load.waiting, load.tokens) == (0, 0, 0)


@pytest.mark.parametrize(("mode", "reason"), [("keep", "length"), ("finish", "length"), ("abort", "abort")])
def test_nothing_is_generated_in_a_pause(job, mode, reason):
    done, running, coming, hasty, load, paused_s = job.run("paused", mode)
    assert done == (mode != "keep", False)
    assert running.finish_reason == reason
    assert (len(running.token_ids) == 100) == (reason == "length")
    assert (coming.finish_reason, hasty) == ("length", False)
    assert load.running + load.waiting == (2 if mode == "keep" else 1)
    assert paused_s >= 0.1


def test_sleep_ends_what_runs_and_what_comes_waits(job):
    ended, done, after = job.run("slept")
    assert (ended.finish_reason, done, after.finish_reason) == ("abort", False, "length")


def test_the_load_is_what_runs(job):
    busy, idle = job.run("loaded")
    assert busy.running + busy.waiting == 3
    assert busy.tokens >= 3 * (len(PROMPT) + 1)
    assert 0 <= busy.cache_use <= 1
    assert (idle.running, idle.waiting, idle.tokens, idle.cache_use) == (0, 0, 0, 0)


def test_every_token_has_the_version_that_made_it_while_weights_are_updated_under_load(job):
    job.publish()
    job.update()
    last = job.last + 5
    asking, slow = job.begin("keep_asking", 6, last), job.begin("slow_reader", last)
    job.run("busy", 5)
    for _ in range(5):
        version = job.publish()
        assert job.update(min_version=version) == version
        (mark,) = job.run("generate", asked(f"mark {version}"))
        assert set(mark.versions) == {version}
    generated = [*asking.wait(DEADLINE_S)[0], *slow.wait(DEADLINE_S)]
    pairs = {pair for each in generated for pair in zip(each.token_ids, each.versions, strict=True)}
    assert all(token == version for token, version in pairs)
    assert len(pairs) >= 3
    assert any(len(set(each.versions)) > 1 for each in generated)


@pytest.mark.parametrize(
    "broken",
    [
        {"without": "model.layers.1.mlp.down_proj.weight"},
        {"without": "model.layers.1.self_attn.k_proj.weight"},  # which vLLM has in one tensor with others
        {"wider": "lm_head.weight"},
    ],
    ids=str,
)
def test_weights_that_do_not_fit_leave_the_version_before_in_use(job, broken):
    before = job.publish()
    job.update()
    job.publish(**broken)
    said = job.update()
    assert said.startswith(f"UpdateFailed: weights 'policy' were not updated, version {before} is in use")
    assert next(iter(broken.values())) in said or job.kind == "openai"
    (same,) = job.run("generate", asked("same"))
    assert (set(same.token_ids), set(same.versions)) == ({before}, {before})
    assert job.publish() == job.update()


def test_a_version_that_does_not_come_leaves_the_one_before_in_use(job):
    before = job.publish()
    job.update()
    said = job.run("update", min_version=before + 1, timeout_s=0.2)
    assert f"version {before} is in use" in said
    (same,) = job.run("generate", asked("same"))
    assert set(same.token_ids) == {before}


def test_a_trainer_that_has_started_anew_is_told_of_once(job):
    job.publish()
    job.update()
    job.trainer.restart(0)
    version = job.publish()
    assert "was launched anew" in job.update(min_version=version)
    assert job.update(min_version=version) == version


def test_an_update_in_a_pause_leaves_it_paused(job):
    expected = job.publish()
    version, hasty, (after,) = job.run("updated_while_paused")
    assert (version, hasty) == (expected, False)
    assert set(after.token_ids) == set(after.versions) == {expected}


def test_an_engine_that_lives_is_well(job):
    assert job.run("health") == ""


def test_an_engine_that_is_closed_ends_what_runs_and_takes_nothing_more(job):
    """The last one: the engine is gone then."""
    running, said = job.run("closed")
    assert running.finish_reason == "abort"
    assert "EngineError" in said
