"""Runs RLinf's own unit tests of its scheduler against ours, imports all of its modules, and prints a table.

    make rlinf RLINF=/path/to/checkout [TABLE=results.md] [TESTS="comm channel"] [COMPARE=1]

Each file of tests runs in a process of its own, by `python -m rlinf_scheduler -m pytest`, from a folder outside the
checkout, in which nothing is changed. A test that takes longer than its deadline, or holds its whole process up, has
hung; those after it run in another process. `different.toml` lists the tests that fail on purpose, with the reason.
`COMPARE=1` runs what fails on RLinf's own scheduler, too: it may be for a package that is not installed here.

Third parties (hydra, transformers, gymnasium ...) are those of the environment of `make`, whose extra `demo` has hydra
and torch; what is not installed there is stood in for (`stand_ins.py`), and named in the table. Exits with 1 unless all
that fails is listed.
"""

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
# Those that concern the scheduler and do not say so by an import.
MORE = ("test_auto_placement.py", "test_metric_utils.py", "test_robot_autoconfig.py", "test_weight_syncer.py")
OUTCOMES = ("passed", "different", "failed", "hung", "skipped", "not collected", "fails on both")
# What some need of their scheduler's inside, as of ours.
PLUGINS = {"test_channel.py": ("distributed_channels",)}
# Programs run on ours; without it, on RLinf's own scheduler.
ON_OURS = ("-m", "rlinf_scheduler")
TEST_LIMIT_S, SILENT_S, IMPORTS_LIMIT_S = 120, 180, 900
MOST_ROUNDS = 6


def test_files(checkout, wanted):
    """The files of tests: those that are named, or all that concern the scheduler."""
    for file in sorted((checkout / "tests" / "unit_tests").glob("test_*.py")):
        if wanted:
            if file.stem.removeprefix("test_") in wanted:
                yield file
        elif file.name in MORE or "rlinf.scheduler" in file.read_text(encoding="utf-8"):
            yield file


def environment(checkout, stood_in, log):
    path = [checkout, checkout / "tests" / "unit_tests", HERE, os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(entry) for entry in path if entry),
        "PYTHONDONTWRITEBYTECODE": "1",
        "STAND_INS": ",".join(stood_in),
        "OUTCOME_LOG": str(log),
    }


def outcomes_of(file, checkout, stood_in, folder, runner=ON_OURS, only=()):
    """What became of the tests of a file, by their names: an outcome, and why."""
    log = folder / f"{file.stem}{'' if runner else '-own'}.jsonl"
    log.touch()
    targets = [file.parent / test for test in only] or [file]
    for _ in range(MOST_ROUNDS):
        ended = run_tests(file, checkout, stood_in, log, read(log), [*runner, "-m", "pytest"], targets)
        found = read(log)
        stuck = [test for test, (outcome, _) in found.items() if outcome == "begun"]
        if ended is not None and not stuck:
            if not found:
                found[file.name] = ("not collected", f"pytest ended with {ended}")
            return found
        why = "its process was held up" if ended is None else f"its process ended with {ended}"
        with log.open("a", encoding="utf-8") as lines:
            for test in stuck or [f"{file.name}::after {len(found)} tests"]:
                lines.write(json.dumps({"test": test, "outcome": "hung", "why": why}) + "\n")
        if not stuck:
            break
    return read(log)


def compared(found, file, checkout, stood_in, folder):
    """Mark what fails on RLinf's own scheduler, too, in this environment."""
    bad = [test for test, (outcome, _) in found.items() if outcome in ("failed", "hung", "not collected")]
    own = outcomes_of(file, checkout, stood_in, folder, runner=(), only=bad) if bad else {}
    for test in bad:
        outcome, why = own.get(test, ("passed", ""))
        if outcome in ("failed", "hung", "not collected"):
            found[test] = "fails on both", why
    return found


def run_tests(file, checkout, stood_in, log, done, pytest, targets):
    """Run those that are not done yet; how pytest ended, None if it had to be ended."""
    options = ["-q", "--timeout", str(TEST_LIMIT_S), "--timeout-method", "signal", "-p", "no:cacheprovider"]
    plugins = ["-p", "stand_ins", "-p", "outcome_log", "-c", str(file.parent / "pytest.ini")]
    if "rlinf_scheduler" in pytest:
        plugins += [part for plugin in PLUGINS.get(file.name, ()) for part in ("-p", plugin)]
    left_out = [f"--deselect={test}" for test in done]
    command = [
        sys.executable,
        "-m",
        "rlinf_scheduler",
        "-m",
        "pytest",
        *options,
        *plugins,
        *left_out,
        str(file),
    ]
    with log.with_suffix(".out").open("ab") as output, tempfile.TemporaryDirectory() as cwd:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment(checkout, stood_in, log),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            return wait(process, log)
        finally:
            end_all_of(process)


def wait(process, log):
    size, since = log.stat().st_size, time.monotonic()
    while time.monotonic() - since < SILENT_S:
        try:
            return process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            if log.stat().st_size != size:
                size, since = log.stat().st_size, time.monotonic()
    return None


def end_all_of(process):
    """End it and what it has started and left; a driver's guard ends its Ray."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def read(log):
    """By the tests' names: the last outcome, and why."""
    found = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        each = json.loads(line)
        if each["outcome"] != "passed" or found.get(each["test"], ("begun",))[0] == "begun":
            found[each["test"]] = each["outcome"], each.get("why", "")
    return found


def judged(found, differences):
    """Mark what fails on purpose as different, and say of which listed tests nothing differs."""
    for test, (outcome, _) in list(found.items()):
        reason = next((d["reason"] for d in differences if fnmatch.fnmatchcase(name_of(test), d["test"])), "")
        if reason and outcome in ("failed", "hung"):
            found[test] = "different", reason
        elif reason and outcome == "passed":
            found[test] = "passed", f"and is listed as different: {reason}"
    return found


def name_of(test):
    return test.rpartition("/")[2]


def imports_of(checkout, folder):
    """What `import_all.py` says of the checkout."""
    result = folder / "imports.json"
    command = [sys.executable, "-m", "rlinf_scheduler", HERE / "import_all.py", checkout, result]
    with (folder / "imports.out").open("wb") as output:
        try:
            subprocess.run(
                list(map(str, command)),
                cwd=folder,
                env=environment(checkout, (), folder / "none"),
                stdout=output,
                stderr=output,
                timeout=IMPORTS_LIMIT_S,
                check=True,
            )
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            return {"modules": 0, "failed": {"import_all.py": str(error)}, "stood_in": []}
    return json.loads(result.read_text(encoding="utf-8"))


def is_ours(problem):
    """Whether a module could not be imported for something that our scheduler lacks."""
    return problem.startswith("lacking: ")


def table(results, imports):
    """All of it in Markdown."""
    yield "| tests of | " + " | ".join(OUTCOMES) + " |"
    yield "|---" + "|---:" * len(OUTCOMES) + "|"
    total = Counter()
    for file, found in results.items():
        counts = Counter(outcome for outcome, _ in found.values())
        total += counts
        yield f"| {file} | " + " | ".join(str(counts[each] or "") for each in OUTCOMES) + " |"
    yield "| all | " + " | ".join(str(total[each]) for each in OUTCOMES) + " |"
    yield ""
    ours = {name: problem for name, problem in imports["failed"].items() if is_ours(problem)}
    rest = {name: problem for name, problem in imports["failed"].items() if name not in ours}
    yield f"Imported: {imports['modules']} modules. {len(ours)} lack a name of ours, {len(rest)} fail otherwise."
    yield f"Stood in for, since not installed here: {', '.join(imports['stood_in']) or 'nothing'}."
    for heading, listed in details(results, ours, rest):
        yield from ("", f"## {heading}", "", *listed)


def details(results, ours, rest):
    titles = {
        "failed": "Missing or failing",
        "hung": "Hung",
        "not collected": "Not collected",
        "different": "Deliberately different",
        "fails on both": "Fails in this environment on RLinf's own scheduler, too",
    }
    for outcome, title in titles.items():
        rows = [
            f"- `{name_of(test)}`: {why.splitlines()[0] if why else ''}"
            for found in results.values()
            for test, (came, why) in found.items()
            if came == outcome
        ]
        if rows:
            yield title, rows
    stale = [
        f"- `{name_of(test)}`: {why}"
        for found in results.values()
        for test, (came, why) in found.items()
        if came == "passed" and why
    ]
    if stale:
        yield "Listed as different, and pass", stale
    if ours:
        yield (
            "Modules that lack a name of ours",
            [f"- `{name}`: {why.splitlines()[0]}" for name, why in ours.items()],
        )


def by_reason(failed):
    """What could not be imported, by why; an error of several lines is as long as it is."""
    modules = {}
    for name, why in failed.items():
        modules.setdefault(why.removeprefix("lacking: "), []).append(name)
    for why, names in modules.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        first, *others = why.splitlines()
        yield f"- {', '.join(f'`{name}`' for name in names[:3])}{more}: {first}"
        yield from (f"  - {line.strip()}" for line in others)


def main(arguments):
    parser = argparse.ArgumentParser(description="RLinf's own tests of its scheduler, on this one.")
    parser.add_argument("checkout", nargs="?", default="", help="a checkout of RLinf")
    parser.add_argument("--table", help="where to write the table: .md, or .json with all outcomes")
    parser.add_argument(
        "--tests", default="", help="the files, without test_ and .py; all of the scheduler's else"
    )
    parser.add_argument("--compare", action="store_true", help="run what fails on RLinf's own scheduler, too")
    parser.add_argument("--no-imports", action="store_true", help="leave the import of all modules out")
    given = parser.parse_args(arguments)
    checkout = Path(given.checkout).resolve()
    if not given.checkout or not (checkout / "rlinf" / "__init__.py").exists():
        where = f"{checkout} is no checkout of RLinf" if given.checkout else "which checkout of RLinf"
        sys.stderr.write(f"{where}: make rlinf RLINF=/path/to/checkout, after `git clone` of RLinf, say\n")
        return 2
    with (HERE / "different.toml").open("rb") as file:
        differences = tomllib.load(file).get("different", [])
    folder = Path(tempfile.mkdtemp(prefix="rlinf-checkout-"))
    sys.stderr.write(f"what the processes print is in {folder}\n")
    imports = (
        {"modules": 0, "failed": {}, "stood_in": []} if given.no_imports else imports_of(checkout, folder)
    )
    stood_in = imports["stood_in"] or third_parties_of(checkout)
    results = {}
    for file in test_files(checkout, given.tests.split()):
        found = judged(outcomes_of(file, checkout, stood_in, folder), differences)
        if given.compare:
            found = compared(found, file, checkout, stood_in, folder)
        results[file.name] = found
        sys.stderr.write(f"{file.name}: {dict(Counter(outcome for outcome, _ in found.values()))}\n")
    text = "\n".join(table(results, imports)) + "\n"
    sys.stdout.write(text)
    if given.table:
        told = json.dumps({"tests": results, "imports": imports}, indent=1)
        Path(given.table).write_text(told if given.table.endswith(".json") else text, encoding="utf-8")
    bad = {"failed", "hung", "not collected"}
    is_good = all(outcome not in bad for found in results.values() for outcome, _ in found.values())
    return 0 if is_good and not any(map(is_ours, imports["failed"].values())) else 1


def third_parties_of(checkout):
    from import_all import third_parties

    return third_parties(checkout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
