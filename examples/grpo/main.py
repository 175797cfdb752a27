"""A tiny transformer learns to sort, by four components that a YAML file places. See README.md beside this file.

python examples/grpo/main.py --config-name collocated|disaggregated|hybrid [--resume]
"""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from post_training.program import exit_code

RESUME = "--resume"


@hydra.main(version_base=None, config_path="conf", config_name="disaggregated")
def main(cfg: DictConfig) -> None:
    """Hydra's entry point."""
    sys.exit(exit_code(cfg, Path(HydraConfig.get().runtime.output_dir), resume=resume))


if __name__ == "__main__":
    resume = RESUME in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != RESUME]  # the rest is Hydra's
    main()
