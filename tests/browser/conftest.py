"""A real browser, one for all tests of a file; without Chromium they are skipped."""

import contextlib

import pytest
from playwright.sync_api import expect

from browser import CHROMIUM, MISSING, chromium, complaints_of

# A machine that does much else draws late.
DEADLINE_MS = 30_000


@pytest.fixture(scope="module")  # not longer: while it is open no other test may have an event loop
def browser():
    if CHROMIUM is None:
        pytest.skip(MISSING)
    expect.set_options(timeout=DEADLINE_MS)
    with chromium() as started:
        yield started


@contextlib.contextmanager
def window(browser):
    """Opens addresses in a window; no page may complain on its console, but of what is allowed."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(DEADLINE_MS)
    complaints = []

    def opened(url, allowed=()):
        page = context.new_page()
        complaints.append((complaints_of(page), allowed))
        page.goto(url)
        return page

    yield opened
    context.close()
    for said, allowed in complaints:
        assert [text for text in said if not any(part in text for part in allowed)] == []


@pytest.fixture
def open_page(browser):
    """Opens pages in a window of the test's own."""
    with window(browser) as opened:
        yield opened


@pytest.fixture(scope="module")
def open_shared(browser):
    """Opens pages that the tests of a file share, each of which leaves them as they were."""
    with window(browser) as opened:
        yield opened
