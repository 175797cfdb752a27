"""What the checks say: what is wrong, on which node, and what to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        check: which check found it.
        node: where, for people; "" where it is the whole cluster's.
        problem: what was found, and what should be there.
        remedy: what to do.
        is_fault: whether programs fail of it; else it costs time, or safety, or may fail one day.
    """

    check: str
    node: str
    problem: str
    remedy: str
    is_fault: bool = True

    def __str__(self) -> str:
        where = f"{self.node}: " if self.node else ""
        return f"{where}{self.problem}\n    {self.remedy}"
