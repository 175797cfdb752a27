"""A job on Ray whose config says that its nodes are far from each other, and that it is traced."""

import json
import os

import pytest

from programs import run_program

PROGRAM = """
import sys, time
import numpy as np
from rlinf.scheduler import Channel, Cluster, ComponentPlacement, Tracer, Worker

CONFIG = {
    "cluster": {
        "num_nodes": 2,
        "component_placement": {
            "actor": {"node_group": "near", "placement": "0"},
            "rollout": {"node_group": "far", "placement": "0"},
        },
        "node_groups": [{"label": "near", "node_ranks": 0}, {"label": "far", "node_ranks": 1}],
        "tracer": {"enable": True, "output_file": sys.argv[1]},
        "net_emulation": {
            "enabled": True,
            "crossdc_pairs": [{"src": "far", "dst": "near", "delay_ms": 300}],
            "bandwidth_groups": [{"members": "rollout", "bandwidth_mbps": 80}],
        },
    }
}
SIZE = 12_000_000  # 1.2 s

class Rollout(Worker):
    def send_much(self):
        began = time.monotonic()  # of all processes of a machine
        self.send(np.zeros(SIZE, np.uint8), "actor", 0)
        return began

    @Tracer.trace_func(cat="rollout")
    def put(self):
        Channel.connect("items").put("item")

class Actor(Worker):
    def receive(self):
        return len(self.recv("rollout", 0)), time.monotonic()

    def get(self):
        return Channel.connect("items").get(timeout_s=60)

with Cluster(CONFIG) as cluster:
    placement = ComponentPlacement(CONFIG, cluster)
    actor = Actor.create_group().launch(cluster, placement.get_strategy("actor"), name="actor")
    rollout = Rollout.create_group().launch(cluster, placement.get_strategy("rollout"), name="rollout")
    Channel.create("items")
    for _ in range(20):  # on a busy machine a look may come too late for one
        receiving, sending = actor.receive(), rollout.send_much()
        text = str(cluster.why())
        (size, came_at), = receiving.wait(60)
        (sent_at,) = sending.wait(60)
        if "emulated link" in text:
            break
    print(text)
    began = time.monotonic()
    with Tracer.trace_span("exchange", cat="runner", args={"step": 3}):
        rollout.put().wait(60)
        assert actor.get().wait(60) == ["item"]
    print("took", size, came_at - sent_at, time.monotonic() - began)
"""


@pytest.mark.system
@pytest.mark.ray(first=True)  # other tests keep devices
def test_a_job_sees_the_emulated_network_and_says_so(tmp_path, ray_address):
    trace = tmp_path / "trace" / "run.jsonl"
    environment = {**os.environ, "RAY_ADDRESS": ray_address}
    done = run_program("-c", PROGRAM, str(trace), with_ray=True, env=environment, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    *why, took = done.stdout.splitlines()
    size, message_s, item_s = map(float, took.split()[1:])
    assert size == 12_000_000
    assert message_s >= 0.3 + 1.2
    assert item_s >= 0.3
    (line,) = [each for each in why if each.startswith("  actor:0 waits")]
    assert "recv" in line
    assert "the emulated link rollout:0 -> actor:0: 11.4 MiB at 80 Mbit/s, " in line
    assert " s to go" in line or "waits for its turn" in line
    events = [json.loads(each) for each in trace.read_text().splitlines()]
    processes = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    spans = {(processes[each["pid"]].split()[0], each["name"]): each for each in events if each["ph"] == "X"}
    assert ("actor:0", "the emulated link rollout:0 -> actor:0: 11.4 MiB") in spans
    assert ("rollout:0", "put") in spans
    assert spans["driver", "exchange"]["dur"] >= 0.3e6
    assert spans["driver", "exchange"]["args"]["of"] == "runner, step=3"
