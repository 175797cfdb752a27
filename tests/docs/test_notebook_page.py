"""The cells of the page on notebooks, one after the other, as a notebook runs them: one namespace, one event loop."""

import ast
import asyncio
import inspect
from pathlib import Path

import pytest

from page_programs import BLOCK

pytestmark = pytest.mark.system

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "work-in-a-notebook.md"
CELLS = [block[2] for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8")) if block[1] == "ipython"]


async def run_cell(cell, namespace):
    """The value of its last expression, as a notebook shows it."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    shown = None
    for part, mode in ((tree, "exec"), (last and ast.Expression(last.value), "eval")):
        if part is not None:
            code = compile(part, "<cell>", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            shown = eval(code, namespace)
            if inspect.iscoroutine(shown):
                shown = await shown
    return shown


@pytest.mark.ray
def test_the_cells_run_in_their_order(driver):
    async def notebook():
        namespace = {"__name__": "__main__"}
        return [await run_cell(cell, namespace) for cell in CELLS]

    shown = asyncio.run(notebook())
    assert [value for value in shown if isinstance(value, list)] == [[42, 42], [8, 8]]
    assert len(CELLS) == 5
