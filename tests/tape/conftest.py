"""A rank that is recorded in the process of its test, which is also everybody else."""

import contextlib

import pytest

from rlinf.testing import LocalRuntime
from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import encode
from rlinf_scheduler.host.info import Role, packed_topology
from rlinf_scheduler.host.protocol import Assignment
from rlinf_scheduler.host.recording import open_recording
from rlinf_scheduler.planning import Node, Placement, Topology
from rlinf_scheduler.tape.tape import Tape

ADDRESS = WorkerAddress("actor", 0)


class RecordedHere:
    """A job of one rank, `actor:0`; what its worker does in `call` is recorded in `folder`."""

    def __init__(self, folder, **options):
        self.folder = str(folder)
        self._stack = contextlib.ExitStack()
        self.runtime = self._stack.enter_context(LocalRuntime(own_name=str(ADDRESS)))
        self.runtime.directory.register(str(ADDRESS), self.runtime.messenger.endpoint)
        assignment = Assignment(
            placement=Placement(rank=0, node_id="n", node_rank=0),
            node=Node(),
            world_size=1,
            environment={"RLINF_GROUP": "actor"},
            max_concurrency=1,
            master_address="127.0.0.1",
            master_port=0,
            record=self.folder,
            **options,
        )
        self.tape = open_recording(ADDRESS, assignment, packed_topology(Topology.parse("1")))
        self.runtime.provide(Tape, self.tape)
        self.runtime.provide(Role, Role.alone())
        self._stack.callback(self.tape.close)
        self.worker = None

    def make(self, worker_class, *args):
        self.tape.made_from(worker_class, args, {})
        with self.tape.call("__init__", "call", list):
            self.worker = worker_class(*args)
        return self.worker

    def call(self, method, *args):
        with self.tape.call(method, "call", lambda: encode((args, {})).frames()):
            return getattr(self.worker, method)(*args)

    async def call_async(self, method, *args):
        with self.tape.call(method, "call", lambda: encode((args, {})).frames()):
            return await getattr(self.worker, method)(*args)

    def close(self):
        self._stack.close()


@pytest.fixture
def recorded(tmp_path, request):
    """A rank that is recorded; a parameter has more of its assignment."""
    here = RecordedHere(tmp_path / "recordings", **getattr(request, "param", {}))
    yield here
    here.close()
