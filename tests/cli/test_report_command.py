"""`rlinf report`: another terminal asks a running job where its time goes."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime

DEADLINE_S = 60.0


def rlinf_report(*arguments):
    main = "from rlinf.cli.main import main; main()"
    command = [sys.executable, "-c", main, "report", "--job", str(os.getpid()), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_another_terminal_is_told_where_the_time_goes():
    with LocalRuntime(), ThreadPoolExecutor(2) as threads:
        channel = Channel.create("trajectories")
        waiting = threads.submit(channel.get, timeout_s=DEADLINE_S)
        asking = threads.submit(rlinf_report, "--json")
        # It waits until the question was answered.
        found = asking.result()
        channel.put("one")
        assert waiting.result() == "one"
        assert found.returncode == 0, found.stderr
        data = json.loads(rlinf_report("--json").stdout)
        refused = rlinf_report("--step", "actor.update")
    (driver,) = data["groups"]
    waits = {wait["operation"]: wait for wait in driver["methods"][0]["waits"]}
    assert "driver" in waits["get('trajectories')"]["ended_by"]
    assert data["missing"] == {}
    assert data["step"] is None
    assert refused.returncode == 2
    assert "no rank was called so; nothing was called yet" in refused.stderr
