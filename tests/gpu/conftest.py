"""Tests that need an accelerator: `pytest -m gpu`. Without one they are skipped."""

import pytest
import torch

from comm_fixtures import *  # noqa: F403


@pytest.fixture(autouse=True)
def cuda():
    """CUDA, initialised in this process; its index 0 is the device that the tests use."""
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here")
    torch.cuda.init()
    return torch.device("cuda:0")
