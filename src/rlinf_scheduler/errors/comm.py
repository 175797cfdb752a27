"""Bytes, objects or weights did not get from one process to another."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_scheduler.errors.base import SchedulerError, WaitTimeout


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
    """Nobody registered under a name before the deadline, or nobody ever can.

    Args:
        name: the name that was looked up, e.g. "rollout:3".
        waited_s: how long, in seconds.
        known: names that are registered (a few, the nearest ones first).
        why: why nobody can have that name; "" if somebody may.
    """

    def __init__(self, name: str, waited_s: float, known: Sequence[str] = (), why: str = "") -> None:
        super().__init__(name, waited_s, tuple(known), why)
        self.name = name
        self.waited_s = waited_s
        self.known = tuple(known)
        self.why = why

    def __str__(self) -> str:
        if self.why:
            return f"there is no '{self.name}': {self.why}"
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


class CommTimeout(CommError, WaitTimeout):
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

    def __str__(self) -> str:
        tail = f", waiting for {self.waiting_for}" if self.waiting_for else ""
        where = _TO_PEER.get(self.operation, "with")
        return self._with_why(
            f"{self.operation} {where} '{self.peer}' not done after {self.waited_s:.1f} s{tail}"
        )


class RouteError(CommError, ValueError):
    """A batch does not fit the route between two groups.

    Args:
        source: the senders' group; "" where it is about a batch alone.
        target: the receivers' group.
        problem: what does not fit, by rank and rows.
    """

    def __init__(self, source: str, target: str, problem: str) -> None:
        super().__init__(source, target, problem)
        self.source = source
        self.target = target
        self.problem = problem

    def __str__(self) -> str:
        where = f"route from '{self.source}' to '{self.target}'" if self.source else "a batch's rows"
        return f"{where}: {self.problem}"


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


class WeightsReplaced(WeightsError):
    """The version that this process has is none any more: the group that published it has been launched anew.

    Nothing was fetched. It is raised once; the next fetch goes on with the present launch, which counts its versions
    anew: fetch without `min_version` what it has now, or with a number of its own.

    Args:
        name: what they are published as.
        group: whose they are.
        wanted: the least version that was asked for.
    """

    def __init__(self, name: str, group: str, wanted: int) -> None:
        problem = f"'{group}' was launched anew, and what this process has is no version of that launch"
        super().__init__(name, f"{problem}: fetch without min_version={wanted}, or with a number of its own")
        self.group = group
        self.wanted = wanted

    def __reduce__(self) -> tuple[type[WeightsReplaced], tuple[str, str, int]]:
        return WeightsReplaced, (self.name, self.group, self.wanted)


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
