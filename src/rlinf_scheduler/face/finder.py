"""The finder that answers for `rlinf.scheduler` with our face, whatever else the path has under that name."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

from rlinf_scheduler.errors import FaceError
from rlinf_scheduler.face.wanted import WantedName, missing_names
from rlinf_scheduler.face.worker_log import show_worker_log
from rlinf_scheduler.version import __version__
from rlinf_scheduler.wording import counted

# Put together, since no module of this package imports the face.
PACKAGE = "rlinf"
SCHEDULER, TESTING = f"{PACKAGE}.scheduler", f"{PACKAGE}.testing"
# The process that tells what it has put in the place of what: the driver, among all that start with this variable.
DRIVER_VARIABLE = "RLINF_FACE_DRIVER"
PATH_VARIABLE = "PYTHONPATH"

_LIBRARY = Path(__file__).resolve().parents[1]
_FACE = _LIBRARY.parent / PACKAGE / "scheduler"
_FIRST = Path(__file__).parent / "first"
_OURS = f"rlinf-scheduler {__version__} ({_LIBRARY.parent})"
# What Ray tells the program of a job that was submitted to it.
_SUBMITTED_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
# How Ray names what the processes of a job begin with.
_HOOK = f"{__name__}.install_in_process_of_ray"


def install(driver: int | None = None) -> FaceFinder:
    """Put our face in the place of RLinf's own scheduler, in this process and in those that it starts.

    For a notebook, before RLinf is imported; `python -m rlinf_scheduler` does it for a program.

    Args:
        driver: the number of the process that tells on its standard error what was replaced; None: this one, unless
            another one was named before.

    Raises:
        FaceError: another scheduler was imported under that name before, or is installed in the place of our face.
    """
    _check_imported()
    _check_face()
    known = os.environ.get(DRIVER_VARIABLE, "")
    number = driver if driver is not None else int(known) if known.isdecimal() else os.getpid()
    os.environ.update(variables_of_children(os.environ, number))
    for finder in sys.meta_path:
        if isinstance(finder, FaceFinder):
            return finder
    finder = FaceFinder()
    # In the place of those that wait for RLinf's first import, of this copy or of another.
    others = [each for each in sys.meta_path if getattr(each, "__name__", "") != "UntilRLinf"]
    sys.meta_path[:] = [finder, *others]
    return finder


def install_in_process_of_ray() -> None:
    """Do so in a process that Ray has started."""
    install(driver=int(os.environ.get(DRIVER_VARIABLE, "0")))


def is_wanted() -> bool:
    """Whether this process is one of a program that runs so."""
    return DRIVER_VARIABLE in os.environ


def variables_of_children(environment: Mapping[str, str], driver: int) -> dict[str, str]:
    """What a Python has to start with that is to run so."""
    # An empty entry is the folder that a process runs in.
    given = environment.get(PATH_VARIABLE)
    others = [entry for entry in given.split(os.pathsep) if entry != str(_FIRST)] if given else []
    return {PATH_VARIABLE: os.pathsep.join([str(_FIRST), *others]), DRIVER_VARIABLE: str(driver)}


def ray_environment(environment: Mapping[str, str] = os.environ) -> dict[str, object]:
    """The `runtime_env` of a job on a Ray that runs already, whose processes do not inherit this one's variables."""
    if DRIVER_VARIABLE not in environment:
        return {}
    variables = variables_of_children(environment, int(environment[DRIVER_VARIABLE]))
    variables[PATH_VARIABLE] += f":${{{PATH_VARIABLE}}}"  # before what the node has
    # Where the library lies elsewhere on a node, the path does not lead to it, and the hook's name does.
    ours: dict[str, object] = {"env_vars": variables, "worker_process_setup_hook": _HOOK}
    # What `ray job submit` was given comes first: Ray refuses what is said twice.
    submitted = json.loads(environment.get(_SUBMITTED_VARIABLE, "{}")).get("runtime_env", {})
    given = submitted.get("env_vars", {})
    ours["env_vars"] = {name: value for name, value in variables.items() if name not in given}
    return {name: value for name, value in ours.items() if name == "env_vars" or name not in submitted}


def is_ray_environment(text: str) -> bool:
    """Whether a job's `runtime_env`, as Ray tells it, is `ray_environment` alone: no other interpreter or package."""
    told = json.loads(text or "{}")
    # How Ray hands the hook on.
    variables = {name: value for name, value in told.get("env_vars", {}).items() if value != _HOOK}
    return bool(variables) and {**told, "env_vars": variables} == ray_environment()


class FaceFinder:
    """Finds our face as `rlinf.scheduler`, and RLinf's own package, wherever it is on the path, as `rlinf`."""

    def __init__(self) -> None:
        # What the checkout wants and the face lacks; None until somebody asks for a name that is not there.
        self._missing: Sequence[WantedName] | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return our module of that name, or None for all that is not in question here.

        Raises:
            FaceError: another scheduler was imported under that name before, or the face lacks what the checkout wants.
        """
        if name == PACKAGE:
            return self._regular_package(target)
        if name == SCHEDULER:
            _check_imported()
            _tell()
            show_worker_log()
            return PathFinder.find_spec(name, [str(_FACE.parent)])
        if name == TESTING:
            return PathFinder.find_spec(name, path) or PathFinder.find_spec(name, [str(_FACE.parent)])
        return self._below_the_face(name, path) if name.startswith(f"{SCHEDULER}.") else None

    def _regular_package(self, target: ModuleType | None) -> ModuleSpec | None:
        """RLinf's own, also where a folder of ours, which is none, comes first: a later finder may have it."""
        for finder in sys.meta_path:
            find_spec = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec and find_spec(PACKAGE, None, target)
            if spec is not None and spec.origin is not None:
                return spec
        return None

    def _below_the_face(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            self._explain(name)
        elif isinstance(spec.loader, SourceFileLoader):
            spec.loader = _FaceLoader(spec.loader.name, spec.loader.path)
        return spec

    def _explain(self, name: str) -> None:
        """Raise what says all that the checkout wants and the face lacks, if this name is among it."""
        checkout = _checkout()
        if checkout is None:
            return
        if self._missing is None:
            self._missing = ()  # nobody is told while it is being found out
            self._missing = missing_names(checkout, SCHEDULER)
        if any(f"{each.full_name}.".startswith(f"{name}.") for each in self._missing):
            listed = "".join(f"\n  {each}" for each in self._missing)
            raise FaceError(
                f"RLinf of {checkout} is of another version than {_OURS} is made for, which lacks "
                f"{counted(len(self._missing), 'name')} that it imports:{listed}"
            )


class _FaceLoader(SourceFileLoader):
    """Lets Python ask the finder for a name that a module of the face lacks, as it does of packages."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        vars(module).setdefault("__path__", [])


def _checkout() -> Path | None:
    """The folder of RLinf's own package; None where `rlinf` is a folder of ours and no package."""
    file = getattr(sys.modules.get(PACKAGE), "__file__", None)
    return Path(file).parent if file else None


def _checkout_around(file: str) -> Path | None:
    """The checkout that a file, or this process's folder, lies in, if it lies in one."""
    around = (
        folder for start in (Path(file).resolve().parent, Path.cwd()) for folder in (start, *start.parents)
    )
    return next((folder for folder in around if (folder / PACKAGE / "__init__.py").exists()), None)


def _tell() -> None:
    """Say on standard error what is put in the place of what, in one line."""
    if os.environ.get(DRIVER_VARIABLE) != str(os.getpid()) or sys.stderr is None:
        return
    checkout = _checkout()
    if checkout is None:
        where = _checkout_around(getattr(sys.modules.get("__main__"), "__file__", None) or "")
        text = (
            f"no checkout of RLinf is on the path: {SCHEDULER} is that of {_OURS}, and nothing is replaced; "
            f"PYTHONPATH={where or '/path/to/RLinf'} names one"
        )
    else:
        text = f"{SCHEDULER} of {checkout} is replaced by {_OURS}"
    sys.stderr.write(f"{text}\n")


def _check_imported() -> None:
    """Refuse to be the second scheduler of a process."""
    for name, module in sorted(sys.modules.items()):
        if name != SCHEDULER and not name.startswith(f"{SCHEDULER}."):
            continue
        file = getattr(module, "__file__", None)
        if file is None or Path(file).resolve().is_relative_to(_FACE):
            continue
        root = Path(file).resolve().parents[name.count(".") + (Path(file).name == "__init__.py")]
        whose = "another copy of rlinf-scheduler" if (root / _LIBRARY.name).is_dir() else "another scheduler"
        raise FaceError(
            f"{name} was imported from {file} before: {whose}, and {_OURS} cannot take its place any more; "
            "import nothing of RLinf before `rlinf_scheduler.face.install()`, in `sitecustomize` or a .pth file, say"
        )


def _check_face() -> None:
    """Refuse a face that is not ours: RLinf, installed into the same folder, has written over it."""
    try:
        text = (_FACE / "__init__.py").read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    if _LIBRARY.name not in text:
        raise FaceError(
            f"{_FACE} is not that of {_OURS}: RLinf was installed into the same folder, over it; install "
            "rlinf-scheduler again, and RLinf from its checkout (`pip install --editable`, or PYTHONPATH)"
        )
