"""The page of a plan in a real browser: ranks and nodes are found, components shown and hidden, keys move."""

import pytest
from playwright.sync_api import expect

from plan_files import plan_mixed_fleet, rlinf

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    plan = tmp_path_factory.mktemp("plan") / "plan.html"
    plan_mixed_fleet("--html", plan)
    return plan.as_uri()


@pytest.fixture(scope="module")
def page(open_shared, url):
    return open_shared(url)


def test_page_opens_with_every_node_and_device(page):
    expect(page.get_by_role("heading", level=1)).to_contain_text("Plan of")
    assert page.locator(".node").count() == 18
    # The nodes of robots have no accelerators, but cells of their own.
    assert page.locator(".cell").count() == page.evaluate("cells.size")


def test_a_rank_is_found_and_arrow_keys_move_on_from_it(page):
    page.locator("#find").fill("actor 12")
    page.keyboard.press("Enter")
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text("actor rank 12")
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("actor rank 13")
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_what_is_not_there_is_said(page):
    page.locator("#find").fill("actor 999")
    page.keyboard.press("Enter")
    expect(page.locator("#found")).to_have_text("nothing is called 'actor 999'")


def test_components_are_shown_and_hidden(page):
    actor = page.locator("#legend li").filter(has_text="actor")
    bands = page.locator(".cell i[data-name^='actor ']")
    expect(bands.first).to_be_visible()
    actor.get_by_role("checkbox").uncheck()
    expect(bands.first).to_be_hidden()
    page.get_by_role("button", name="all", exact=True).click()
    expect(bands.first).to_be_visible()


def test_an_address_names_what_to_show(open_page, url):
    page = open_page(f"{url}#actor:12")
    expect(page.get_by_role("tooltip")).to_contain_text("actor rank 12")


def test_512_nodes_are_drawn(open_page, tmp_path):
    config = tmp_path / "big.yaml"
    config.write_text("cluster: {component_placement: {actor: all, env: '0-2047:0-8191'}}")
    assert rlinf("plan", config, "--nodes", "512x8", "--html", tmp_path / "plan.html").exit_code == 0
    page = open_page((tmp_path / "plan.html").as_uri())
    assert page.locator(".cell").count() == 4096
    page.locator("#find").fill("env 8191")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tooltip")).to_contain_text("env rank 8191")
