"""Imports all modules of an RLinf checkout, in this process, and writes which could not be imported, and why.

    python -m rlinf_scheduler tests/face/import_all.py CHECKOUT RESULT.json

Third parties that are not installed are stood in for (`stand_ins.py`). Imported is the package, without its scheduler,
and each program of the folders beside it.
"""

import ast
import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import re
import signal
import sys
import types
from pathlib import Path

import ray

import stand_ins

PROGRAMS = ("examples", "evaluations", "toolkits")
USES_RLINF = re.compile(rb"^\s*(?:from|import) rlinf\b", re.MULTILINE)
LIMIT_S = 60
SCHEDULER = "rlinf.scheduler"
VERSIONS = {"sglang": "0.4.6.post5", "vllm": "0.8.5"}
# How the reason begins where our scheduler lacks something.
OURS = "lacking: "


def third_parties(checkout):
    """What the sources of a checkout import that is neither its own, nor Python's, nor installed."""
    found = set()
    for file in sources(checkout):
        with contextlib.suppress(SyntaxError):
            found |= {name for name in imported_by(file) if not is_beside(file, name)}
    found -= {"rlinf", "tests", *PROGRAMS, *sys.stdlib_module_names}
    return sorted(name for name in found if importlib.util.find_spec(name) is None)


def is_beside(program, name):
    """Whether a program finds that in its own folder."""
    return (program.parent / name).with_suffix(".py").exists() or (
        program.parent / name / "__init__.py"
    ).exists()


def imported_by(file):
    """The packages that a file imports, and modules beside it."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def sources(checkout):
    scheduler = checkout / "rlinf" / "scheduler"
    for folder in ("rlinf", *PROGRAMS):
        yield from (
            file for file in sorted((checkout / folder).rglob("*.py")) if scheduler not in file.parents
        )


def names_of(checkout):
    """The modules, by the names that they are imported by, with their files."""
    for file in sources(checkout):
        parts = file.relative_to(checkout).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def imported(name, file):
    """Import a module; what went wrong, in a line, or ""."""
    signal.alarm(LIMIT_S)
    try:
        if name.partition(".")[0] == "rlinf":
            importlib.import_module(name)
        else:
            program(name, file)
    except BaseException as error:  # a program may end itself  # noqa: BLE001
        return f"{OURS if is_ours(error) else ''}{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return ""


def is_ours(error):
    """Whether it is for something that our scheduler lacks: a name of a module, or an attribute of a class."""
    if isinstance(error, ImportError) and SCHEDULER in f"{error} {error.name}":
        return True
    owner = getattr(error, "obj", None) if isinstance(error, AttributeError) else None
    module = getattr(owner, "__module__", None) or getattr(type(owner), "__module__", "")
    name = owner.__name__ if isinstance(owner, types.ModuleType) else str(module)
    return name.startswith((SCHEDULER, "rlinf_scheduler"))


def program(name, file):
    """Import a program by its file, with its folder on the path."""
    spec = importlib.util.spec_from_file_location(name.replace(".", "_"), file)
    module = importlib.util.module_from_spec(spec)
    before, known = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
        # Modules beside it, as `util`, are others for the next program.
        for each in set(sys.modules) - known:
            origin = getattr(sys.modules[each], "__file__", None) or ""
            if "." not in each and Path(origin).parent == file.parent:
                del sys.modules[each]


def too_long(*_):
    raise TimeoutError(f"not imported after {LIMIT_S} s")


def refuse(*_args, **_options):
    raise RuntimeError("it begins to run as it is imported")


def version_of(name, real=importlib.metadata.version):
    """Give what is stood in for the version whose modules RLinf has."""
    return VERSIONS[name] if name in VERSIONS else real(name)


def main(checkout, result):
    ray.init = refuse
    importlib.metadata.version = version_of
    signal.signal(signal.SIGALRM, too_long)
    checkout = Path(checkout).resolve()
    sys.path.insert(0, str(checkout))
    stood_in = third_parties(checkout)
    stand_ins.install(stood_in)
    failed = {}
    names = list(names_of(checkout))
    for name, file in names:
        with contextlib.redirect_stdout(io.StringIO()):
            problem = imported(name, file)
        if problem:
            failed[name] = problem
            sys.stderr.write(f"{name}: {problem.splitlines()[0]}\n")
    told = {"modules": len(names), "failed": failed, "stood_in": stood_in}
    Path(result).write_text(json.dumps(told, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
