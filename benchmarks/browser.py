"""A headless Chromium, told what to do over two pipes: it opens pages, takes pictures, and says what its work costs."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any, Self

DEADLINE_S = 60.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
MAIN_THREAD = "CrRendererMain"


class Browser:
    """One page of a browser; as a context manager it ends with its block.

    Raises:
        FileNotFoundError: there is no Chromium.
    """

    def __init__(self) -> None:
        program = shutil.which("chromium")
        if program is None:
            raise FileNotFoundError("there is no `chromium`; Debian's package of that name has it")
        self._profile = tempfile.TemporaryDirectory(prefix="rlinf-browser-", ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Chromium reads its descriptor 3 and writes its 4.
        script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        command = [
            "bash",
            "-c",
            script,
            program,
            *_FLAGS,
            f"--user-data-dir={self._profile.name}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            command, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self.events: deque[dict[str, Any]] = deque()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_S)
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Have something done, and wait for what came of it."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._in, 1 << 20)
            if not more:
                raise ConnectionError("the browser has ended")
            self._rest += more
        message, self._rest = self._rest.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found

    def evaluate(self, expression: str) -> Any:
        """What an expression comes to on the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"]["description"])
        return found["result"].get("value")

    def show(self, url: str, width: int, height: int, *, dark: bool = False) -> None:
        """Open a page in a window of a size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)

    def wait_until(self, expression: str) -> None:
        """Wait until an expression is true on the page.

        Raises:
            TimeoutError: it is not after a minute.
        """
        until = time.monotonic() + DEADLINE_S
        while not self.evaluate(expression):
            if time.monotonic() > until:
                raise TimeoutError(f"not after {DEADLINE_S:.0f} s: {expression}")
            time.sleep(0.05)

    def picture(self, path: Path) -> None:
        """Save what the window shows."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def complaints(self) -> list[str]:
        """What the page's console said."""
        found = []
        for event in self.events:
            if event.get("method") == "Log.entryAdded":
                found.append(event["params"]["entry"]["text"])
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"].get("exception", {}).get("description")))
        return found

    def tasks_ms(self, seconds: float) -> list[float]:
        """What processor time each task of the page's main thread took, for so many seconds, in milliseconds."""
        self.call(
            "Tracing.start",
            traceConfig={"includedCategories": ["toplevel", "disabled-by-default-devtools.timeline"]},
        )
        time.sleep(seconds)
        self.call("Tracing.end")
        traced: list[dict[str, Any]] = []
        while True:
            message = self.events.popleft() if self.events else self._read()
            if message.get("method") == "Tracing.dataCollected":
                traced += message["params"]["value"]
            if message.get("method") == "Tracing.tracingComplete":
                return _main_tasks(traced)


def _main_tasks(traced: list[dict[str, Any]]) -> list[float]:
    threads = {
        (each["pid"], each["tid"])
        for each in traced
        if each["name"] == "thread_name" and each["args"]["name"] == MAIN_THREAD
    }
    return [
        each["tdur"] / 1000
        for each in traced
        if each["name"] == "RunTask" and "tdur" in each and (each["pid"], each["tid"]) in threads
    ]
