"""The names of the face: those that a type checker sees are there; a misspelt one is answered by the nearest."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import rlinf.scheduler

FACE = Path(rlinf.scheduler.__file__).parent
EVERY = sorted(
    ".".join(["rlinf.scheduler", *path.parent.relative_to(FACE).parts]) for path in FACE.rglob("__init__.py")
)
PACKAGES = [each for each in EVERY if hasattr(import_module(each), "__getattr__")]


def seen_by_type_checkers(package):
    tree = ast.parse(Path(import_module(package).__file__).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [each for block in blocks for each in block.body if isinstance(each, ast.ImportFrom)]
    stars = [each.module for each in imports if each.names[0].name == "*"]
    names = {offered: module for module in stars for offered in import_module(module).__all__}
    return names | {name.name: each.module for each in imports for name in each.names if name.name != "*"}


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_type_checker_sees_is_what_is_loaded(package):
    loaded = import_module(package)
    for name, module in seen_by_type_checkers(package).items():
        assert getattr(loaded, name) is getattr(import_module(module), name), name


def test_the_packages_have_names_to_look_at():
    assert len(PACKAGES) > 6
    assert len(seen_by_type_checkers("rlinf.scheduler")) > 40


@pytest.mark.parametrize(
    ("statement", "nearest"),
    [
        ("from rlinf.scheduler import Wroker", "Worker"),
        ("from rlinf.scheduler import WorkerGroupFuncResults", "WorkerGroupFuncResult"),
        ("from rlinf.scheduler.worker import Wroker", "Worker"),
        ("from rlinf.scheduler.cluster import load_extension_module", "load_user_extension_module"),
        ("from rlinf.scheduler.manager import NodeManger", "NodeManager"),
        ("from rlinf.scheduler.channel import Lesae", "Lease"),
        ("from rlinf.scheduler.errors import ChanelClosed", "ChannelClosed"),
        ("from rlinf.scheduler.errors import ChannelFul", "ChannelFull"),
        ("from rlinf.testing import LocalRuntim", "LocalRuntime"),
        ("from rlinf_scheduler import ComponentPlacment", "ComponentPlacement"),
        ("from rlinf_scheduler.hardware import Robt", "Robot"),
    ],
)
def test_a_misspelt_import_is_answered_by_the_nearest_name(statement, nearest):
    _, package, _, name = statement.split()
    with pytest.raises(ImportError) as caught:
        exec(statement)
    assert str(caught.value) == f"cannot import name '{name}' from '{package}'; did you mean '{nearest}'?"
    assert caught.value.name == package


@pytest.mark.parametrize("package", ["rlinf.scheduler", "rlinf.scheduler.worker", "rlinf_scheduler"])
def test_a_misspelt_attribute_is_answered_by_the_nearest_name(package):
    module = import_module(package)
    with pytest.raises(AttributeError, match=r"has no attribute 'Wroker'; did you mean 'Worker'\?"):
        module.Wroker  # noqa: B018
    assert not hasattr(module, "Wroker")
    assert getattr(module, "Wroker", None) is None


def test_a_module_that_is_not_imported_yet_is_no_misspelt_name():
    from rlinf.scheduler import channel, dynamic_scheduler

    assert channel.Channel is rlinf.scheduler.Channel
    assert dynamic_scheduler.__name__ == "rlinf.scheduler.dynamic_scheduler"


def test_a_name_that_is_like_none_is_an_import_error_of_pythons():
    with pytest.raises(ImportError, match=r"cannot import name 'zzzz' from 'rlinf\.scheduler' ") as caught:
        exec("from rlinf.scheduler import zzzz")
    assert "did you mean" not in str(caught.value)


def test_the_face_is_thin():
    assert sum(len(path.read_bytes().splitlines()) for path in FACE.rglob("*.py")) <= 3_500


def test_a_module_that_fails_while_it_is_loaded_says_so_itself(tmp_path, monkeypatch):
    (tmp_path / "broken_part.py").write_text("import sys\nThing = sys.gone\n")
    lazy = "from rlinf_scheduler.lazy import declared, loader, mirror\n"
    packages = {
        "lazy_core": "__all__ = ['Thing']\n__getattr__ = loader(globals(), {'Thing': 'broken_part'})\n",
        "lazy_face": "if False:\n    from broken_part import Thing\n__getattr__ = declared(globals())\n",
        "lazy_mirror": "__getattr__ = mirror(globals(), 'lazy_core')\n",
        "lazy_both": "__getattr__ = declared(globals(), 'lazy_core')\n",
    }
    for name, source in packages.items():
        (tmp_path / f"{name}.py").write_text(lazy + source)
    monkeypatch.syspath_prepend(tmp_path)
    for name in packages:
        with pytest.raises(AttributeError, match="module 'sys' has no attribute 'gone'"):
            import_module(name).Thing  # noqa: B018


def test_a_module_of_the_face_is_never_taken_for_that_of_the_core_whichever_was_imported_first():
    names = "channel", "cluster", "hardware", "placement", "worker"
    code = "".join(f"import rlinf_scheduler.{name}\n" for name in names) + "import rlinf.scheduler\n"
    code += "".join(f"from rlinf.scheduler import {name}; print({name}.__name__)\n" for name in names)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == [f"rlinf.scheduler.{name}" for name in names]
