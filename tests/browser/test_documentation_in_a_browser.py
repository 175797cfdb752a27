"""The documentation's first page in a real browser, as `make docs` builds it: without an error, with its search."""

import functools
import importlib.util
import os
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import expect

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages, without the reference that is read from the sources: that takes half a minute."""
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        pytest.skip("MkDocs is not installed; `make docs` installs it")
    folder = tmp_path_factory.mktemp("site")
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    config |= {"plugins": ["search"], "docs_dir": str(ROOT / "docs"), "site_dir": str(folder / "built")}
    config["hooks"] = [str(ROOT / hook) for hook in config["hooks"]]
    config["theme"]["custom_dir"] = str(ROOT / config["theme"]["custom_dir"])
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", folder / "mkdocs.yml"]
    subprocess.run(command, check=True, timeout=100, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    handler = functools.partial(Quiet, directory=folder / "built")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        serving.join()


def test_first_page_opens_can_be_read_in_the_dark_is_searched_and_leads_on(open_page, site):
    page = open_page(site)
    expect(page.get_by_role("heading", level=1).first).to_be_visible()

    before = page.locator("body").get_attribute("data-md-color-scheme")
    page.locator("label[title='Dark'], label[title='Light']").locator("visible=true").first.click()
    expect(page.locator("body")).not_to_have_attribute("data-md-color-scheme", before)

    # It listens for keys that are let go, once it is ready.
    page.get_by_role("textbox", name="Search").press_sequentially("lease")
    found = page.locator(".md-search-result__item a").filter(has_text="Take items on lease")
    expect(found.first).to_be_visible()

    page.keyboard.press("Escape")
    page.get_by_role("link", name="Quickstart").first.click()
    expect(page).to_have_url(f"{site}quickstart/")
