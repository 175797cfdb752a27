"""The module of a program's own that every process imports first."""

import sys

import pytest

from rlinf_scheduler import extension
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.hardware import registry


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
