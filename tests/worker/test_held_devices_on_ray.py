"""Devices belong to one job at a time, and Ray's own programs do not get them either."""

from pathlib import Path

import pytest
import ray

from programs import RLINF, Program, run_program
from waits import wait_until

PROGRAM = Path(__file__).with_name("devices_job.py")
# Ray programs that are not ours: they take as many GPUs as they are told, and say which they have got.
FOREIGN = """
import sys, ray
from ray._private import ray_constants
ray_constants.ENABLE_RAY_CLUSTER = False  # else it takes another address than 127.0.0.1
ray.init(address=sys.argv[1], log_to_driver=False)
@ray.remote(num_gpus=int(sys.argv[2]), num_cpus=0)
class Taker:
    def devices(self):
        return ray.get_gpu_ids()
taker = Taker.remote()
ready, _ = ray.wait([taker.devices.remote()], timeout=float(sys.argv[3]))
print("got", *ray.get(ready[0]) if ready else ["nothing"], flush=True)
sys.stdin.readline()
"""


class Job:
    """A program with a job of its own; `tell` gives it a line and returns its answer, as words."""

    def __init__(self, *command):
        self.process = Program(*command, with_ray=True, stderr=2)
        try:
            self.first = self.answer()
        except BaseException:
            self.process.kill()
            self.end()
            raise

    def answer(self):
        for line in self.process.stdout:
            if line.startswith(("ready", "done", "error", "got")):
                return line.split()
        raise AssertionError("it has ended")

    def say(self, *words):
        print(*words, file=self.process.stdin, flush=True)

    def tell(self, *words):
        self.say(*words)
        return self.answer()

    def end(self):
        with self.process:
            self.process.stdin.close()
            self.process.wait(60)


@pytest.fixture
def start(ray_address):
    """Start a job on the Ray of the tests, which has two nodes of four devices."""
    jobs, num_free = [], ray.available_resources()["GPU"]

    def start_job(*command):
        jobs.append(Job(*(command or (PROGRAM, ray_address))))
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.end()
    # Ray hears later of the end of programs that are not ours.
    wait_until(lambda: ray.available_resources().get("GPU", 0) >= num_free)


@pytest.fixture
def foreign(ray_address, start):
    """Start a Ray program that is not ours."""
    return lambda count, wait_s=60: start("-c", FOREIGN, ray_address, count, wait_s)


# Other tests keep devices; here all are free.
pytestmark = [pytest.mark.ray(first=True), pytest.mark.system]


def test_a_second_job_is_refused_by_the_name_of_the_first_and_gets_the_devices_when_that_is_killed(start):
    first, second = start(), start()
    assert first.tell("launch", "1,2", 0)[0] == "done"
    assert first.tell("launch", "2,3", 0)[0] == "done"  # its own groups share
    refusal = " ".join(second.tell("launch", "0,1,2", 0))
    assert "DeviceHeld" in refusal
    assert "simulated 1-2 of node 0" in refusal
    assert f"(process {first.process.pid} on" in refusal
    assert second.tell("launch", "0", 0)[0] == "done"
    second.say("launch", "3", 120)
    first.process.kill()
    assert second.answer()[0] == "done"


def test_ray_gives_others_exactly_the_devices_that_no_job_holds_and_the_command_shows_them(
    start, foreign, ray_address
):
    job = start()
    assert job.tell("launch", "1,2", 0)[0] == "done"
    assert job.tell("launch", "4,5,6,7", 0)[0] == "done"
    shown = run_program("-c", RLINF, "devices", "--address", ray_address, with_ray=True, timeout=120)
    assert shown.returncode == 0, shown.stderr
    _, one_by_one, rest, whole = (line.split(maxsplit=3) for line in shown.stdout.splitlines())
    assert (one_by_one[0], one_by_one[2]) == ("0", "1-2")
    assert f"(process {job.process.pid} on" in one_by_one[3]
    assert rest[2:] == ["0,3", "free"]
    assert (whole[0], whole[2]) == ("1", "4-7")  # as the node's mask calls them
    assert sorted(foreign(2).first[1:]) == ["0", "3"]
    assert foreign(1, wait_s=1).first == ["got", "nothing"]


def test_devices_that_ray_gave_to_others_are_refused(start, foreign):
    taken = {int(device) for device in foreign(4).first[1:]}
    assert taken == {0, 1, 2, 3}
    job = start()
    refusals = [" ".join(job.tell("launch", devices, 0)) for devices in ("0,1", "4,5")]
    assert sum("given by Ray to programs that are not ours" in refusal for refusal in refusals) == 1


def test_processes_of_one_job_reserve_at_the_same_moment(start):
    # Ray gives the first device that is free: it is given back, and on its way when the other one is asked for.
    assert start().tell("reserve", "1", "0,2,3") == ["done"]
