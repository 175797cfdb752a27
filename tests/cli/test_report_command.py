"""`rlinf report`: another terminal asks a running job where its time goes."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

from typer.testing import CliRunner

from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler.cli.main import app
from waits import wait_until

DEADLINE_S = 60.0


def rlinf_report(*arguments):
    return CliRunner().invoke(app, ["report", "--job", str(os.getpid()), *arguments])


def test_another_terminal_is_told_where_the_time_goes():
    with LocalRuntime(), ThreadPoolExecutor(1) as threads:
        channel = Channel.create("trajectories")
        waiting = threads.submit(channel.get, timeout_s=DEADLINE_S)
        # What is there already when somebody waits for it is no wait.
        wait_until(lambda: channel.stats().num_getters)
        channel.put("one")
        assert waiting.result() == "one"
        found = rlinf_report("--json")
        assert found.exit_code == 0, found.stderr
        data = json.loads(found.stdout)
        refused = rlinf_report("--step", "actor.update")
    (driver,) = data["groups"]
    waits = {wait["operation"]: wait for wait in driver["methods"][0]["waits"]}
    assert "driver" in waits["get('trajectories')"]["ended_by"]
    assert data["missing"] == {}
    assert data["step"] is None
    assert refused.exit_code == 2
    assert "no rank was called so; nothing was called yet" in refused.stderr
