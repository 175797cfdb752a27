"""The program of the page about calls runs and prints what stands below it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "follow-a-call.md"

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]


def test_the_program_prints_what_the_page_says(tmp_path):
    text = PAGE.read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (output,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    (tmp_path / "follow_a_call.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "follow_a_call.py"], cwd=tmp_path, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == output
