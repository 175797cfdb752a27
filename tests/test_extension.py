"""The module of a program's own that every process imports first."""

import os
import sys

import pytest

from programs import run_program
from rlinf_scheduler import extension
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.hardware import registry

CRANE = """\
cluster:
  num_nodes: 1
  component_placement:
    lift: {node_group: cranes, placement: 0}
  node_groups:
    - {label: cranes, node_ranks: 0, hardware: {type: Crane, configs: [{node_rank: 0}]}}
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(extension, "_loaded", set())
    monkeypatch.setattr(registry, "_registered", {})

    def write(text):
        (tmp_path / "my_extension.py").write_text(text)
        monkeypatch.setenv("RLINF_EXT_MODULE", "my_extension")

    yield write
    sys.modules.pop("my_extension", None)


def test_nothing_is_loaded_where_none_is_named(monkeypatch):
    monkeypatch.delenv("RLINF_EXT_MODULE", raising=False)
    extension.load_extension()


def test_it_is_imported_and_registered_once(module):
    module("calls = []\ndef register(): calls.append(1)\n")
    extension.load_extension()
    extension.load_extension()
    assert sys.modules["my_extension"].calls == [1]


def test_a_hardware_type_that_it_registers_may_be_named_in_a_config(module):
    module(
        "from rlinf_scheduler.hardware import HardwareType, register_hardware\n"
        "class Crane(HardwareType):\n    name = 'Crane'\n"
        "def register(): register_hardware(Crane())\n"
    )
    assert registry.hardware_type("Crane").name == "Crane"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import no_such_module_there\n", "ModuleNotFoundError: No module named 'no_such_module_there'"),
        ("def register(): raise OSError('no bus')\n", "OSError: no bus"),
    ],
)
def test_one_that_cannot_be_loaded_is_an_error_with_its_cause(module, text, told):
    module(text)
    with pytest.raises(
        ConfigError, match="RLINF_EXT_MODULE=my_extension: the module cannot be loaded"
    ) as caught:
        extension.load_extension()
    assert told in str(caught.value)


def test_the_rlinf_command_finds_it_in_the_current_folder(tmp_path):
    """As `python -m` does; a command that is installed has only its own folder on its path."""
    installed, project = tmp_path / "bin" / "rlinf", tmp_path / "project"
    for folder in (installed.parent, project):
        folder.mkdir()
    installed.write_text("from rlinf_scheduler.cli.main import main\nmain()\n")
    (project / "my_extension.py").write_text(
        "from rlinf_scheduler.hardware import HardwareType, register_hardware\n"
        "class Crane(HardwareType):\n    name = 'Crane'\n"
        "def register(): register_hardware(Crane())\n"
    )
    (project / "conf.yaml").write_text(CRANE)
    environment = {**os.environ, "RLINF_EXT_MODULE": "my_extension"}
    environment.pop("PYTHONPATH", None)
    done = run_program(str(installed), "plan", "conf.yaml", "--nodes", "1x1", cwd=project, env=environment)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "lift" in done.stdout
