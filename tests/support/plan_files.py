"""Configs and commands that the tests of `rlinf plan` share."""

from pathlib import Path

from typer.testing import CliRunner

from rlinf_scheduler.cli.main import app

MIXED_FLEET = Path(__file__).parents[2] / "examples" / "mixed_fleet"


def rlinf(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def plan_mixed_fleet(*options):
    return rlinf("plan", MIXED_FLEET / "placement.yaml", "--fleet", MIXED_FLEET / "fleet.yaml", *options)
