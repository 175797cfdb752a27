"""A plug-in of pytest that writes what becomes of each test into the file `OUTCOME_LOG`, line by line, as it happens.

So the outcome of all tests before one that hangs, or ends its process, is known.
"""

import json
import os

import pytest


def _write(**what):
    with open(os.environ["OUTCOME_LOG"], "a", encoding="utf-8") as file:
        file.write(json.dumps(what) + "\n")


def pytest_collectreport(report):
    if report.failed:
        _write(test=report.nodeid, outcome="not collected", why=_last_line(report.longreprtext))


def pytest_runtest_logstart(nodeid, location):
    _write(test=nodeid, outcome="begun")


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    if report.failed or report.skipped or report.when == "call":
        outcome = "hung" if "Timeout (>" in report.longreprtext else report.outcome
        _write(
            test=report.nodeid, outcome=outcome, why="" if report.passed else _last_line(report.longreprtext)
        )


def _last_line(text):
    """The line that says most: the last one that an exception is told in."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line.removeprefix("E").strip() for line in lines if line.startswith("E  ")]
    return (told or lines or [""])[0][:300]
