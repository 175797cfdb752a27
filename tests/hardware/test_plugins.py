"""Hardware of other packages: a real one is installed, used, broken, and in another's way."""

import textwrap

import pytest

from programs import run_program

PLAN = """
from rlinf.scheduler import ComponentPlacement, Topology
from rlinf_scheduler.errors import SchedulerError
from rlinf_scheduler.hardware import check_reachable, hardware_names, HardwareTable

MORE = []
config = {"cluster": {
    "component_placement": {"env": {"node_group": "arms", "placement": "0-1:0-1"}},
    "node_groups": [{"label": "arms", "node_ranks": "0-1", "hardware": {"type": "Arm", "configs": [
        {"node_rank": 0, "serial": "a", "cameras": ["left", "right"]}, {"node_rank": 1, "serial": SERIAL}, *MORE]}}]}}
try:
    placed = ComponentPlacement(config, Topology.parse("2x1"))
    print(hardware_names())
    table = HardwareTable(placed.topology)
    for placement in placed.placements("env"):
        print(placement.node_rank, placement.hardware_type, table.views_of(placement))
    check_reachable([unit for placement in placed.placements("env") for unit in table.units_of(placement)])
except SchedulerError as error:
    print(error)
"""

ARM = """
from rlinf_scheduler.errors import HardwareUnreachable
from rlinf_scheduler.hardware import HardwareConfig, HardwareType


class ArmConfig(HardwareConfig):
    serial: str
    cameras: list[str] = []


class Arm(HardwareType):
    name = "Arm"
    config_model = ArmConfig

    def check(self, config, timeout_s):
        if config.serial == "unplugged":
            raise HardwareUnreachable([f"arm {config.serial} of node {config.node_rank}: no such serial number"])

    def view(self, config):
        return f"arm {config.serial} with {len(config.cameras)} cameras"
"""


@pytest.fixture
def install(tmp_path):
    """Put a package into a folder as an installer would: its module, and metadata with its entry points."""

    def install_package(name, code, entry_points):
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(code))
        metadata = tmp_path / f"{module}-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        rows = "\n".join(f"{key} = {value}" for key, value in entry_points.items())
        (metadata / "entry_points.txt").write_text(f"[rlinf.hardware]\n{rows}\n")

    return install_package


@pytest.fixture
def run(tmp_path):
    def run_code(code):
        done = run_program("-c", textwrap.dedent(code), env={"PYTHONPATH": str(tmp_path)})
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_code


def plan(run, serial="b", more=()):
    return run(PLAN.replace("SERIAL", repr(serial)).replace("MORE = []", f"MORE = {more!r}"))


def test_installed_package_adds_a_hardware_type(install, run):
    install("acme-arms", ARM, {"Arm": "acme_arms:Arm"})
    assert plan(run).splitlines() == [
        "('Robot', 'Franka', 'DualFranka', 'DOSW1', 'GimArm', 'Turtle2', 'Arm')",
        "0 Arm ('arm a with 2 cameras',)",
        "1 Arm ('arm b with 0 cameras',)",
    ]


def test_settings_of_an_added_type_are_checked_with_their_path(install, run):
    install("acme-arms", ARM, {"Arm": "acme_arms:Arm"})
    assert plan(run, serial=7) == (
        "cluster.node_groups[0].hardware.configs[1].serial: this must be text, not 7\n"
    )


def test_a_piece_of_an_added_type_stands_in_its_group_once(install, run):
    install("acme-arms", ARM, {"Arm": "acme_arms:Arm"})
    told = plan(run, more=[{"node_rank": 1, "serial": "b"}])
    assert told == (
        "cluster.node_groups[0].hardware.configs[2]: entries 1 and 2 are the same Arm\n"
        "  hint: every piece stands in its group once; a setting that differs tells two apart\n"
    )


def test_added_type_checks_its_hardware_before_a_launch(install, run):
    install("acme-arms", ARM, {"Arm": "acme_arms:Arm"})
    assert plan(run, "unplugged").splitlines()[-1] == (
        "cannot be reached: arm unplugged of node 1: no such serial number"
    )


def test_type_that_is_not_installed_is_a_mistake_of_the_config(run):
    assert "there is no hardware type 'Arm'; there are: 'Robot'" in plan(run)


@pytest.mark.parametrize(
    ("code", "entry", "problem"),
    [
        ("import acme_firmware", "acme_arms:Arm", "ModuleNotFoundError: No module named 'acme_firmware'"),
        ("1 / 0", "acme_arms:Arm", "ZeroDivisionError: division by zero"),
        ("", "acme_arms:Arm", "AttributeError"),
        ("Arm = 7", "acme_arms:Arm", "acme_arms:Arm is neither a HardwareType nor a Vendor"),
        (
            ARM.replace('"Arm"', '"Leg"'),
            "acme_arms:Arm",
            "acme_arms:Arm is named 'Leg', its entry point 'Arm'",
        ),
        (
            ARM.replace("= ArmConfig", "= dict"),
            "acme_arms:Arm",
            "config_model of acme_arms:Arm is no subclass",
        ),
        (
            ARM.replace("HardwareType):", "HardwareType):\n    def __init__(self): raise OSError('no bus')"),
            "acme_arms:Arm",
            "OSError: no bus",
        ),
    ],
)
def test_package_that_cannot_be_used_is_named_with_the_reason(install, run, code, entry, problem):
    install("acme-arms", code, {"Arm": entry})
    message = plan(run)
    assert message.startswith(
        "cluster.node_groups[0].hardware.type: the hardware 'Arm' of package 'acme-arms 1.2' cannot be used: "
    )
    assert problem in message


def test_broken_package_is_in_nobodys_way_who_does_not_use_it(install, run):
    install("acme-arms", ARM, {"Arm": "acme_arms:Arm"})
    install("broken-legs", "1 / 0", {"Leg": "broken_legs:Leg"})
    assert "('Robot', 'Franka', 'DualFranka', 'DOSW1', 'GimArm', 'Turtle2', 'Arm', 'Leg')" in plan(run)


def test_packages_with_one_name_are_both_named(install, run):
    install("acme-arms", ARM, {"Arm": "acme_arms:Arm"})
    install("other-arms", ARM, {"Arm": "other_arms:Arm"})
    assert "the hardware 'Arm' is in several packages, 'acme-arms 1.2' and 'other-arms 1.2'" in plan(run)


def test_name_of_a_built_in_type_is_taken(install, run):
    install("acme-arms", ARM.replace('"Arm"', '"Robot"'), {"Robot": "acme_arms:Arm"})
    message = run(PLAN.replace("SERIAL", "'b'").replace('"Arm"', '"Robot"'))
    assert "the hardware type 'Robot' comes with this library, and an installed package has it too" in message


VENDOR = """
from rlinf_scheduler.hardware import Vendor

ACME = Vendor("Acme", "ACME", "ACME_VISIBLE_CARDS")
"""
FIND = """
from rlinf_scheduler.errors import SchedulerError
from rlinf_scheduler.hardware.vendors import find_accelerators, visibility_settings
try:
    found = find_accelerators({"ACME_VISIBLE_CARDS": "2,3"}, {"ACME": 2.0})
    print(found.type, found.mask, visibility_settings("acme", ("3",)))
except SchedulerError as error:
    print(error)
"""


def test_installed_package_adds_a_vendor_of_accelerators(install, run):
    install("acme-cards", VENDOR, {"Acme": "acme_cards:ACME"})
    assert run(FIND) == "Acme ('2', '3') {'ACME_VISIBLE_CARDS': '3'}\n"


def test_vendor_that_cannot_be_loaded_is_named_where_nodes_are_asked(install, run):
    install("acme-cards", "1 / 0", {"Acme": "acme_cards:ACME"})
    assert "the hardware 'Acme' of package 'acme-cards 1.2' cannot be used: ZeroDivisionError" in run(FIND)


def test_vendor_is_no_hardware_that_a_group_declares(install, run):
    install("acme-cards", VENDOR.replace('"Acme"', '"Arm"'), {"Arm": "acme_cards:ACME"})
    assert "there is no hardware type 'Arm'" in plan(run)
