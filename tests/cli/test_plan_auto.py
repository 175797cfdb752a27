"""`rlinf plan --auto`: from a report's figures to a split, a placement and a picture."""

import json
from xml.etree import ElementTree

import pytest

from plan_files import rlinf

CONFIG = """\
cluster:
  component_placement:
    rollout: 0-3:0-1
    actor: 4-7
    env: {node_group: node, placement: 0:0-3}
"""


def group(name, num_ranks, busy, waiting=0.0):
    methods = [{"spent": {"count": 1, "share": 1.0}}]
    figures = {"lived_s": 100.0, "busy": busy, "waiting": waiting, "cores": 0.0}
    return {"name": name, "num_ranks": num_ranks, "methods": methods, **figures}


def report(file, step_s, *groups, count=10):
    file.write_text(json.dumps({"groups": groups, "step": {"count": count, "mean_s": step_s}}))
    return str(file)


@pytest.fixture
def measured(tmp_path):
    groups = group("rollout", 2, 0.9), group("actor", 4, 0.3), group("env", 4, 0.05)
    return report(tmp_path / "report.json", 9.3, *groups)


def auto(conf, *arguments):
    return rlinf("plan", conf(CONFIG), "--nodes", "1x8", "--auto", *arguments)


def test_the_best_splits_are_shown_and_the_first_as_a_placement(conf, measured):
    result = auto(conf, measured)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "a step takes 9.3 s; its phases run side by side, by which it would be 9 s",
        "component  devices  of a step  divides           does not",
        "rollout          4        9 s  36 s of a device  -",
        "actor            4        3 s  12 s of a device  -",
        "",
        "expected on 8 accelerators:",
        "step  against now  split",
        " 6 s       1.50 x  rollout on 6; actor on 2",
        " 6 s       1.50 x  rollout and actor on 8",
        "",
        "component_placement:",
        "  rollout: 0-5:0-2",
        "  actor: 6-7",
    ]


def test_a_step_that_the_figures_do_not_explain_is_told(conf, tmp_path):
    groups = group("rollout", 2, 0.4), group("actor", 4, 0.3), group("env", 4, 0.05)
    told = auto(conf, report(tmp_path / "report.json", 12.5, *groups)).stdout
    assert (
        "note: work is 60% of the measured step: components wait for each other, or share processors" in told
    )


def test_phases_may_be_said(conf, measured):
    result = auto(conf, measured, "--phases", "in-turn")
    assert "rollout and actor on 8" in result.stdout.splitlines()[7]
    assert "  actor: 0-7" in result.stdout


def test_several_reports_tell_what_does_not_divide(conf, measured, tmp_path):
    other = report(tmp_path / "other.json", 7.5, group("rollout", 3, 0.7), group("actor", 2, 0.6))
    rows = [line.split() for line in auto(conf, other, "--auto", measured).stdout.splitlines()]
    assert ["rollout", "4", "9", "s", "24", "s", "of", "a", "device", "3", "s"] in rows


def test_memory_keeps_components_apart(conf, measured, tmp_path):
    fleet = tmp_path / "fleet.yaml"
    devices = "{type: NVIDIA, count: 8, memory_bytes: 80000000000}"
    fleet.write_text(f"version: 1\nnodes: [{{accelerators: {devices}}}]\n")
    asked = ("--fleet", str(fleet), "--auto", measured, "--memory", "actor=60", "--memory", "rollout=30")
    result = rlinf("plan", conf(CONFIG), *asked)
    assert result.exit_code == 0
    assert "rollout and actor" not in result.stdout


def test_the_curve_is_drawn(conf, measured, tmp_path):
    file = tmp_path / "curve.svg"
    assert auto(conf, measured, "--curve", str(file)).exit_code == 0
    drawn = ElementTree.parse(file).getroot()
    texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "6 s on 6" in texts
    assert "now 9.3 s" in texts


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("not json", "is no report"),
        ("{}", "is no report"),
        (json.dumps({"groups": [], "step": None}), "has no steps"),
        ("[" * 100_000, "is no report"),
        (json.dumps({"groups": [], "step": {"count": 1, "mean_s": "x"}}), "is no report"),
        (json.dumps({"groups": [group("actor", 4, float("nan"))], "step": None}), "is no report"),
        (
            json.dumps({"groups": [group("judge", 1, 0.5)], "step": {"count": 1, "mean_s": 1.0}}),
            "there are 'judge'",
        ),
    ],
)
def test_what_is_no_report_is_refused(conf, tmp_path, content, said):
    file = tmp_path / "other.json"
    file.write_text(content)
    result = auto(conf, str(file))
    assert result.exit_code == 2
    assert said in result.stderr


def test_options_that_mean_nothing_are_refused(conf, measured, tmp_path):
    assert "there are 'rollout', 'actor'" in auto(conf, measured, "--memory", "judge=4").stderr
    assert "is not COMPONENT=GB" in auto(conf, measured, "--memory", "actor").stderr
    assert "in-turn" in auto(conf, measured, "--phases", "together").stderr
    assert "memory of the accelerators is not known" in auto(conf, measured, "--memory", "actor=4").stderr
    assert "are of --auto" in rlinf("plan", conf(CONFIG), "--nodes", "1x8", "--memory", "actor=4").stderr
    assert "cannot be read" in auto(conf, str(tmp_path / "nowhere.json")).stderr
    assert "--auto takes" in auto(conf, measured, "--json").stderr


def test_a_component_that_is_not_in_the_report_is_not_left_out_of_the_split(conf, tmp_path):
    others = group("Rollout", 2, 0.9), group("actor", 4, 0.3)
    said = auto(conf, report(tmp_path / "report.json", 9.3, *others)).stderr
    assert "no group of this name has worked" in said
    assert "there are 'Rollout', 'actor'" in said


def test_the_time_of_calls_that_wait_side_by_side_has_to_be_said(conf, tmp_path):
    groups = group("rollout", 2, 0.0, waiting=10.8), group("actor", 4, 0.3)
    file = report(tmp_path / "report.json", 9.3, *groups)
    assert "does not tell for how long 'rollout' is at work" in auto(conf, file).stderr
    result = auto(conf, file, "--at-work", "rollout=9")
    assert "rollout          4        9 s  36 s of a device  -" in result.stdout
    assert "is given 2 times" in auto(conf, file, *["--at-work", "rollout=9"] * 2).stderr
    assert "is not COMPONENT=SECONDS" in auto(conf, file, "--at-work", "rollout").stderr


def test_processes_go_on_sharing_devices(conf, tmp_path):
    file = report(tmp_path / "report.json", 9.0, group("rollout", 8, 0.9), group("actor", 4, 0.3))
    config = CONFIG.replace("0-3:0-1", "0-3:0-7")
    result = rlinf("plan", conf(config), "--nodes", "1x8", "--auto", file)
    assert "  rollout: 0-5:0-11" in result.stdout


def test_phases_on_the_same_devices_are_told_by_their_sum(conf, tmp_path):
    file = report(tmp_path / "report.json", 11.0, group("rollout", 4, 0.7), group("actor", 4, 0.4))
    config = CONFIG.replace("0-3:0-1", "0-3").replace("4-7", "0-3")
    told = rlinf("plan", conf(config), "--nodes", "1x4", "--auto", file).stdout
    assert told.startswith("a step takes 11 s; its phases run in turn, by which it would be 11 s")
    assert "`--phases` says which it is" in told
    asked = rlinf("plan", conf(config), "--nodes", "1x4", "--auto", file, "--phases", "in-turn").stdout
    assert "says which it is" not in asked
