"""How large the library may be is held: what is above its limit is found, whatever it is counted by."""

import json
import re
from functools import cache

import pytest

import budgets
from budgets import Budget, figures_of_files, figures_of_sources, functions_with_many_options, mentions
from programs import run_program
from rlinf_scheduler.rooms import ROOMS

PAGE = (budgets.ROOT / "docs/how-the-parts-fit.md").read_text(encoding="utf-8")
SOURCE = budgets.ROOT / "src/rlinf_scheduler"
OPTIONS = ", ".join(f"option_{number}" for number in range(7))


def test_a_figure_above_its_limit_fails_and_one_well_below_says_that_the_limit_can_be_lowered():
    budget = Budget(limit=100, aim=50)
    assert budget.verdict(101) == "is above its limit by 1"
    assert budget.verdict(100) == budget.verdict(95) == ""
    assert budget.verdict(94) == "is so small that its limit can be lowered"


def test_a_report_names_what_is_above_its_limit():
    limits = {"words": Budget(10, 5), "lines": Budget(100, 80), "walks": Budget(1, 1)}
    told, kept = budgets.report({"words": 10, "lines": 101}, limits)
    assert not kept
    assert [line.rpartition(": ")[2] for line in told] == ["words", "lines, which is above its limit by 1"]
    assert budgets.report({"words": 10, "lines": 100}, limits)[1]


def test_sources_are_counted_by_what_they_are(tmp_path):
    for path, text in {
        "docs/glossary.md": "| word | meaning |\n|---|---|\n| **arena** | memory |\n| **node** | a machine |\n",
        "src/rlinf/scheduler/face.py": "one\n",
        "simulator/story.py": "one\ntwo\n",
        "src/rlinf_scheduler/weights/plan.py": "one\n",
        "src/rlinf_scheduler/engines/vllm.py": "one\ntwo\n",
        "src/rlinf_scheduler/channel/server.py": "leased = LeaseTable\nadmitted = 3\ntape = 1\n",
        "src/rlinf_scheduler/mailbox/taps.py": "shard = 4\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    figures = figures_of_sources(tmp_path)
    assert figures == {
        "lines of src and the simulator": 10,
        "lines of src": 5,
        "lines of weights": 1,
        "lines of engines": 2,
        "lines of the face": 1,
        "words of the glossary": 2,
        "functions with seven options": 0,
        "files of queues that mention admission": 1,
        "files of queues that mention leases": 1,
        "files of queues that mention taps": 0,
        "files of queues that mention shards": 0,
    }
    assert figures.keys() < budgets.budgets().keys()


@pytest.mark.parametrize("text", ["untap tap", "ChannelTap", "taps = _tapped", "TAPS", "a tap."])
def test_a_word_is_found_in_every_part_of_a_name(text):
    assert mentions(text, budgets.FEATURES["taps"])


def test_a_part_of_another_word_is_no_mention():
    assert not mentions("staple: Tapestry", budgets.FEATURES["taps"])


def test_functions_with_seven_options_are_counted_apart_from_what_users_call():
    files = {
        "src/rlinf_scheduler/channel/client.py": (
            f"class Channel(Getting[int]):\n    def put(self, {OPTIONS}): ...\n    def _put(self, {OPTIONS}): ...\n"
        ),
        "src/rlinf_scheduler/channel/access.py": f"class Getting:\n    def get(self, {OPTIONS}): ...\n",
        "src/rlinf_scheduler/channel/state.py": (
            f"class State:\n    def put(self, {OPTIONS}): ...\n    def six(self, {OPTIONS[:-10]}): ...\n"
        ),
        "src/rlinf_scheduler/cli/plan.py": f"def plan({OPTIONS}): ...\n",
        "src/rlinf/scheduler/face.py": f"def old({OPTIONS}): ...\n",
    }
    assert functions_with_many_options(files) == [
        "src/rlinf_scheduler/channel/client.py:3 Channel._put",
        "src/rlinf_scheduler/channel/state.py:2 State.put",
    ]


@cache
def walks_on(ray_address):
    """The files of common calls, in the order in which these enter them."""
    ran = run_program(budgets.HERE / "walks.py", ray_address, with_ray=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.ray
def test_common_calls_enter_no_room(ray_address):
    of_rooms = tuple(f"{SOURCE / room}/" for room in ROOMS)
    entered = walks_on(ray_address).values()
    assert not [path for paths in entered for path in paths if path.startswith(of_rooms)]


@pytest.mark.ray
def test_common_calls_enter_no_more_files_than_their_limits(ray_address):
    walks = dict(walks_on(ray_address))
    # Where an answer is late, as on a machine that is busy, a thread waits for it by a promise.
    walks["a put and get"] = [
        path for path in walks["a put and get"] if not path.endswith("/comm/promise.py")
    ]
    figures = figures_of_files(walks)
    held = {name: budget for name, budget in budgets.budgets().items() if name in figures}
    assert len(held) == 4
    assert not {name: figures[name] for name, budget in held.items() if figures[name] > budget.limit}


@pytest.mark.ray
@pytest.mark.parametrize(
    ("heading", "walk"),
    [
        ("Walk 1: an item", "a put and get"),
        ("Walk 2: a call", "a call of a group"),
        ("Walk 3: a launch", "a launch of two ranks"),
    ],
)
def test_walks_on_the_page_are_those_of_the_code(ray_address, heading, walk):
    section = PAGE.partition(f"## {heading}")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `([\w/.]+\.py)` \|", section, re.MULTILINE)
    entered = [path.partition("/src/rlinf_scheduler/")[2] for path in walks_on(ray_address)[walk]]
    assert len(named) > 10
    assert [path for path in named if path not in entered] == []
    assert sorted(named, key=entered.index) == named


def test_the_page_on_parts_names_files_and_constants_that_are_there():
    for path, constant in re.findall(r"`([\w/]+(?:\.py|/))`(?:: `([A-Z_]+)`)?", PAGE):
        there = budgets.ROOT / path if path.startswith(("src/", "simulator/")) else SOURCE / path
        assert there.exists(), path
        assert not constant or f"\n{constant} = " in there.read_text(encoding="utf-8"), constant
