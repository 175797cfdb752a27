"""Every error this library raises, as one tree.

An error carries its fields as arguments and builds its text in `__str__`, so that it crosses process
boundaries through pickle unchanged.

    SchedulerError
    ├── ConfigError (ValueError)            a mistake in the file or the arguments
    │   ├── PlacementError (AssertionError) a mistake in a placement; the documents promise AssertionError
    │   ├── UnknownKey                      a key that means nothing where it stands
    │   └── ConfigErrors                    several independent mistakes, reported together
    │       └── PlacementErrors (PlacementError) several, at least one of them in a placement
    ├── ClusterError                        the cluster cannot be started, joined or used
    │   ├── ClusterTimeout (TimeoutError)
    │   ├── NodeLost                        a node that something is to start on is gone
    │   ├── HardwareUnreachable             a robot does not answer
    │   └── DeviceMismatch                  a rank sees other accelerators than it was placed on
    ├── LaunchError                         a worker group did not come up
    │   ├── GroupExists
    │   └── LaunchTimeout (TimeoutError)
    ├── WorkerError                         a worker's method raised
    │   └── WorkerDied                      a worker's process is gone
    ├── CallArgumentError (TypeError)       a call or a constructor whose arguments do not fit
    ├── CallCancelled                       a call was given up by whoever made it
    ├── UnevenStreams                       the ranks of a streaming call gave different numbers of values
    ├── ResultTimeout (TimeoutError)        a wait on a result passed its deadline
    ├── DeviceLockTimeout (TimeoutError)    other workers had the devices until the deadline
    ├── CheckpointError                     a checkpoint cannot be written, read, or restored from
    ├── RecordingError                      a recording cannot be written or read
    ├── ReplayEnded                         a rank that is run again wants more than was recorded
    ├── ReplayDiffers                       a rank that is run again gives something else than it gave then
    ├── CommError                           bytes did not get through
    │   ├── PeerDied                        the other side is gone
    │   ├── PeerNotFound (TimeoutError)     nobody registered under that name in time
    │   ├── NameTaken                       a name of the directory is in use
    │   ├── CommTimeout (TimeoutError)
    │   ├── NotServed                       the other side has no such service (any more)
    │   ├── SharedMemoryUnreadable          an object lies in shared memory that the receiver cannot open
    │   ├── WeightsError                    weights cannot be published or fetched
    │   │   └── WeightsMismatch             they do not fit where they should go
    │   └── CodecError                      an object cannot be sent
    │       └── BatchUndecodable            some items of a batch cannot be read; it has the others
    └── ChannelError
        ├── ChannelNotFound (LookupError)
        ├── ChannelExists
        ├── ChannelTimeout (TimeoutError)
        │   ├── BatchTimeout                a batch was not there; what was wanted, and what there is
        │   └── ChannelUnanswered           its server did not answer; what became of it is not known
        ├── ChannelClosed
        ├── ChannelLost                     it was deleted, or the process that held it is gone
        ├── ChannelArgumentError (ValueError)
        ├── ChannelEmpty (queue.Empty)
        ├── ChannelFull (queue.Full)
        ├── ItemsLost                       the node that held the bytes of items is gone
        ├── LeaseExpired                    items are settled that are on lease no more: another one has them
        ├── ChannelJournalError             the files of a durable channel cannot be used
        ├── VersionTooEarly                 with this version, items would be older than they may be
        └── BatchImpossible                 a batch that no future put can complete
"""

from __future__ import annotations

import queue
from collections.abc import Sequence


class SchedulerError(Exception):
    """The root: everything this library raises on purpose is one of these."""


_MAX_LINE = 2000


def _on_one_line(text: str) -> str:
    """Text of a config within an error: it can neither begin a line of its own nor steer the terminal."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:_MAX_LINE])
    return shown if len(text) <= _MAX_LINE else f"{shown} ..."


class ConfigError(SchedulerError, ValueError):
    """A mistake in a config file or an argument.

    Args:
        problem: one sentence: what was asked and what is there.
        path: where in the config, e.g. `cluster.component_placement.actor.placement`; "" when not from a config.
        component: the component whose placement is at fault, or "".
        text: the text that holds the mistake, for the caret line; "" when there is none.
        span: start and end (exclusive) of the mistake in `text`, in characters.
        hint: what to write instead, or "".
        file: the file the config was read from, or "".
    """

    def __init__(
        self,
        problem: str,
        path: str = "",
        component: str = "",
        text: str = "",
        span: tuple[int, int] | None = None,
        hint: str = "",
        file: str = "",
    ) -> None:
        super().__init__(problem, path, component, text, span, hint, file)
        self.problem = problem
        self.path = path
        self.component = component
        self.text = text
        self.span = span
        self.hint = hint
        self.file = file

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.file, self.path) if part)
        subject = f"component '{self.component}'" if self.component else ""
        head = ": ".join(part for part in (where, subject, self.problem) if part)
        lines = [_on_one_line(head)]
        if self.text:
            lines.append(f"  {self.text}")
            if self.span is not None:
                start, end = self.span
                lines.append("  " + " " * start + "^" * max(1, end - start))
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def each(self) -> tuple[ConfigError, ...]:
        """The single mistakes that it reports: itself, or those that it holds."""
        return (self,)

    def pointing(self, text: str, span: tuple[int, int]) -> ConfigError:
        """The same mistake with a caret under a spot of a text."""
        return type(self)(self.problem, self.path, self.component, text, span, self.hint, self.file)

    def at(self, *, path: str = "", component: str = "", file: str = "") -> ConfigError:
        """The same mistake with its place filled in, where it says nothing of it yet."""
        return type(self)(
            self.problem,
            self.path or path,
            self.component or component,
            self.text,
            self.span,
            self.hint,
            self.file or file,
        )


class UnknownKey(ConfigError):
    """A key that means nothing where it stands; the hint has the nearest one that does."""


class PlacementError(ConfigError, AssertionError):
    """A placement that cannot be: bad text, resources that are not there, a process that spans nodes."""


class ConfigErrors(ConfigError):
    """Several independent mistakes of one config, in the order in which they stand in the file."""

    def __init__(self, errors: Sequence[ConfigError], file: str = "") -> None:
        super().__init__(f"{len(errors)} mistakes", file=file)
        self.args = (tuple(errors), file)
        self.errors = tuple(errors)

    def __str__(self) -> str:
        head = f"{self.file}: " if self.file else ""
        return f"{head}{len(self.errors)} mistakes\n" + "\n".join(f"- {error}" for error in self.errors)

    def each(self) -> tuple[ConfigError, ...]:
        """The single mistakes that it reports."""
        return tuple(single for error in self.errors for single in error.each())

    def pointing(self, text: str, span: tuple[int, int]) -> ConfigErrors:
        """The same mistakes, each with a caret under that spot."""
        return type(self)([error.pointing(text, span) for error in self.errors], self.file)

    def at(self, *, path: str = "", component: str = "", file: str = "") -> ConfigErrors:
        """The same mistakes of the same file, each with its place filled in, where it says nothing of it yet."""
        located = [error.at(path=path, component=component, file=file) for error in self.errors]
        return type(self)(located, self.file)


class PlacementErrors(ConfigErrors, PlacementError):
    """Several mistakes, at least one of them in a placement: caught as either."""


def raise_config_errors(errors: Sequence[ConfigError]) -> None:
    """Raise what was found: nothing, the only mistake itself, or `ConfigErrors` with all of them."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        in_placement = any(isinstance(error, PlacementError) for error in errors)
        raise (PlacementErrors if in_placement else ConfigErrors)(errors)


class ClusterError(SchedulerError):
    """The cluster cannot be started, joined or used as asked."""


class ClusterTimeout(ClusterError, TimeoutError):
    """The cluster was not there at the deadline; the text says what was and what was missing."""


class NodeLost(ClusterError):
    """A node that something is to be started on is gone.

    Args:
        node_rank: its rank.
        reason: which node it is, why it is gone and since when.
    """

    def __init__(self, node_rank: int, reason: str) -> None:
        super().__init__(node_rank, reason)
        self.node_rank = node_rank
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class HardwareUnreachable(ClusterError):
    """Declared hardware, such as a robot, does not answer.

    Args:
        failures: a line for each piece: what, of which node, at which address, and why.
    """

    def __init__(self, failures: Sequence[str]) -> None:
        super().__init__(tuple(failures))
        self.failures = tuple(failures)

    def __str__(self) -> str:
        if len(self.failures) == 1:
            return f"cannot be reached: {self.failures[0]}"
        return "\n".join(["hardware cannot be reached:", *(f"  {line}" for line in self.failures)])


class DeviceMismatch(ClusterError):
    """A rank's process sees other accelerators than its placement gives it.

    Args:
        rank: its rank.
        node: its node's rank and address.
        planned: the accelerators that it should see, as the visibility variable names them, with UUIDs where known.
        seen: those that it sees.
        variable: the visibility variable in its process, `NAME='value'`.
        was_changed: whether that is not what the launch has set.
    """

    def __init__(
        self,
        rank: int,
        node: str,
        planned: Sequence[str],
        seen: Sequence[str],
        variable: str,
        was_changed: bool,
    ) -> None:
        super().__init__(rank, node, tuple(planned), tuple(seen), variable, was_changed)
        self.rank = rank
        self.node = node
        self.planned = tuple(planned)
        self.seen = tuple(seen)
        self.variable = variable
        self.was_changed = was_changed

    def __str__(self) -> str:
        planned, seen = (", ".join(devices) or "none" for devices in (self.planned, self.seen))
        why = (
            f"{self.variable} is not what the launch has set: the worker's module, something that it imports, or the "
            "interpreter's start has changed it; leave it to the placement"
            if self.was_changed
            else f"{self.variable} is as the launch has set it: a device has failed, or the driver counts them in "
            "another order than the vendor's tool (CUDA_DEVICE_ORDER, ROCR_VISIBLE_DEVICES); see `rlinf topology`"
        )
        return (
            f"rank {self.rank} on node {self.node} sees other accelerators than it was placed on\n"
            f"  planned: {planned}\n  sees: {seen}\n  {why}"
        )


class LaunchError(SchedulerError):
    """A worker group did not come up.

    Args:
        group: the group's name.
        problem: what went wrong, one sentence.
        details: one line a rank that failed or is missing.
    """

    def __init__(self, group: str, problem: str, details: Sequence[str] = ()) -> None:
        super().__init__(group, problem, tuple(details))
        self.group = group
        self.problem = problem
        self.details = tuple(details)

    def __str__(self) -> str:
        return "\n".join([f"group '{self.group}': {self.problem}", *(f"  {line}" for line in self.details)])


class GroupExists(LaunchError):
    """A group or a channel of that name is there already."""


class DeviceHeld(LaunchError):
    """Another job, or another program of Ray's, has devices that a group is placed on; `details` says which and who."""


class LaunchTimeout(LaunchError, TimeoutError):
    """Some ranks were not ready at the launch's deadline; `details` says which, and what each waits for."""


class WorkerError(SchedulerError):
    """A worker's method raised; the text holds the remote traceback.

    Args:
        group: the worker group's name.
        rank: the worker's rank in its group.
        method: the method that was called. (What `__init__` raises is the cause of a LaunchError.)
        remote_traceback: the traceback as the worker's process formatted it.
        cause: the exception itself, where it could be pickled.
    """

    def __init__(
        self, group: str, rank: int, method: str, remote_traceback: str, cause: BaseException | None = None
    ) -> None:
        super().__init__(group, rank, method, remote_traceback, cause)
        self.group = group
        self.rank = rank
        self.method = method
        self.remote_traceback = remote_traceback
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"rank {self.rank} of '{self.group}' raised in {self.method}():\n{self.remote_traceback.rstrip()}"
        )


class WorkerDied(WorkerError):
    """A worker's process is gone: killed, crashed, out of memory, or its node was lost; `reason` says which."""

    def __init__(self, group: str, rank: int, method: str = "", reason: str = "") -> None:
        super().__init__(group, rank, method, "")
        self.args = (group, rank, method, reason)
        self.reason = reason

    def __str__(self) -> str:
        during = f" during {self.method}()" if self.method else ""
        return f"rank {self.rank} of '{self.group}' died{during}: {self.reason or 'its process is gone'}"


class CallArgumentError(SchedulerError, TypeError):
    """The arguments of a call or of a constructor do not fit; nothing was sent and nothing was started.

    Args:
        what: what was called, e.g. "Policy.act()".
        problem: what does not fit.
        signature: what it takes.
    """

    def __init__(self, what: str, problem: str, signature: str) -> None:
        super().__init__(what, problem, signature)
        self.what = what
        self.problem = problem
        self.signature = signature

    def __str__(self) -> str:
        return f"{self.what}: {self.problem}; it takes {self.signature}"


class CallCancelled(SchedulerError):
    """A call was given up by whoever made it; a rank that was waiting in it has left the method.

    Args:
        group: the worker group's name.
        method: what was called.
        rank: the rank that left it; None of the call as a whole.
    """

    def __init__(self, group: str, method: str, rank: int | None = None) -> None:
        super().__init__(group, method, rank)
        self.group = group
        self.method = method
        self.rank = rank

    def __str__(self) -> str:
        where = "" if self.rank is None else f" on rank {self.rank}"
        return f"{self.group}.{self.method}() was cancelled{where}"


class UnevenStreams(SchedulerError):
    """Some ranks of a streaming call have ended and others have not, so there is no list of one value a rank.

    Args:
        what: what was called.
        ended: the ranks that have ended.
        step: how many values each of them gave.
    """

    def __init__(self, what: str, ended: Sequence[int], step: int) -> None:
        super().__init__(what, tuple(ended), step)
        self.what = what
        self.ended = tuple(ended)
        self.step = step

    def __str__(self) -> str:
        ranks = ", ".join(map(str, self.ended))
        return (
            f"{self.what}: ranks {ranks} ended after {self.step} values and the others did not; "
            f"iterate over stream.rank(...) or stream.as_ready() where ranks give different numbers"
        )


class DeviceLockTimeout(SchedulerError, TimeoutError):
    """Other workers had the devices until the deadline.

    Args:
        devices: the devices that were asked for.
        waited_s: how long, in seconds.
        holders: who has them or comes first, a text each.
    """

    def __init__(self, devices: Sequence[str], waited_s: float, holders: Sequence[str] = ()) -> None:
        super().__init__(tuple(devices), waited_s, tuple(holders))
        self.devices = tuple(devices)
        self.waited_s = waited_s
        self.holders = tuple(holders)

    def __str__(self) -> str:
        holders = "; ".join(self.holders) or "the process that gives them out does not answer"
        return f"device_lock: no turn on {', '.join(self.devices)} after {self.waited_s:.1f} s: {holders}"


def _on_further_lines(text: str) -> str:
    return "".join(f"\n  {line}" for line in text.splitlines())


class ResultTimeout(SchedulerError, TimeoutError):
    """A wait passed its deadline.

    Args:
        what: what was waited for, e.g. "rollout.generate()".
        waited_s: how long, in seconds.
        missing: what had not arrived, one line each.
        why: who waits for what, as far as that could be found out; "" where it was not.
    """

    def __init__(self, what: str, waited_s: float, missing: Sequence[str] = (), why: str = "") -> None:
        super().__init__(what, waited_s, tuple(missing), why)
        self.what = what
        self.waited_s = waited_s
        self.missing = tuple(missing)
        self.why = why

    def explain(self, why: str) -> None:
        """Say why, too."""
        self.why = why
        self.args = (self.what, self.waited_s, self.missing, why)

    def __str__(self) -> str:
        still = f"; still missing: {', '.join(self.missing)}" if self.missing else ""
        return f"{self.what}: no result after {self.waited_s:.1f} s{still}{_on_further_lines(self.why)}"


class CheckpointError(SchedulerError):
    """A checkpoint cannot be written or read, or what it holds does not fit where it is to be restored.

    Args:
        path: where it is, or was to be.
        problem: one sentence.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"checkpoint '{self.path}': {self.problem}"


class RecordingError(SchedulerError):
    """A recording, of a rank or of a channel, cannot be written or read, or there is none of what was asked for.

    Args:
        path: where it is, or was to be.
        problem: one sentence.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"recording '{self.path}': {self.problem}"


class ReplayEnded(SchedulerError):
    """A rank that is run again asks for something that its recording does not have.

    Args:
        where: the call or thread, and the operation.
        problem: what there is.
    """

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"the recording ends at {self.where}: {self.problem}"


class ReplayDiffers(SchedulerError):
    """A rank that is run again does something else than it did when it was recorded.

    Args:
        where: the call or thread, and the operation.
        problem: what it gave or did then, and now.
    """

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"it differs from the recording at {self.where}: {self.problem}"


class CommError(SchedulerError):
    """Bytes did not get through."""


class PeerDied(CommError):
    """The process on the other side is gone.

    Args:
        peer: its name, e.g. "rollout:3".
        reason: how it was noticed.
    """

    def __init__(self, peer: str, reason: str = "") -> None:
        super().__init__(peer, reason)
        self.peer = peer
        self.reason = reason

    def __str__(self) -> str:
        return f"peer '{self.peer}' is gone" + (f": {self.reason}" if self.reason else "")


class PeerNotFound(CommError, TimeoutError):
    """Nobody registered under a name before the deadline.

    Args:
        name: the name that was looked up, e.g. "rollout:3".
        waited_s: how long, in seconds.
        known: names that are registered (a few, nearest first).
    """

    def __init__(self, name: str, waited_s: float, known: Sequence[str] = ()) -> None:
        super().__init__(name, waited_s, tuple(known))
        self.name = name
        self.waited_s = waited_s
        self.known = tuple(known)

    def __str__(self) -> str:
        there = f"; there are: {', '.join(self.known)}" if self.known else "; nobody is registered"
        return f"nobody named '{self.name}' after {self.waited_s:.1f} s{there}"


class NameTaken(CommError):
    """A name of the directory is in use.

    Args:
        name: the name.
        owner: the process that has it.
    """

    def __init__(self, name: str, owner: str) -> None:
        super().__init__(name, owner)
        self.name = name
        self.owner = owner

    def __str__(self) -> str:
        return f"the name '{self.name}' is taken, by process '{self.owner}'"


_TO_PEER = {"send": "to", "recv": "from"}


class CommTimeout(CommError, TimeoutError):
    """A transfer passed its deadline.

    Args:
        operation: "send", "recv", ...
        peer: the other side's name.
        waited_s: how long, in seconds.
        waiting_for: what would have ended the wait.
        why: who waits for what, as far as that could be found out; "" where it was not.
    """

    def __init__(
        self, operation: str, peer: str, waited_s: float, waiting_for: str = "", why: str = ""
    ) -> None:
        super().__init__(operation, peer, waited_s, waiting_for, why)
        self.operation = operation
        self.peer = peer
        self.waited_s = waited_s
        self.waiting_for = waiting_for
        self.why = why

    def explain(self, why: str) -> None:
        """Say why, too."""
        self.why = why
        self.args = (*self.args[:4], why)

    def __str__(self) -> str:
        tail = f", waiting for {self.waiting_for}" if self.waiting_for else ""
        where = _TO_PEER.get(self.operation, "with")
        done = f"{self.operation} {where} '{self.peer}' not done after {self.waited_s:.1f} s{tail}"
        return f"{done}{_on_further_lines(self.why)}"


class NotServed(CommError):
    """A process was asked for a service that it does not have, or has no more.

    Args:
        peer: its name.
        service: what it was asked for.
        known: the services that it has.
    """

    def __init__(self, peer: str, service: str, known: Sequence[str] = ()) -> None:
        super().__init__(peer, service, tuple(known))
        self.peer = peer
        self.service = service
        self.known = tuple(known)

    def __str__(self) -> str:
        known = ", ".join(self.known) or "nothing"
        return f"'{self.peer}' does not serve '{self.service}'; it serves {known}"


class SharedMemoryUnreadable(CommError):
    """An object lies in shared memory that its receiver cannot open; further ones will travel as bytes.

    Args:
        reason: why it cannot.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"what was sent lies in shared memory that cannot be opened: {self.reason}"


class WeightsError(CommError):
    """Weights cannot be published or fetched.

    Args:
        name: what they are published as.
        problem: why not.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        return f"weights '{self.name}': {self.problem}"


class WeightsMismatch(WeightsError):
    """Published weights do not fit where they should go; nothing was written.

    Args:
        name: what they are published as.
        version: which version.
        missing: keys of the destination that were not published.
        unexpected: published keys that the destination does not have.
        unfit: what does not fit although it is on both sides, a line each.
    """

    def __init__(
        self,
        name: str,
        version: int,
        missing: Sequence[str] = (),
        unexpected: Sequence[str] = (),
        unfit: Sequence[str] = (),
    ) -> None:
        super().__init__(name, f"version {version} does not fit")
        self.args = (name, version, tuple(missing), tuple(unexpected), tuple(unfit))
        self.version = version
        self.missing = tuple(missing)
        self.unexpected = tuple(unexpected)
        self.unfit = tuple(unfit)

    def __str__(self) -> str:
        kinds = (("not published", self.missing), ("not in the destination", self.unexpected))
        lines = [f"  {what}: {_some(keys, ', ')}" for what, keys in kinds if keys]
        lines += [f"  {_some(self.unfit, chr(10) + '  ')}"] if self.unfit else []
        return "\n".join([f"{super().__str__()}:", *lines])


def _some(texts: Sequence[str], separator: str, most: int = 20) -> str:
    more = len(texts) - most
    return separator.join([*texts[:most], *([f"and {more} more"] if more > 0 else [])])


class CodecError(CommError):
    """An object cannot be turned into bytes, or bytes into an object."""


class BatchUndecodable(CodecError):
    """Some items of a batch cannot be turned into objects here.

    The whole batch was taken: in its queue, what nobody can read would stand in everybody's way.

    Args:
        problems: for every item that could not be read, its place in the batch and why.
        items: the others, in order.
    """

    def __init__(self, problems: Sequence[tuple[int, str]], items: Sequence[object]) -> None:
        super().__init__(tuple(problems), list(items))
        self.problems = tuple(problems)
        self.items = list(items)

    def __str__(self) -> str:
        lines = [f"  item {place}: {problem}" for place, problem in self.problems]
        size = len(self.problems) + len(self.items)
        head = f"{len(self.problems)} of {size} items of a batch cannot be read; the others are in `items`"
        return "\n".join([head, *lines])


class ChannelError(SchedulerError):
    """Something about a channel.

    Args:
        channel: the channel's name.
        problem: one sentence, or "".
    """

    def __init__(self, channel: str, problem: str = "") -> None:
        super().__init__(channel, problem)
        self.channel = channel
        self.problem = problem

    def __str__(self) -> str:
        return f"channel '{self.channel}': {self.problem}"


class ChannelNotFound(ChannelError, LookupError):
    """No channel of that name was created before the deadline."""


class ChannelExists(ChannelError):
    """A channel of that name is there already."""


class ChannelClosed(ChannelError):
    """The channel is closed: puts are refused, and getters have drained it."""

    def __init__(self, channel: str, problem: str = "it is closed") -> None:
        super().__init__(channel, problem)


class ChannelLost(ChannelError):
    """The channel was deleted, or the process that held it is gone; so are the items that were in it."""


class ChannelArgumentError(ChannelError, ValueError):
    """An argument makes no sense: a negative weight, a batch of weight zero, a queue's name that is a float."""


class ChannelTimeout(ChannelError, TimeoutError):
    """An operation on a channel passed its deadline; nothing was taken or put (but see ChannelUnanswered).

    Args:
        channel: the channel's name.
        queue_name: which of its queues; None if it is about the channel as a whole.
        operation: "put", "get", "get_batch", "query" (`qsize` and the like), "stats", "close" or "delete".
        waited_s: how long, in seconds.
        state: what the queue looked like then, one phrase.
        why: who waits for what, as far as that could be found out; "" where it was not.
    """

    def __init__(
        self,
        channel: str,
        queue_name: object,
        operation: str,
        waited_s: float,
        state: str = "",
        why: str = "",
    ) -> None:
        super().__init__(channel, state)
        self.args = (channel, queue_name, operation, waited_s, state, why)
        self.queue_name = queue_name
        self.operation = operation
        self.waited_s = waited_s
        self.state = state
        self.why = why

    def explain(self, why: str) -> None:
        """Say why, too."""
        self.why = why
        self.args = (*self.args[:5], why)

    def __str__(self) -> str:
        tail = f" ({self.state})" if self.state else ""
        queue = "" if self.queue_name is None else f", queue {self.queue_name!r}"
        subject = f"channel '{self.channel}'{queue}"
        done = f"{subject}: {self.operation} not done after {self.waited_s:.1f} s{tail}"
        return f"{done}{_on_further_lines(self.why)}"


class ChannelUnanswerable(ChannelError):
    """A question that was asked by `Channel.ask` has become a dead letter: nobody will answer it.

    Args:
        channel: the channel's name.
        attempts: how often it was given out.
        consumer: who had it last.
        reason: why that came to nothing.
    """

    def __init__(self, channel: str, attempts: int, consumer: str, reason: str) -> None:
        super().__init__(channel, reason)
        self.args = (channel, attempts, consumer, reason)
        self.attempts = attempts
        self.consumer = consumer
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"channel '{self.channel}': nobody answers; the question was given out {self.attempts} times, "
            f"at last to '{self.consumer}': {self.reason}"
        )


class BatchTimeout(ChannelTimeout):
    """A batch was not there at its deadline, and nothing was taken.

    `state` says what batch was wanted, what its queue held, and what other queues of the channel held.
    """


_NOT_KNOWN = ("put", "close", "delete", "ack", "nack")


class ChannelUnanswered(ChannelTimeout):
    """The channel's server did not answer: it is stuck, stopped or overloaded.

    A get has taken nothing. Whether an item was put is not known: it may still appear in its queue. Nor is it known
    whether a channel was closed or deleted, or what was on lease acknowledged or given back.
    """

    def __str__(self) -> str:
        known = "; whether it was done is not known" if self.operation in _NOT_KNOWN else ""
        return f"{super().__str__()}{known}"


class ChannelEmpty(ChannelError, queue.Empty):
    """`get_nowait` found nothing."""


class ChannelFull(ChannelError, queue.Full):
    """`put_nowait` found no room."""


class LeaseExpired(ChannelError):
    """Items are settled, or kept longer, that are not on lease any more; they are in their queue, or another has them.

    Args:
        channel: the channel's name.
        queue_name: which of its queues.
        problem: why the lease is over.
    """

    def __init__(self, channel: str, queue_name: object, problem: str) -> None:
        super().__init__(channel, problem)
        self.args = (channel, queue_name, problem)
        self.queue_name = queue_name

    def __str__(self) -> str:
        return f"channel '{self.channel}', queue {self.queue_name!r}: the lease is over: {self.problem}"


class ChannelJournalError(ChannelError):
    """The files of a durable channel cannot be used: another process holds them, or they are damaged, or another's.

    Args:
        channel: the channel's name.
        path: which file.
        problem: what is wrong with it.
    """

    def __init__(self, channel: str, path: str, problem: str) -> None:
        super().__init__(channel, problem)
        self.args = (channel, path, problem)
        self.path = path

    def __str__(self) -> str:
        return f"channel '{self.channel}': {self.path} {self.problem}"


class ItemsLost(ChannelError):
    """Items were lost with the node that held their bytes, or with the process that held them there.

    Of items in a queue one getter is told, once, and all of them are named; the next get goes on with what is left. A
    put is told of its own item, which its queue never had.

    Args:
        channel: the channel's name.
        queue_name: which of its queues.
        problem: how many, who had put them, and where they were.
    """

    def __init__(self, channel: str, queue_name: object, problem: str) -> None:
        super().__init__(channel, problem)
        self.args = (channel, queue_name, problem)
        self.queue_name = queue_name

    def __str__(self) -> str:
        return f"channel '{self.channel}', queue {self.queue_name!r}: {self.problem}"


class VersionTooEarly(ChannelError):
    """`set_version` was refused: items that the version before was to take would be older than they may be.

    Args:
        channel: the channel's name.
        queue_name: which of its queues.
        version: the one that was refused.
        problem: what is to be taken first.
    """

    def __init__(self, channel: str, queue_name: object, version: int, problem: str) -> None:
        super().__init__(channel, problem)
        self.args = (channel, queue_name, version, problem)
        self.queue_name = queue_name
        self.version = version

    def __str__(self) -> str:
        queue = f"channel '{self.channel}', queue {self.queue_name!r}"
        return f"{queue}: too early for version {self.version}: {self.problem}"


class BatchImpossible(ChannelError):
    """A batch that no future put can complete: the queue is full and its weight does not reach the target."""
