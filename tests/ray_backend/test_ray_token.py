"""Where Ray's token lies, and who can read it."""

import stat

import pytest

from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.ray_backend import authentication
from rlinf_scheduler.ray_backend.authentication import (
    RayToken,
    find_tokens,
    keep_to_oneself,
    make_token,
    own_token,
    readable_by_others,
    store_token,
    token_in_rays_file,
)


@pytest.fixture
def home(tmp_path):
    """A home folder with a token in it, as Ray writes it: for everybody to read."""
    path = tmp_path / ".ray" / "auth_token"
    path.parent.mkdir()
    path.write_text("of-the-home\n")
    path.chmod(0o644)
    return tmp_path


def values_of(environment):
    return [token.value for token in find_tokens(environment)]


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_variables_count_alone_then_ours_comes_before_rays(home, tmp_path):
    named = tmp_path / "named"
    named.write_text("of-the-file")
    environment = {
        "HOME": str(home),
        "RAY_AUTH_TOKEN_PATH": str(named),
        "RAY_AUTH_TOKEN": " of-the-variable ",
    }
    assert values_of(environment) == ["of-the-variable"]
    environment["RAY_AUTH_TOKEN"] = ""
    assert values_of(environment) == ["of-the-file"]
    del environment["RAY_AUTH_TOKEN_PATH"]
    assert values_of(environment) == ["of-the-home"]
    ours = own_token(environment)
    assert values_of(environment) == [ours.value, "of-the-home"]


def test_where_there_is_none_there_is_none(tmp_path):
    assert find_tokens({"HOME": str(tmp_path)}) == []
    assert token_in_rays_file({"HOME": str(tmp_path)}) is None


def test_a_file_that_is_named_must_be_there_and_hold_something(tmp_path):
    environment = {"HOME": str(tmp_path), "RAY_AUTH_TOKEN_PATH": str(tmp_path / "missing")}
    with pytest.raises(ClusterError, match=r"RAY_AUTH_TOKEN_PATH names .*missing, which cannot be read"):
        find_tokens(environment)
    (tmp_path / "missing").touch()
    with pytest.raises(ClusterError, match="which is empty"):
        find_tokens(environment)


def test_a_token_is_told_by_its_source_and_fingerprint_and_never_shown(home):
    token = token_in_rays_file({"HOME": str(home)})
    assert "of-the-home" not in f"{token} {token!r}"
    assert str(token.path) in str(token)
    assert token.fingerprint in str(token)
    assert token.fingerprint == RayToken("of-the-home", "elsewhere").fingerprint


def test_a_token_that_is_made_is_for_nobody_else_to_read_and_not_where_ray_looks(tmp_path):
    made = own_token({"HOME": str(tmp_path)})
    assert made.path == tmp_path / ".rlinf" / "ray_token"
    assert [path.name for path in tmp_path.iterdir()] == [".rlinf"]
    assert len(made.value) == 64
    assert mode_of(made.path) == 0o600
    assert mode_of(made.path.parent) == 0o700
    assert own_token({"HOME": str(tmp_path)}) == made
    assert [path.name for path in made.path.parent.iterdir()] == ["ray_token"]


def test_of_two_that_make_one_at_once_both_have_the_same(tmp_path):
    path = tmp_path / "auth_token"
    assert store_token(path, "first").value == "first"
    assert make_token(path).value == "first"


def test_an_empty_file_is_no_token_and_is_told(tmp_path):
    (tmp_path / "auth_token").touch()
    with pytest.raises(ClusterError, match="auth_token is there and is empty"):
        make_token(tmp_path / "auth_token")


def test_rays_file_is_neither_taken_for_a_ray_of_ours_nor_changed(home):
    made = own_token({"HOME": str(home)})
    rays = token_in_rays_file({"HOME": str(home)})
    assert made.value != rays.value
    assert mode_of(rays.path) == 0o644
    assert readable_by_others(rays)


def test_what_was_copied_for_everybody_to_read_is_taken_from_them(tmp_path):
    made = own_token({"HOME": str(tmp_path)})
    made.path.chmod(0o644)
    assert own_token({"HOME": str(tmp_path)}) == made
    assert mode_of(made.path) == 0o600
    assert not readable_by_others(made)
    assert not keep_to_oneself(made)


def test_a_file_of_another_user_stays_as_it_is(home, monkeypatch):
    monkeypatch.setattr(authentication.os, "getuid", lambda: 12345)
    token = token_in_rays_file({"HOME": str(home)})
    assert not keep_to_oneself(token)
    assert mode_of(token.path) == 0o644


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match="no token can be kept in"):
        make_token(tmp_path / "file" / "auth_token")
