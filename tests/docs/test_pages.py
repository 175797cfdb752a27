"""Every program of the README and the pages runs as a reader would paste it, and prints what the page says."""

import itertools
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forked_job import ForkedJob
from page_programs import Program, files_of, printed_by_process, printed_here, programs_of, save
from rlinf_scheduler.cli.main import app
from rlinf_scheduler.observe import status_service, survey

# A program of a page may take 200 s on a busy machine.
pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]


# What these show is of Ray, of its nodes, or of the order in which ranks start. Those of all other pages are forked:
# that takes a tenth of the time.
ON_RAY = (
    "README.md",
    "feed-ranks-evenly.md",
    "grow-and-shrink.md",
    "run-on-several-machines.md",
    "run-on-slurm.md",
    "watch-a-job.md",
)


def pages(where):
    """The pages with programs that run alone, on Ray, or with forked ranks."""
    found = []
    for path in PAGES:
        programs = programs_of(path.read_text(encoding="utf-8"))
        in_cluster = any(program.needs_ray for program in programs)
        if any(program.takes_part for program in programs):  # tests/cluster/test_kept_jobs_on_ray.py
            continue
        if programs and where == ("alone" if not in_cluster else "ray" if path.name in ON_RAY else "forked"):
            found.append(pytest.param(path, id=str(path.relative_to(ROOT))))
    return found


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A look at a job waits for processes that are held up: all of them answer in the end."""
    monkeypatch.setattr(survey, "PATIENCE_S", 30.0)
    monkeypatch.setattr(status_service, "WITHIN_S", 60.0)
    monkeypatch.setattr(status_service, "TIMEOUT_S", 100.0)


@pytest.fixture
def folder(tmp_path):
    """Where a reader works: with the README's config, which other pages speak of too."""
    for name, text in files_of(README.read_text(encoding="utf-8")).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(path, folder):
    page = path.read_text(encoding="utf-8")
    save(page, folder)
    for program in programs_of(page):
        printed = (printed_here if program.needs_ray else printed_by_process)(program, folder)
        if program.output is not None:
            assert printed == program.output, program.file


@pytest.mark.system
@pytest.mark.parametrize("path", pages("alone"))
def test_programs_of_a_page_run(path, folder):
    run(path, folder)


@pytest.mark.system
def test_the_program_of_the_page_on_checkpoints_can_be_run_again(folder):
    page = (ROOT / "docs" / "how-to" / "checkpoint-a-job.md").read_text(encoding="utf-8")
    save(page, folder)
    (program,) = programs_of(page)
    printed_by_process(program, folder)
    assert f"```text\n{printed_by_process(program, folder)}```" in page
    assert printed_by_process(program, folder) == "nothing left to do: trained on 8 tasks\n" * 2


@pytest.mark.system
@pytest.mark.ray
@pytest.mark.parametrize("path", pages("ray"))
def test_programs_of_a_page_run_on_ray(path, folder, driver):
    run(path, folder)


@pytest.mark.system
@pytest.mark.parametrize("path", pages("forked"))
def test_programs_of_a_page_run_on_processes(path, folder):
    job = ForkedJob()
    try:
        run(path, folder)
    finally:
        job.close()


def test_commands_of_the_readme_find_every_file_that_they_name(folder, monkeypatch):
    """Where its YAML is saved, in a clone: pasted as they are."""
    (folder / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(folder)
    prefix = "    .venv/bin/rlinf "
    lines = [line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith(prefix)]
    assert len(lines) >= 2
    for line in lines:
        done = CliRunner().invoke(app, shlex.split(line.removeprefix(prefix), comments=True))
        assert done.exit_code in (0, 1), f"{line}: {done.output}"  # 1: the plans differ


def test_program_of_the_page_on_vllm_is_the_example():
    example = (ROOT / "examples" / "engines" / "rollout_with_vllm.py").read_text(encoding="utf-8")
    assert f"```py\n{example}```" in (ROOT / "docs" / "how-to" / "use-vllm.md").read_text(encoding="utf-8")


@pytest.mark.system
@pytest.mark.ray
def test_program_of_the_quickstart_runs(driver, tmp_path):
    program = ROOT / "examples" / "quickstart" / "main.py"
    printed = printed_here(Program("main.py", program.read_text(encoding="utf-8")), program.parent)
    assert printed == "items consumed: [20]\n"


def test_programs_of_one_page_have_names_of_their_own():
    for path in PAGES:
        names = [program.file for program in programs_of(path.read_text(encoding="utf-8"))]
        assert len(set(names)) == len(names), path


def test_blocks_become_files_and_what_they_print():
    page = "\n".join([
        "# A page", "```yaml", "# a.yaml", "a: 1", "```", "```yaml", "of: nobody", "```",
        "```python", "# first.py", "print(1)", "```", "prints", "```text", "1", "```",
        "```python", "print(2)", "```", "## The next section", "```text", "not of the program", "```", "",
    ])  # fmt: skip
    assert programs_of(page) == [
        Program("first.py", "# first.py\nprint(1)\n", "1\n"),
        Program("program_2.py", "print(2)\n"),
    ]
    assert files_of(page) == {"a.yaml": "# a.yaml\na: 1\n"}


def test_a_program_that_prints_something_else_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="program_1"):
        run(page, tmp_path)


def test_a_program_that_fails_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nraise ValueError('it is wrong')\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="it is wrong"):
        run(page, tmp_path)


def test_every_block_has_a_language():
    for path in PAGES:
        fences = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("```")]
        opening = list(itertools.islice(fences, 0, None, 2))
        assert all(len(line) > 3 for line in opening), path
        assert all(line == "```" for line in fences[1::2]), path
