import contextlib
import multiprocessing

import pytest

from alarms import alarms  # noqa: F401
from rlinf_scheduler.comm import ClusterSecret, DirectoryClient, DirectoryServer, Messenger, transfer
from rlinf_scheduler.planning import Topology
from rlinf_scheduler.session import Session
from weights_job import Job

DEADLINE_S = 60.0


@pytest.fixture(params=["unix", "tcp"])
def transport(request):
    return request.param


@pytest.fixture
def secret():
    return ClusterSecret.generate()


@pytest.fixture
def new_messenger(secret):
    """Makes messengers of one cluster; `machine` decides whether two of them talk over Unix sockets or TCP."""
    with contextlib.ExitStack() as stack:

        def make(name, machine=None, **options):
            messenger = Messenger(secret, name=name, machine_id=machine, tcp=machine is not None, **options)
            stack.callback(messenger.close)
            return messenger

        yield make


@pytest.fixture
def pair(transport, new_messenger):
    """Two messengers that reach each other over `transport`."""
    machines = ("here", "there") if transport == "tcp" else (None, None)
    return new_messenger("client:0", machines[0]), new_messenger("server:0", machines[1])


@pytest.fixture
def names(pair):
    """A directory on the first of the pair, and a client of it for each."""
    DirectoryServer(pair[0])
    return tuple(DirectoryClient(messenger, pair[0].endpoint) for messenger in pair)


@pytest.fixture
def start_process(secret, transport):
    """Starts a function of `comm_peers` in a process of its own; gives the process and what it sent first."""
    context = multiprocessing.get_context("forkserver")
    with contextlib.ExitStack() as stack:

        def start(function, *args):
            ours, theirs = context.Pipe()
            machine = "there" if transport == "tcp" else None
            process = context.Process(target=function, args=(theirs, secret, machine, *args), daemon=True)
            process.start()
            theirs.close()
            stack.callback(ours.close)
            stack.callback(process.join, DEADLINE_S)
            stack.callback(process.kill)
            assert ours.poll(DEADLINE_S)
            return process, ours.recv()

        yield start


@pytest.fixture
def job(secret, new_messenger):
    """A driver with a directory, and what makes other members, here or in processes of their own."""
    with contextlib.ExitStack() as stack:
        yield Job(secret, new_messenger, stack)


@pytest.fixture
def patient_transfers(monkeypatch):
    """After its deadline an operation hears why it is late, however busy the machine is."""
    monkeypatch.setattr(transfer, "GRACE_S", DEADLINE_S)


@pytest.fixture
def session(secret):
    """A driver's place in a job of its own, without Ray; this process's session."""
    with Session(secret, "driver") as made:
        made.provide(Topology, Topology.parse("1"))
        yield made
