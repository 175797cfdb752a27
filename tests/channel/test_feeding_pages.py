"""The programs of the how-to pages about feeding run as they are written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs/how-to"
PROGRAMS = [
    (page, number, program)
    for page in ("end-a-queue", "feed-ranks-evenly")
    for number, program in enumerate(
        re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.S)
    )
]


@pytest.mark.parametrize(("page", "number", "program"), PROGRAMS)
def test_a_program_prints_what_its_comments_say(page, number, program, tmp_path):
    script = tmp_path / f"{page}-{number}.py"
    script.write_text(program)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    expected = re.findall(r"print\(.*\)  # (.*)", program)
    assert ran.stdout.splitlines() == expected
