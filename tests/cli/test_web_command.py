"""`rlinf web`: another terminal serves the page of a running job, until that ends."""

import json
import os
import subprocess
import sys
import urllib.request

from typer.testing import CliRunner

from rlinf.cli.main import app
from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime

DEADLINE_S = 60.0
COMMAND = [sys.executable, "-c", "from rlinf.cli.main import main; main()", "web", "--json", "--job"]


def test_another_terminal_serves_the_page_until_the_job_ends():
    with LocalRuntime():
        Channel.create("tasks").put("one")
        command = [*COMMAND, str(os.getpid())]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        found = json.loads(process.stdout.readline())
        assert found["job"] == os.getpid()
        address = found["url"].replace("/?", "/status.json?")
        with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
            status = json.loads(answer.read())
    assert [channel["name"] for channel in status["channels"]] == ["tasks"]
    assert "rlinf-web" not in json.dumps(status)
    assert process.communicate(timeout=DEADLINE_S) == ("", "the job has ended\n")
    assert process.returncode == 0


def test_a_job_that_is_not_there_is_a_wrong_question():
    done = CliRunner().invoke(app, ["web", "--job", "1"])
    assert done.exit_code == 2
    assert done.stderr.startswith("rlinf: no job's driver is process 1 of this machine")
