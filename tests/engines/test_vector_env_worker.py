"""A rank that steps environments, against a policy at the other end of real channels."""

import threading
from pathlib import Path

import pytest
from counting_env import Counting, decide

from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler.engines import Decisions, Envs, VectorEnvWorker, Video
from rlinf_scheduler.engines.vector_env import EGL_PROBLEM_VARIABLE
from rlinf_scheduler.errors import ChannelClosed, ChannelTimeout, ConfigError
from rlinf_scheduler.session.membership import GroupMembers

DEADLINE_S = 60.0


class Policy:
    """Answers in batches until its channel is closed."""

    def __init__(self, questions):
        self.questions = questions
        self.abouts, self.version = [], 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                requests = self.questions.next_requests(8, timeout_s=DEADLINE_S)
            except ChannelClosed:
                return
            for request in requests:
                self.abouts.append(request.item.about)
                request.reply(decide(request.item, self.version))

    def close(self):
        self.questions.close()
        self._thread.join()


@pytest.fixture
def channels():
    with LocalRuntime():
        yield Channel.create("questions"), Channel.create("trajectories")


@pytest.fixture
def policy(channels):
    policy = Policy(channels[0])
    yield policy
    policy.close()


def worker(num_envs=4, *, video=None, stages=1, **options):
    return VectorEnvWorker(
        Envs(Counting, num_envs, **options), stages=stages, video=video, timeout_s=DEADLINE_S
    )


@pytest.mark.parametrize("stages", [1, 2, 9])
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_a_collection_hands_over_every_step(channels, policy, stages, autoreset):
    policy.version = 3
    envs = worker(stages=stages, autoreset=autoreset)
    collected = envs.collect(10, about="at least 3")
    trajectories = channels[1].drain()
    assert collected.num_steps == 40
    steps = sum(map(len, trajectories))
    assert steps == (40 if autoreset == "same_step" else 32)
    assert collected.returns == (6.0,) * len(collected.returns)
    assert sum(each.episode_return is not None for each in trajectories) == len(collected.lengths) >= 8
    assert {each.version for each in trajectories} == {3}
    assert {each.env for each in trajectories} == {0, 1, 2, 3}
    assert set(policy.abouts) == {"at least 3"}
    envs.close()


def test_environments_may_have_processes_of_their_own(channels, policy):
    envs = worker(2, processes=True)
    assert envs.collect(6).lengths == (3,) * 4
    envs.close()


def test_a_collection_that_is_not_answered_goes_on_later(channels):
    envs = VectorEnvWorker(Envs(Counting, 1), timeout_s=0.2)
    with pytest.raises(ChannelTimeout):
        envs.collect(5)
    channels[0].drain()
    envs._timeout_s = DEADLINE_S  # of who answers, who may be held up
    policy = Policy(channels[0])
    assert envs.collect(6).returns == (6.0, 6.0)
    policy.close()


def test_an_answer_of_another_kind_is_refused(channels):
    envs = worker(1)

    def answer():
        channels[0].next_request(timeout_s=DEADLINE_S).reply(Decisions([]))

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(ConfigError, match="has 0 rows of 'actions'"):
        envs.collect(1)
    thread.join()


def test_too_few_environments_are_refused(channels, monkeypatch):
    monkeypatch.setattr(VectorEnvWorker, "members", GroupMembers("env", (0, 1, 2)))
    with pytest.raises(ConfigError, match="2 environments are too few for 3 ranks"):
        worker(2)


def test_a_group_that_is_resized_divides_its_environments_anew(channels, policy):
    envs = worker(4, stages=2)

    def numbers():
        return [number for stage in envs._stages for number in stage._numbers]

    assert numbers() == [0, 1, 2, 3]
    envs.collect(3)
    before = envs.members
    envs.on_resize(before, GroupMembers("env", (0, 2), epoch=1))
    assert numbers() == [0, 1]
    assert envs.collect(3).num_steps == 6
    envs.on_resize(before, GroupMembers("env", (2,), epoch=2))
    assert numbers() == []


def test_environments_of_a_group_that_is_resized_do_not_begin_as_they_began_before(channels, policy):
    envs = worker(2)
    envs.collect(3)
    envs.on_resize(envs.members, GroupMembers("env", (0,), epoch=1))
    envs.collect(3)
    begins = [float(each.observations[0][2]) for each in channels[1].drain()]
    assert len(begins) == len(set(begins)) == 4


def test_mistakes_are_told(channels):
    with pytest.raises(ConfigError, match="autoreset='never': it is one of same_step, next_step"):
        worker(autoreset="never")
    with pytest.raises(ConfigError, match="there is no environment 9"):
        worker(video=Video("x", envs=[0, 9]))
    with pytest.raises(ConfigError, match="videos on request need"):
        worker().record_video()


def test_videos_are_made_of_every_nth_episode_and_on_request(channels, policy, tmp_path):
    pytest.importorskip("moviepy")
    envs = worker(2, video=Video(str(tmp_path), every=4, envs=[1]))
    envs.collect(9)
    envs.record_video()
    envs.collect(9)
    envs.close()
    names = sorted(path.name for path in Path(tmp_path).iterdir())
    assert names[0] == "env-1-episode-0.mp4"
    assert "env-1-episode-4.mp4" in names
    assert len(names) == 3


def test_who_renders_is_told_where_the_device_is_not_known(channels, monkeypatch, caplog):
    monkeypatch.setenv(EGL_PROBLEM_VARIABLE, "EGL is not installed on node 1")
    monkeypatch.setattr(
        VectorEnvWorker, "make_envs", lambda self, numbers: pytest.skip("needs no environments")
    )
    logged = []
    monkeypatch.setattr(VectorEnvWorker, "log_warning", lambda self, text: logged.append(text))
    with pytest.raises(pytest.skip.Exception):
        worker(video=Video("x"))
    assert logged == [
        "what is rendered may be rendered on another rank's device: EGL is not installed on node 1"
    ]
