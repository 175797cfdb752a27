"""Findings of pydantic in our words: nested settings of added hardware get paths and nearest keys too."""

from typing import Annotated, Literal

import pytest
from pydantic import Field, PlainValidator, field_validator

from rlinf_scheduler.config.findings import check
from rlinf_scheduler.errors import ConfigError, ConfigErrors, UnknownKey
from rlinf_scheduler.hardware import HardwareConfig


class Camera(HardwareConfig):
    node_rank: int = 0
    serial: str
    rate_hz: float = 30


def refuse_twice(value):
    raise ConfigErrors(
        [ConfigError("first", path="[0].a"), ConfigError("second", path=".b"), ConfigError("third")]
    )


class Rig(HardwareConfig):
    node_rank: int = 0
    cameras: list[Camera] = Field(default=[])
    main: Camera | None = None
    mode: Literal["live", "replay"] = "live"
    speed: Annotated[float, Field(gt=0, lt=10)] = 1.0
    ours: Annotated[object, PlainValidator(refuse_twice)] = None
    theirs: int = 0

    @field_validator("theirs")
    @classmethod
    def _odd(cls, value):
        if value % 2:
            raise ValueError("an even number is needed")
        return value


def findings(**settings):
    checked, errors = check(Rig, settings, "rig")
    assert (checked is None) == bool(errors)
    return [(error.path, error.problem, error.hint) for error in errors]


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, []),
        (
            {"cameras": [{"serial": "a"}, {"serial": "b", "rate": 60}]},
            [
                (
                    "rig.cameras[1].rate",
                    "unknown key 'rate'; there are node_rank, serial, rate_hz",
                    "did you mean 'rate_hz'?",
                )
            ],
        ),
        (
            {"main": {"serail": "a"}},
            [
                (
                    "rig.main.serail",
                    "unknown key 'serail'; there are node_rank, serial, rate_hz",
                    "did you mean 'serial'?",
                )
            ],
        ),
        (
            {"main": {"adress": "a"}},
            [
                (
                    "rig.main.adress",
                    "unknown key 'adress'; there are node_rank, serial, rate_hz",
                    "did you mean 'serial'? It is missing",
                )
            ],
        ),
        (
            {"main": {"rate": 60}},
            [
                ("rig.main", "the key 'serial' is missing", ""),
                (
                    "rig.main.rate",
                    "unknown key 'rate'; there are node_rank, serial, rate_hz",
                    "did you mean 'rate_hz'?",
                ),
            ],
        ),
        ({"main": {}}, [("rig.main", "the key 'serial' is missing", "")]),
        ({"mode": "dead"}, [("rig.mode", "this must be 'live' or 'replay', not 'dead'", "")]),
        ({"speed": 0.0}, [("rig.speed", "this must be more than 0.0, not 0.0", "")]),
        ({"speed": 10.0}, [("rig.speed", "this must be less than 10.0, not 10.0", "")]),
        ({"theirs": 3}, [("rig.theirs", "an even number is needed", "")]),
        (
            {"ours": 1},
            [("rig.ours[0].a", "first", ""), ("rig.ours.b", "second", ""), ("rig.ours", "third", "")],
        ),
    ],
)
def test_finding_has_its_path_and_what_is_wanted(settings, found):
    assert findings(**settings) == found


def test_unknown_key_is_an_error_of_its_own():
    _, (error,) = check(Rig, {"speeed": 1.0}, "rig")
    assert isinstance(error, UnknownKey)
