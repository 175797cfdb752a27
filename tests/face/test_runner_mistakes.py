"""What can be wrong with a checkout or a process, when our face is to take the place of RLinf's own scheduler."""

import shutil
from textwrap import dedent

import pytest

from rlinf_scheduler import __version__
from rlinf_scheduler.face.wanted import missing_names, wanted_names
from small_checkout import FACE, SOURCES, plain, run, write

pytestmark = pytest.mark.system

OURS = f"rlinf-scheduler {__version__} ({SOURCES})"


@pytest.fixture
def checkout(tmp_path):
    return write(tmp_path / "checkout")


def last_error(done):
    return done.stderr[done.stderr.rfind("FaceError: ") :]


@pytest.mark.parametrize(
    "imported",
    [
        "from rlinf.scheduler import Teleport",
        "from rlinf.scheduler.portals.door import Door",
        "import rlinf.envs.sim",
    ],
    ids=["a name", "a module", "a name of a module"],
)
def test_names_that_another_version_wants_are_told_at_once_with_the_files(checkout, imported):
    write(
        checkout,
        {
            "rlinf/envs/__init__.py": "",
            "rlinf/envs/sim.py": "from ..scheduler.errors import Unheard, ConfigError",
            "rlinf/envs/other.py": "import rlinf.scheduler.portals.door as door\nfrom rlinf.scheduler import Topology",
            "examples/train.py": "def late():\n    from rlinf.scheduler import Teleport, Placement",
            "examples/annotated.py": "if TYPE_CHECKING:\n    from rlinf.scheduler import T",
            "examples/begin.py": f"{imported}",
            "examples/no_python.py": "from rlinf.scheduler import (",
        },
    )
    others = "" if "Teleport" not in imported else "examples/begin.py, "
    door = "\n  rlinf.scheduler.portals.door.Door: examples/begin.py" if "Door" in imported else ""
    done = run(checkout / "examples/begin.py", path=[checkout])
    number = 4 if door else 3
    begins = f"FaceError: RLinf of {checkout}/rlinf"
    assert (
        last_error(done)
        == dedent(f"""\
        {begins} is of another version than {OURS} is made for, which lacks {number} names that it imports:
          rlinf.scheduler.Teleport: {others}examples/train.py
          rlinf.scheduler.errors.Unheard: rlinf/envs/sim.py
          rlinf.scheduler.portals.door: rlinf/envs/other.py""")
        + f"{door}\n"
    )


def test_a_name_that_nothing_of_the_checkout_wants_is_pythons_own_error(checkout, tmp_path):
    write(tmp_path, {"mine.py": "from rlinf.scheduler import Unknown"})
    done = run(tmp_path / "mine.py", path=[checkout])
    assert "ImportError: cannot import name 'Unknown' from 'rlinf.scheduler'" in done.stderr


def test_a_name_that_a_program_does_without_is_no_error(checkout):
    program = """
        import rlinf.scheduler as s
        try:
            from rlinf.scheduler import Teleport
        except ImportError:
            print(hasattr(s, "Teleport"), hasattr(s, "Worker"))
    """
    write(checkout, {"train.py": program})
    assert run("train.py", cwd=checkout).stdout == "False True\n"


def test_a_scheduler_that_was_imported_before_is_named(checkout, tmp_path):
    write(checkout, {"rlinf/scheduler/__init__.py": "", "train.py": "import rlinf.scheduler"})
    write(checkout, {"notebook.py": "import rlinf.scheduler, rlinf_scheduler.face as face\nface.install()"})
    write(tmp_path / "site", {"sitecustomize.py": "import rlinf.scheduler"})
    done = plain("notebook.py", cwd=checkout)
    assert last_error(done) == (
        f"FaceError: rlinf.scheduler was imported from {checkout}/rlinf/scheduler/__init__.py before: "
        f"another scheduler, and {OURS} cannot take its place any more; import nothing of RLinf "
        "before `rlinf_scheduler.face.install()`, "
        "in `sitecustomize` or a .pth file, say\n"
    )


@pytest.mark.parametrize("imported", ["rlinf.scheduler", "rlinf"])
def test_what_a_pth_file_has_imported_before_is_found(checkout, imported):
    write(checkout, {"rlinf/scheduler/__init__.py": ""})
    ours = SOURCES / "rlinf_scheduler/face/first/sitecustomize.py"
    code = f"import runpy, {imported}; runpy.run_path({str(ours)!r}); import rlinf.scheduler as s; print(s.__file__)"
    done = plain("-c", code, cwd=checkout)
    if imported == "rlinf":
        assert (done.returncode, done.stdout) == (0, f"{FACE}\n")
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(
            f"FaceError: rlinf.scheduler was imported from {checkout}/rlinf/scheduler/__init"
        )


def test_what_a_hidden_sitecustomize_imports_of_rlinf_has_our_face_already(checkout, tmp_path):
    write(tmp_path / "site", {"sitecustomize.py": "import rlinf.scheduler"})
    write(checkout, {"train.py": "import rlinf.scheduler; print(rlinf.scheduler.__file__)"})
    done = run("train.py", cwd=checkout, path=[tmp_path / "site", checkout])
    assert done.stdout.strip() == FACE, done.stderr


def test_a_face_of_another_copy_of_ours_is_named(checkout, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("__pycache__"))
    program = """
        import sys
        import rlinf_scheduler.face as face
        sys.path.insert(0, {copy!r})
        import rlinf.scheduler
        face.install()
    """
    write(tmp_path, {"two.py": dedent(program).format(copy=str(copy))})
    told = last_error(plain(tmp_path / "two.py"))
    assert f"from {copy}/rlinf/scheduler/__init__.py before: another copy of rlinf-scheduler" in told


def test_a_program_whose_path_leads_to_another_copy_of_ours_first_is_told_of_both(checkout, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("__pycache__"))
    write(checkout, {"train.py": f"import sys; sys.path.insert(0, {str(copy)!r}); import rlinf.runners"})
    done = run("train.py", cwd=checkout)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: two copies of rlinf-scheduler: that of {SOURCES}/rlinf_scheduler has started this program, "
        f"and its path leads to that of {copy}/rlinf_scheduler first; start it with that one, or take it off the path"
    )


def test_no_checkout_is_told_and_the_program_goes_on(checkout, tmp_path):
    write(tmp_path, {"alone.py": "import rlinf.scheduler; print('on')"})
    write(checkout, {"examples/train.py": "import rlinf.scheduler; print('on')"})
    none = f"no checkout of RLinf is on the path: rlinf.scheduler is that of {OURS}, "
    none += "and nothing is replaced; PYTHONPATH="
    alone, inside = run("alone.py", cwd=tmp_path), run(checkout / "examples/train.py", cwd=tmp_path)
    assert (alone.stdout, alone.stderr) == ("on\n", f"{none}/path/to/RLinf names one\n")
    assert (inside.stdout, inside.stderr) == ("on\n", f"{none}{checkout} names one\n")


def test_rlinf_installed_over_our_face_is_told(tmp_path):
    shutil.copytree(SOURCES, tmp_path / "packages", ignore=shutil.ignore_patterns("__pycache__"))
    write(
        tmp_path / "packages", {"rlinf/__init__.py": "", "rlinf/scheduler/__init__.py": "class Worker: ..."}
    )
    done = run("-c", "import rlinf.scheduler", path=[tmp_path / "packages"])
    assert last_error(done).startswith(
        f"FaceError: {tmp_path}/packages/rlinf/scheduler is not that of "
        f"rlinf-scheduler {__version__} ({tmp_path}/packages): RLinf was installed into the same folder, over it"
    )


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_an_interpreter_that_takes_no_variables_is_told(option):
    done = plain(
        "-c",
        f"""
import sys
sys.argv[1:] = ["train.py"]
sys.path.append({str(SOURCES)!r})
from rlinf_scheduler.face.command import main
main()
""",
        options=[option],
    )
    assert done.returncode == 2
    assert done.stderr.startswith("rlinf_scheduler: with -I, -E or -S")


def test_wanted_names_are_read_and_nothing_is_run(tmp_path):
    package = (
        write(
            tmp_path,
            {
                "pack/__init__.py": "1 / 0\nfrom . import part",
                "pack/part/__init__.py": "from pack.part import own",
                "pack/a.py": "from pack.part import X, Y\nfrom .part.deep import Z\nfrom pack.parting import No",
                "examples/b.py": "from pack.part import X",
            },
        )
        / "pack"
    )
    assert [(each.full_name, each.files) for each in wanted_names(package, "pack.part")] == [
        ("pack.part.X", ("pack/a.py",)),
        ("pack.part.Y", ("pack/a.py",)),
        ("pack.part.deep.Z", ("pack/a.py",)),
    ]
    write(tmp_path, {"pyproject.toml": ""})
    assert wanted_names(package, "pack.part")[0].files == ("pack/a.py", "examples/b.py")


def test_a_name_whose_module_needs_what_is_not_installed_is_not_missing(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = (
        write(
            tmp_path,
            {
                "wanting/__init__.py": "",
                "wanting/part/__init__.py": dedent("""
                def __getattr__(name):
                    if name == "X":
                        import not_installed
                    raise AttributeError
            """),
                "wanting/part/heavy.py": "import not_installed",
                "wanting/a.py": "from wanting.part import X, Y, heavy\nfrom wanting.part.heavy import Z",
            },
        )
        / "wanting"
    )
    assert [each.full_name for each in missing_names(package, "wanting.part")] == ["wanting.part.Y"]
