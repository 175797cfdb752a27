"""Stands for `ray start`: starts processes that outlive it, as Ray does, and says what it was given."""

import json
import os
import subprocess
import sys

PR_SET_NAME = 15  # prctl(2)
ENDS_WHEN_ASKED = f"""
import ctypes, signal
ctypes.CDLL(None).prctl({PR_SET_NAME}, b"raylet")
print("up", flush=True)
signal.pause()
"""
DOES_NOT_END = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
)
WITH_A_WORKER = f"""
import os, subprocess, sys
# A worker whose variables cannot be read any more, as of one that has given itself a title.
worker = subprocess.Popen([sys.executable, "-c", {ENDS_WHEN_ASKED!r}], stdout=subprocess.PIPE, env={{"PATH": ""}})
worker.stdout.readline()
{DOES_NOT_END}
"""
PROGRAMS = {"ends": ENDS_WHEN_ASKED, "stays": DOES_NOT_END, "worker": WITH_A_WORKER}

with open(os.environ["FAKE_RAY_SAYS"], "w") as file:
    given = {
        name: value for name, value in os.environ.items() if name.startswith(("RAY_", "RLINF_", "GLIBC_"))
    }
    json.dump({"arguments": sys.argv[1:], "environment": given}, file)
for name in os.environ["FAKE_RAY_STARTS"].split():
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAMS[name]],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    program.stdout.readline()
sys.stdout.write("the last words of ray start\n")
sys.stdout.flush()
if os.environ["FAKE_RAY_ENDS"] == "never":
    import signal

    signal.pause()
sys.exit(int(os.environ["FAKE_RAY_ENDS"]))
