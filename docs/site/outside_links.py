"""Links of the pages that leave `docs/` (to an example, to a source) lead to the repository on the site."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Called by MkDocs for every page."""
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def rewrite(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        return link[1] if target.startswith("docs/") else f"{config.repo_url}/blob/main/{target}"

    return _LINK.sub(rewrite, markdown)
