"""One rank of a job, run again alone in this process, from what was recorded of it."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import platform
import sys
import traceback
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack
from contextvars import copy_context
from itertools import islice
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.channel.asking import Asking
from rlinf_scheduler.channel.connections import ChannelConnections
from rlinf_scheduler.channel.recorded import ReplayedAsking, ReplayedConnections
from rlinf_scheduler.comm.secret import ClusterSecret
from rlinf_scheduler.errors import CodecError, RecordingError, ReplayEnded, SchedulerError
from rlinf_scheduler.host.info import Role, WorkerInfo, seed_generators, unpacked_topology
from rlinf_scheduler.mailbox import open_mailbox
from rlinf_scheduler.mailbox.replayed import ReplayedMailbox
from rlinf_scheduler.planning import Topology
from rlinf_scheduler.session import Session
from rlinf_scheduler.tape.player import Player
from rlinf_scheduler.tape.recorded_rank import RecordedCall, RecordedRank, describe_call
from rlinf_scheduler.tape.tape import CONSTRUCTING, Tape
from rlinf_scheduler.weights import open_weights
from rlinf_scheduler.weights.replayed import ReplayedWeights
from rlinf_scheduler.wording import did_you_mean
from rlinf_scheduler.worker.device_lock import DeviceLockServer


class Replay:
    """A rank whose calls are run again in the order in which they began, on this thread; a context manager.

        with Replay("recordings", "actor:0") as replay:
            for call in replay.run():
                print(call)

    What it gets, receives, fetches and is told is what it had then; what it puts, sends and publishes goes nowhere. It
    has no cluster, and needs none. `replay.worker` is the worker, once `__init__` was run. An exception that the rank
    did not raise then comes through.

    Args:
        path: the recording, or the folder that the launch was given as `record`.
        rank: which rank, `group:rank`; not needed where there is one rank's recording.
        program: where the worker's class is, `file.py:Class`, if it is another than then; "" for that.
        method: only calls of this method are run, after `__init__`; "" for all.
        check: what it gives away is compared with what it gave then: `run` raises ReplayDiffers where it is another.

    Attributes:
        recorded: what is known of the rank.
        notes: what is missing in the recording, and why it has ended where it does, in words.

    Raises:
        RecordingError: there is no such recording, or it is damaged; or there is no such class, or its file starts
            things at its top level.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        rank: str = "",
        *,
        program: str = "",
        method: str = "",
        check: bool = False,
    ) -> None:
        self.recorded = recorded = RecordedRank(path, rank)
        self.notes = recorded.notes
        self.worker: Any = None
        self._program = program
        self._method = method
        self._player = Player(recorded, checks=check)
        self._stack = ExitStack()
        self._stack.callback(recorded.close)
        if method and all(call.began.method != method for call in recorded.calls):
            names = sorted({call.began.method for call in recorded.calls})
            hint = did_you_mean(method, names)
            recorded.close()
            problem = f"{recorded.address} was not called for '{method}', but for {', '.join(names)}"
            raise RecordingError(recorded.path, f"{problem}; {hint}" if hint else problem)

    def run(self) -> Iterator[str]:
        """Run `__init__` and then call after call; of each, once it is over, what became of it, in words.

        Raises:
            ReplayDiffers: with `check`: it gives something else than it gave then.
            ReplayEnded: it asks for more than it had in that call.
            BaseException: what the rank raises and did not raise then.
        """
        for call in self.recorded.calls:
            if self._method and call.began.method not in (CONSTRUCTING, self._method):
                continue
            try:
                yield self._run(call)
            except ReplayEnded as error:
                if call.ended is not None:
                    raise
                # The rank died here, or still waited.
                self.notes.append(str(error))
                return

    def __enter__(self) -> Self:
        self._stack.callback(_restore, dict(os.environ), list(sys.path), dict(sys.modules))
        began = self.recorded.began
        sys.path.extend(path for path in began.sys_path if path not in sys.path)
        os.environ.update(began.environment)
        self._stack.enter_context(ReplaySession(self._player))
        self._runner = self._stack.enter_context(asyncio.Runner())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _run(self, call: RecordedCall) -> str:
        what = describe_call(call.began)
        then = "" if call.ended is None else call.ended.failed
        try:
            with self._player.calling(call):
                self._invoke(call)
        except ReplayEnded:
            raise
        except BaseException as error:
            # A call that was cancelled then is, too.
            if type(error).__qualname__ != then:
                raise
            return f"{what}: raised {then}, as it did then"
        return f"{what}: done" + (f"; then it raised {then}" if then else "")

    def _invoke(self, call: RecordedCall) -> None:
        method = call.began.method
        if method == CONSTRUCTING:
            worker_class = self._worker_class()
            args, kwargs = self.recorded.worker_arguments()
            if self.recorded.began.seeds_generators:
                seed_generators(self.recorded.began.seed)
            self.worker = worker_class(*args, **kwargs)
            return
        args, kwargs = self.recorded.arguments(call)
        result = getattr(self.worker, method)
        if call.began.kind != "get":
            result = result(*args, **kwargs)
        if inspect.isgenerator(result):
            self._exhaust(call, result)
        elif inspect.isasyncgen(result):
            self._run_task(self._exhaust_async(call, result))
        elif inspect.iscoroutine(result):
            self._run_task(result)

    def _run_task(self, task: Coroutine[Any, Any, Any]) -> None:
        # What it works at is known by the context.
        self._runner.run(task, context=copy_context())

    def _exhaust(self, call: RecordedCall, values: Any) -> None:
        """Have as many values as were asked for then."""
        try:
            for _ in islice(values, self._player.num_values(call) + _asks_for_the_end(call)):
                continue
        finally:
            values.close()

    async def _exhaust_async(self, call: RecordedCall, values: Any) -> None:
        try:
            for _ in range(self._player.num_values(call) + _asks_for_the_end(call)):
                try:
                    await anext(values)
                except StopAsyncIteration:
                    return
        finally:
            await values.aclose()

    def _worker_class(self) -> Any:
        if self._program:
            return _class_in(self._program)
        try:
            return self.recorded.worker_class()
        except CodecError as error:
            problem = f"its class {self.recorded.class_name} cannot be had here; name it as file.py:Class"
            raise RecordingError(self.recorded.path, f"{problem} ({error.__cause__ or error})") from error


class ReplaySession(Session):
    """The membership in its job of a rank that is run again: there is nobody else.

    Args:
        player: what was recorded of it.
    """

    def __init__(self, player: Player) -> None:
        recorded, began = player.recorded, player.recorded.began
        super().__init__(ClusterSecret.generate(), recorded.address)
        placement, hardware, topology = recorded.place_in_cluster()
        info = WorkerInfo(
            address=WorkerAddress(began.group, began.rank),
            world_size=began.world_size,
            placement=placement,
            node_ip="127.0.0.1",
            hostname=platform.node(),
            pid=os.getpid(),
            master_address=began.environment.get("MASTER_ADDR", "127.0.0.1"),
            master_port=int(began.environment.get("MASTER_PORT", 0)),
            num_restarts=began.num_restarts,
            seed=began.seed,
        )
        self.provide(Topology, unpacked_topology(topology))
        self.provide(Role, Role(info, tuple(hardware)))
        self.provide(Tape, player)
        self.provide(ChannelConnections, ReplayedConnections(player, self.messenger.now))
        self.provide(Asking, ReplayedAsking(player, self.messenger.endpoint))
        self.provide(open_mailbox, ReplayedMailbox(player))
        self.provide(open_weights, ReplayedWeights(player))
        self.service(DeviceLockServer)


def _asks_for_the_end(call: RecordedCall) -> bool:
    """Whether a stream was asked for one more value than it had."""
    return call.ended is not None


def _class_in(program: str) -> Any:
    path, _, name = program.rpartition(":")
    file = Path(path)
    if not path or not file.is_file():
        raise RecordingError(program, "there is no such program; name it as file.py:Class")
    sys.path.insert(0, str(file.parent.resolve()))
    module = _loaded(file)
    found = vars(module).get(name)
    if not isinstance(found, type):
        classes = [each for each, value in vars(module).items() if isinstance(value, type)]
        hint = did_you_mean(name, classes)
        problem = f"it has no class '{name}'"
        raise RecordingError(program, f"{problem}; {hint}" if hint else problem)
    return found


def _loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise RecordingError(str(file), "it is no Python program")
    module = importlib.util.module_from_spec(spec)
    # What it pickles, or looks up by its name, is found there.
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except SchedulerError as error:
        lines = [
            each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == spec.origin
        ]
        where = f" (line {lines[0]})" if lines else ""
        problem = f"it starts things at its top level{where}: put them under `if __name__ == '__main__':`"
        raise RecordingError(str(file), f"{problem}; here there is no cluster ({error})") from error
    return module


def _restore(environment: dict[str, str], path: list[str], modules: dict[str, ModuleType]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    sys.modules.update(modules)
