"""Joining a Ray in every mode of authentication, its own and this process's."""

import time
from types import SimpleNamespace

import pytest

from fake_gcs import as_ray, listening
from rlinf_scheduler.errors import ClusterError, ClusterTimeout
from rlinf_scheduler.ray_backend import authentication
from rlinf_scheduler.ray_backend.authentication import Access, authentication_at, host_and_port

RIGHT, WRONG = "right-" * 8, "wrong-" * 8
PLACES = {"file": "named", "ours": ".rlinf/ray_token", "home": ".ray/auth_token"}


@pytest.fixture
def environment(tmp_path):
    """What a process has: a token in a variable, in a file that a variable names, or in its home folder."""

    def make(mode=None, **tokens):
        made = {"HOME": str(tmp_path)}
        if mode is not None:
            made["RAY_AUTH_MODE"] = mode
        for place, token in tokens.items():
            if place == "variable":
                made["RAY_AUTH_TOKEN"] = token
                continue
            path = tmp_path / PLACES[place]
            path.parent.mkdir(exist_ok=True)
            path.write_text(token)
            if place == "file":
                made["RAY_AUTH_TOKEN_PATH"] = str(path)
        return made

    return make


def joined(wanted, environment):
    with listening(as_ray(wanted)) as (host, port):
        return authentication_at(f"{host}:{port}", environment, 60)


@pytest.mark.parametrize("mode", [None, "token", "TOKEN"])
@pytest.mark.parametrize("place", ["variable", "file", "ours", "home"])
def test_a_ray_with_a_token_is_joined_with_that_token_wherever_it_lies(environment, mode, place):
    access = joined(RIGHT, environment(mode, **{place: RIGHT}))
    assert (access.mode, access.token.value) == ("token", RIGHT)


@pytest.mark.parametrize(("ours", "home"), [(RIGHT, WRONG), (WRONG, RIGHT)])
def test_of_ours_and_rays_the_one_that_is_accepted_is_told_to_rays_processes(
    environment, tmp_path, ours, home
):
    right = PLACES["ours" if ours == RIGHT else "home"]
    settings = joined(RIGHT, environment(ours=ours, home=home)).settings()
    assert settings == {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / right)}


def test_where_both_are_refused_both_are_named(environment):
    with pytest.raises(
        ClusterError, match=r"refuses the token of .*\.rlinf/ray_token .* and .*\.ray/auth_token"
    ):
        joined(RIGHT, environment(ours=WRONG, home="wrong-as-well"))


def test_a_ray_that_is_too_busy_to_answer_at_once_has_refused_no_token(environment):
    asked = []

    def busy(question):
        if b"authorization" in question:
            asked.append(question)
        return b"" if len(asked) == 1 else as_ray(RIGHT)(question)

    with listening(busy) as (host, port):
        assert authentication_at(f"{host}:{port}", environment(home=RIGHT), 60).token.value == RIGHT
    assert len(asked) == 2


def test_a_ray_that_does_not_answer_a_token_in_time_is_told_with_all_of_the_time(environment, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(authentication, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def slow(question):
        clock.now += 8.0
        return b"" if b"authorization" in question else as_ray(RIGHT)(question)

    told = r"asks for a token \(mode 'token'\), and says nothing to the token of .*, after 10\.0 s"
    with listening(slow) as (host, port), pytest.raises(ClusterTimeout, match=told):
        authentication_at(f"{host}:{port}", environment(home=RIGHT), 10)


@pytest.mark.parametrize("mode", [None, "disabled"])
@pytest.mark.parametrize("place", ["variable", "file", "home", None])
def test_a_ray_without_a_token_is_joined_without_whatever_lies_there(environment, mode, place):
    access = joined(None, environment(mode, **({place: RIGHT} if place else {})))
    assert access.settings() == {"RAY_AUTH_MODE": "disabled"}


@pytest.mark.parametrize("mode", [None, "token"])
def test_without_a_token_the_refusal_says_mode_and_where_one_was_looked_for(environment, mode):
    with pytest.raises(
        ClusterError,
        match=r"asks for a token \(mode 'token'\).*RAY_AUTH_TOKEN_PATH, ~/.rlinf/ray_token and ~/.ray",
    ):
        joined(RIGHT, environment(mode))


@pytest.mark.parametrize(
    ("place", "named"),
    [("variable", "the variable RAY_AUTH_TOKEN"), ("file", "named"), ("home", "auth_token")],
)
def test_a_wrong_token_is_named_by_mode_place_and_fingerprint(environment, place, named):
    with pytest.raises(ClusterError, match=rf"\(mode 'token'\) refuses the token of .*{named} \(fingerprint"):
        joined(RIGHT, environment(**{place: WRONG}))


def test_a_variable_is_what_counts_even_where_the_home_folder_has_the_right_one(environment):
    with pytest.raises(ClusterError, match="refuses the token of the variable RAY_AUTH_TOKEN"):
        joined(RIGHT, environment(variable=WRONG, home=RIGHT))


@pytest.mark.parametrize(
    ("wanted", "mode", "told"),
    [
        (RIGHT, "disabled", "asks for a token .*RAY_AUTH_MODE=disabled is set: unset it"),
        (None, "token", r"without authentication \(mode 'disabled'\), and here RAY_AUTH_MODE=token is set"),
    ],
)
def test_a_mode_that_this_user_has_set_is_not_changed_behind_his_back(environment, wanted, mode, told):
    with pytest.raises(ClusterError, match=told):
        joined(wanted, environment(mode, home=RIGHT))


def test_a_refusal_does_not_wait(environment):
    begun = time.monotonic()
    with pytest.raises(ClusterError, match="token"), listening(as_ray(RIGHT)) as (host, port):
        authentication_at(f"{host}:{port}", environment(), 120)
    assert time.monotonic() - begun < 60


def test_who_is_no_ray_is_told_at_the_deadline(environment):
    with (
        listening(lambda question: b"HTTP/1.1 400 Bad Request\r\n\r\n") as (host, port),
        pytest.raises(ClusterTimeout, match=f"what listens at {host}:{port} does not answer as a Ray does"),
    ):
        authentication_at(f"{host}:{port}", environment(), 1.0)
    with pytest.raises(ClusterTimeout, match=r"no Ray answers at 127\.0\.0\.1:1"):
        authentication_at("127.0.0.1:1", environment(), 0)


@pytest.mark.parametrize("variable", ["RAY_USE_TLS", "RAY_ENABLE_K8S_TOKEN_AUTH"])
def test_what_others_check_is_left_to_them(environment, variable):
    assert authentication_at("127.0.0.1:1", {**environment(), variable: "1"}, 0) == Access()


@pytest.mark.parametrize("text", ["127.0.0.1", "host:port", ":1", "ray://h:1", "h:99999"])
def test_what_is_no_address_is_told(text):
    with pytest.raises(ClusterError, match="'HOST:PORT'"):
        host_and_port(text)


def test_an_address_of_version_six_has_brackets():
    assert host_and_port("[fd00::1]:6379") == ("fd00::1", 6379)
