"""`rlinf web`: another terminal serves the page of a running job, until that ends."""

import json
import os
import urllib.request

from typer.testing import CliRunner

from programs import RLINF, Program
from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler.cli.main import app

DEADLINE_S = 60.0


def test_another_terminal_serves_the_page_until_the_job_ends():
    with LocalRuntime():
        Channel.create("tasks").put("one")
        process = Program("-c", RLINF, "web", "--json", "--job", os.getpid())
        found = json.loads(process.stdout.readline())
        assert found["job"] == os.getpid()
        address = found["url"].replace("/?", "/status.json?")
        with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
            status = json.loads(answer.read())
    assert [channel["name"] for channel in status["channels"]] == ["tasks"]
    assert "rlinf-web" not in json.dumps(status)
    with process:
        assert process.wait(DEADLINE_S) == 0
        assert (process.stdout.read(), process.stderr.read()) == ("", "the job has ended\n")


def test_a_job_that_is_not_there_is_a_wrong_question():
    done = CliRunner().invoke(app, ["web", "--job", "1"])
    assert done.exit_code == 2
    assert done.stderr.startswith("rlinf: no job's driver is process 1 of this machine")
