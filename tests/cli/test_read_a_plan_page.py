"""The page on reading a plan: its program runs as a reader would paste it."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/how-to/read-a-plan.md").read_text()


def test_program_of_the_page_says_what_is_shared(tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "placement.yaml").write_text("cluster: {component_placement: {actor: 0-7, rollout: 7-15}}")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("they take turns on (SharedDevice(node_rank=0, hardware_type='GPU', "), (
        done.stderr
    )
