"""The page of a job, put together from the files in `static/`: one file that asks for nothing from outside."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

# In the order in which they use each other.
SCRIPTS = (
    "words.js",
    "history.js",
    "devices.js",
    "flow.js",
    "layers.js",
    "elements.js",
    "map_view.js",
    "flow_view.js",
    "timeline_view.js",
    "why_view.js",
    "tables.js",
    "details.js",
    "stream.js",
    "main.js",
)
_MARKER = re.compile(r"@([A-Z_]+)@")


@dataclass(frozen=True, slots=True)
class Page:
    """The page, and its policy on contents: its style and script, questions to who served it, nothing else."""

    html: bytes
    policy: str


@cache
def job_page() -> Page:
    """The page; the same for every job, whose data its script asks for."""
    style = page_file("job.css")
    script = "\n".join(page_file(name) for name in SCRIPTS)
    texts = {"STYLE": style, "SCRIPT": script}
    html = _MARKER.sub(lambda match: texts[match[1]], page_file("job.html"))
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html.encode(), policy)


def page_file(name: str) -> str:
    """One of the files that the page is made of."""
    return files("rlinf_scheduler.observe.web").joinpath("static", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
