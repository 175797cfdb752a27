"""Reading YAML files: numbers stay as written, lines are known, and no file breaks the reader."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.config import read_cluster_config
from rlinf_scheduler.config.yaml_file import FilePosition, parse_yaml, read_yaml_file
from rlinf_scheduler.errors import ConfigError


def value_of(text):
    return parse_yaml(f"key: {text}", "f").data["key"]


@pytest.mark.parametrize(
    "text", ["1:0", "12:30:45", "010", "1_000", "0x8", "no", "off", "2026-01-02", "1:0.5"]
)
def test_what_yaml_once_read_as_something_else_stays_text(text):
    assert value_of(text) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-3", -3),
        ("75", 75),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("true", True),
        ("~", None),
        ("", None),
        ("'5'", "5"),
    ],
)
def test_numbers_and_words_are_read(text, value):
    read = value_of(text)
    assert read == value
    assert type(read) is type(value)


def test_places_of_keys_and_entries_are_known():
    content = parse_yaml("a:\n  b:\n    - 1\n    - c: 'x y'\n", "f")
    assert content.places == {
        "a": FilePosition(1, "a:", (0, 1)),
        "a.b": FilePosition(2, "  b:", (2, 3)),
        "a.b[0]": FilePosition(3, "    - 1", (6, 7), (6, 7)),
        "a.b[1]": FilePosition(4, "    - c: 'x y'", (6, 14)),
        "a.b[1].c": FilePosition(4, "    - c: 'x y'", (6, 7), (9, 14)),
    }


def test_anchors_and_merges_are_read():
    content = parse_yaml("base: &b {k: 1}\nuse:\n  <<: *b\n  l: 2\n", "f")
    assert content.data["use"] == {"k": 1, "l": 2}


def test_the_variables_of_a_merged_mapping_are_text_too_wherever_that_stands():
    text = "a:\n  deep:\n    down: &b {env_vars: {X: +5}}\nuse:\n  <<: *b\n  l: 2\n"
    assert parse_yaml(text, "f").data["use"] == {"env_vars": {"X": "+5"}, "l": 2}


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("", "f", "the file is empty"),
        ("- 1", "f", "the file is a list"),
        ("a: 1\nb: [1", "f:2", "this is not YAML"),
        ("a: 1\na: 2", "f:2", "the key 'a' stands here twice"),
        ("a: &x [*x]", "f:1", "a value holds itself"),
        ("a: *b", "f:1", "undefined alias"),
        ("a: !!python/object:os.system x", "f:1", "could not determine a constructor"),
        ("a: !!timestamp x", "f:1", "could not determine a constructor"),
        ("a: !!int x", "f", "a value cannot be read"),
        ("a: !!bool perhaps", "f", "a value cannot be read"),
        ("? [1]\n: 2", "f:1", "unhashable key"),
        ("a: " + "1" * 5000, "f", "a value cannot be read"),
        ("[" * 800, "f", "a value cannot be read"),
        ("\x00", "f", "this is not YAML"),
        ("a: 1\n--- \nb: 2", "f:2", "this is not YAML"),
    ],
)
def test_text_that_is_no_config_is_a_config_error(text, place, problem):
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f")
    assert caught.value.file == place
    assert problem in caught.value.problem


def test_tabs_are_named_as_what_is_wrong():
    with pytest.raises(ConfigError) as caught:
        parse_yaml("cluster:\n\tnum_nodes: 1\n", "f")
    assert caught.value.file == "f:2"
    assert "indent with spaces" in caught.value.hint


def test_aliases_of_aliases_do_not_fill_the_memory():
    rows = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(ConfigError, match="aliases of aliases"):
        parse_yaml("\n".join(rows), "f")


@given(st.text("ab:-[]{}&*!?|>'\"#,\n 01~<\t%@", max_size=40))
def test_any_text_is_a_mapping_or_a_config_error(text):
    with suppress(ConfigError):
        assert isinstance(parse_yaml(text, "f").data, dict)


def test_file_that_cannot_be_read_is_a_config_error(tmp_path):
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: \xe9")
    for file, problem in (
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path, "directory"),
        (latin, "not UTF-8"),
    ):
        with pytest.raises(ConfigError, match=problem) as caught:
            read_yaml_file(file)
        assert caught.value.file == str(file)


def test_file_may_hold_the_section_alone(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text("num_nodes: 2\nsimulate: 1y\n")
    with pytest.raises(ConfigError) as caught:
        read_cluster_config(file)
    assert caught.value.file == f"{file}:2"
    assert caught.value.path == "cluster.simulate"


def test_error_about_a_missing_key_names_the_line_of_its_parent(tmp_path):
    file = tmp_path / "conf.yaml"
    file.write_text("mine: 1\ncluster:\n  node_groups:\n    - label: a\n")
    with pytest.raises(ConfigError) as caught:
        read_cluster_config(file)
    assert caught.value.file == f"{file}:4"


def test_interpolations_of_a_file_are_resolved(tmp_path):
    file = tmp_path / "conf.yaml"
    file.write_text(
        "n: 3\nmine: ${nowhere}\ncluster:\n  num_nodes: ${n}\n  component_placement:\n    a: 1:0\n"
    )
    config = read_cluster_config(file)
    assert config.num_nodes == 3
    assert config.rules[0].text == "1:0"
