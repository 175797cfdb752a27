"""The wheel, installed in a fresh environment: what it holds, what it says about itself, and that it works there.

What it depends on comes from the environment that runs the tests; nothing is fetched.
"""

import email
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from page_programs import files_of, programs_of
from rlinf.scheduler import __version__

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.xdist_group("wheel"), pytest.mark.system]  # built and installed once
OFFLINE = ["--no-index", "--no-deps", "--quiet", "--disable-pip-version-check"]
REPOSITORY = re.compile(r"https://[^)\s]+/(?:blob|raw)/main/([^)\s#]+)")


def run(*command, cwd):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable, "-m", "pip", "wheel", *OFFLINE, "--no-build-isolation", "-w", folder, ROOT, cwd=folder
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A fresh environment with the wheel, and with the dependencies of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    python = folder / "bin" / "python"
    install = ["install", "--no-compile", *OFFLINE, wheel]  # little of it is imported
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A folder that is named here is searched, but its own .pth files are not read: nothing of it leads to the sources.
    here = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join([*here, sysconfig.get_path("purelib")]))
    return folder


def test_wheel_holds_the_package_and_its_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    sources = ROOT / "src"
    files = [path for path in sources.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {str(path.relative_to(sources)) for path in files} <= set(names)
    assert "rlinf/__init__.py" not in names  # another distribution's may lie beside ours
    assert not [name for name in names if "simulat" in name]  # it lies beside `src/`, for those who develop
    assert {name.split("/")[0] for name in names} == {
        "rlinf",
        "rlinf_scheduler",
        f"rlinf_scheduler-{__version__}.dist-info",
    }


def test_version_is_written_in_one_place(metadata):
    assert metadata["Version"] == __version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest[1] == __version__


def test_index_page_leads_into_the_repository(metadata):
    links = dict(url.split(", ") for url in metadata.get_all("Project-URL"))
    assert {"Source", "Documentation", "Changelog", "Issues"} <= set(links)
    text = metadata.get_payload()
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 15
    assert [target for target in targets if not target.startswith(links["Source"])] == []
    for target in [*targets, links["Documentation"], links["Changelog"]]:
        assert (ROOT / REPOSITORY.fullmatch(target)[1]).exists(), target


def test_what_it_depends_on_is_what_the_tests_run_with(metadata):
    needed = [Requirement(text) for text in metadata.get_all("Requires-Dist") if "extra ==" not in text]
    assert {"ray", "pydantic", "omegaconf"} <= {requirement.name for requirement in needed}
    assert [str(r) for r in needed if not r.specifier.contains(version(r.name))] == []


def test_installed_command_plans(environment):
    config = files_of((ROOT / "README.md").read_text(encoding="utf-8"))["placement.yaml"]
    (environment / "placement.yaml").write_text(config, encoding="utf-8")
    rlinf = environment / "bin" / "rlinf"
    assert run(rlinf, "--version", cwd=environment) == f"rlinf-scheduler {__version__}\n"
    page = environment / "plan.html"
    planned = run(rlinf, "plan", "placement.yaml", "--nodes", "2x4", "--html", page, cwd=environment)
    assert "rollout" in planned
    assert "<html" in page.read_text(encoding="utf-8")


def test_installed_package_passes_items_between_processes(environment):
    page = (ROOT / "docs" / "how-to" / "use-channels.md").read_text(encoding="utf-8")
    (program,) = (p for p in programs_of(page) if p.file == "plain_processes.py")
    (environment / program.file).write_text(program.code, encoding="utf-8")
    python = environment / "bin" / "python"
    assert run(python, program.file, cwd=environment) == program.output
    where = run(python, "-c", "import rlinf.scheduler; print(rlinf.scheduler.__file__)", cwd=environment)
    assert Path(where.strip()).is_relative_to(environment)


def test_installed_package_takes_the_place_of_a_checkouts_scheduler(environment, tmp_path):
    program = "import rlinf.scheduler as s; from rlinf.scheduler import Topology; print(s.__file__)"
    for name, text in {
        "rlinf/__init__.py": "",
        "rlinf/scheduler/__init__.py": "1 / 0",
        "train.py": program,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    where = run(environment / "bin" / "python", "-m", "rlinf_scheduler", "train.py", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment)
