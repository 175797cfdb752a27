"""The manifest of the page on Kubernetes: what KubeRay's schema wants, and what the page says of it."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import ray
import yaml

from page_programs import files_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "run-on-kubernetes.md").read_text(encoding="utf-8")
MANIFEST = files_of(PAGE)["raycluster.yaml"]
SCHEMA = json.loads((ROOT / "tests" / "data" / "raycluster.schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def spec():
    return yaml.safe_load(MANIFEST)["spec"]


def test_the_manifest_is_what_kuberays_schema_wants():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(yaml.safe_load(MANIFEST), SCHEMA, jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("minReplicas: 2", "minReplica: 2"),
        ("groupName: gpus", "name: gpus"),
        ('include-dashboard: "false"', "include-dashboard: false"),
        ("memory: 32Gi", "memory: 32GB"),
        ("replicas: 2", "replicas: two"),
    ],
)
def test_a_slip_of_the_pen_does_not_pass(written, instead):
    assert written in MANIFEST
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(MANIFEST.replace(written, instead)), SCHEMA)


def test_its_ray_is_the_one_that_is_tested_here_and_asks_for_a_token(spec):
    assert spec["rayVersion"] == ray.__version__
    assert f"FROM rayproject/ray:{ray.__version__}-py311" in PAGE
    assert spec["authOptions"] == {"mode": "token"}


def test_the_program_waits_for_all_pods_and_no_two_workers_share_a_machine(spec):
    (group,) = spec["workerGroupSpecs"]
    assert group["minReplicas"] == group["replicas"] == group["maxReplicas"]
    assert {int(n) for n in re.findall(r"num[_-]nodes[= ](\d+)", PAGE)} == {group["replicas"] + 1}
    (rule,) = group["template"]["spec"]["affinity"]["podAntiAffinity"].values()
    assert rule[0]["labelSelector"]["matchLabels"] == {"ray.io/group": group["groupName"]}


def test_what_is_mounted_is_a_volume_and_requests_are_limits(spec):
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert [mount["name"] for mount in container["volumeMounts"]] == [v["name"] for v in pod["volumes"]]
        assert container["resources"]["requests"] == container["resources"]["limits"]
