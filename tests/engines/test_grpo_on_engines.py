"""The example of a post-training whose answers an engine writes: a few steps of it, as its users start it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 600.0


@pytest.mark.ray(own=True)
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    ("engine", "mode"), [("own", "hybrid"), ("transformers", "disaggregated"), ("vllm", "collocated")]
)
def test_answers_of_an_engine_are_learned_from(engine, mode, tmp_path):
    for needed in {"transformers", engine} - {"own"}:
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    program = [sys.executable, str(ROOT / "examples/grpo/main.py"), "--config-name", mode]
    settings = ["num_steps=2", "required_reward=0", f"engine={engine}", "grpo.prompts_per_step=4"]
    options = ["model=transformers", *(f"training.{each}" for each in settings), f"hydra.run.dir={tmp_path}"]
    ran = subprocess.run(
        [*program, *options],
        cwd=ROOT,
        env=os.environ | {"HYDRA_FULL_ERROR": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["mode"] == mode
    assert len(summary["rewards"]) == 2
