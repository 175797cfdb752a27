"""A headless Chromium, driven by Playwright: what a page says on its console, and what its work costs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "there is no Chromium; Debian's package of that name has it"
MAIN_THREAD = "CrRendererMain"
# As root, and in containers, Chromium's own sandbox cannot start.
_FLAGS = ("--no-sandbox", "--disable-gpu")
_TRACED = ("toplevel", "disabled-by-default-devtools.timeline")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start this machine's Chromium; it ends with the block.

    Raises:
        FileNotFoundError: there is none.
    """
    if CHROMIUM is None:
        raise FileNotFoundError(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def complaints_of(page: Page) -> list[str]:
    """Return a list that grows with each error, warning and exception of the page."""
    said: list[str] = []
    page.on("console", lambda each: said.append(each.text) if each.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    return said


def tasks_ms(page: Page, seconds: float) -> list[float]:
    """Return the processor time of each task of the page's main thread within so many seconds, in milliseconds."""
    session: CDPSession = page.context.new_cdp_session(page)
    traced: list[dict[str, Any]] = []
    complete = threading.Event()
    session.on("Tracing.dataCollected", lambda found: traced.extend(found["value"]))
    session.on("Tracing.tracingComplete", lambda _: complete.set())
    session.send("Tracing.start", {"traceConfig": {"includedCategories": list(_TRACED)}})
    page.wait_for_timeout(seconds * 1000)
    session.send("Tracing.end")
    while not complete.is_set():
        page.wait_for_timeout(10)  # which hands out what the browser sends meanwhile
    session.detach()
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
