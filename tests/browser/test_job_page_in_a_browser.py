"""The page of a job in a real browser: it opens, follows, answers keys, stays fluent, and tells of its end."""

import re
from contextlib import closing

import pytest
from playwright.sync_api import expect

from browser import tasks_ms
from job_page import PAST_S, served

pytestmark = pytest.mark.system

# In processor time: so long no scroll and no key waits, and so much is left to who reads.
LONGEST_TASK_MS, WATCHED_S, SHARE_OF_A_CORE = 100, 2.0, 0.5


@pytest.fixture(scope="module")
def server():
    with closing(served(64)) as server:
        yield server


@pytest.fixture(scope="module")
def page(server, open_shared):
    return live(open_shared(server.url))


def live(page):
    expect(page.locator("#live")).to_contain_text("live, ")
    return page


def test_page_opens_with_what_the_job_is(page):
    expect(page).to_have_title(re.compile("rlinf$"))
    expect(page.locator("#summary")).to_contain_text("64 nodes · 512 devices")
    expect(page.locator("#why-headline")).to_contain_text("reward:12")
    expect(page.get_by_role("region", name="Channels")).to_contain_text("trajectories")


def test_the_minutes_before_it_was_opened_are_there(page):
    known = "[...Array(past.seconds).keys()].filter((back) => past.at('actor:0', back))"
    page.wait_for_function(f"() => past.newest !== null && Math.max(...{known}) > {PAST_S - 10}")


def test_updates_arrive_while_it_is_open_and_wait_while_it_is_paused(page):
    seen = page.locator("#live").inner_text()
    expect(page.locator("#live")).not_to_have_text(seen)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#live")).to_have_text("paused")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#live")).to_contain_text("live, ")


def test_a_rank_is_found_and_left_again_by_keys_alone(page):
    title = page.locator("#details-title")
    page.keyboard.press("/")
    page.keyboard.type("rollout:97")
    page.keyboard.press("Enter")
    expect(title).to_have_text("rollout:97")
    assert page.locator(".bar:not(.dim)").count() >= 1
    assert page.locator(".bar.dim").count() > 400
    page.keyboard.press("Escape")
    expect(title).to_have_text("Details")


def test_arrow_keys_move_between_ranks(page):
    page.locator(".bar[tabindex='0']").focus()
    first = page.locator(".bar:focus").get_attribute("data-id")
    page.keyboard.press("ArrowRight")
    second = page.locator(".bar:focus").get_attribute("data-id")
    assert first != second
    page.keyboard.press("Enter")
    expect(page.locator("#details-title")).to_have_text(second)


def test_512_ranks_stay_fluent(page):
    assert page.locator(".bar").count() >= 512
    tasks = tasks_ms(page, WATCHED_S)
    assert len(tasks) > WATCHED_S  # it was drawn meanwhile
    assert max(tasks) < LONGEST_TASK_MS
    assert sum(tasks) < 1000 * WATCHED_S * SHARE_OF_A_CORE


def test_a_job_that_has_ended_says_so_and_shows_what_was_last_seen(open_page):
    with closing(served(2)) as server:
        # The browser itself says that nobody is there any more: of what was under way, and of what is asked again.
        page = live(open_page(server.url, allowed=["Failed to load resource"]))
        server.close()
        expect(page.get_by_role("alert")).to_contain_text("The job has ended")
        expect(page.get_by_role("alert")).to_contain_text("Below is what was last seen.")
        expect(page.locator("#live")).to_have_text("no news")
        assert page.locator(".bar").count() >= 16
