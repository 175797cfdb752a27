"""What `get_batch` returns: a list that knows whether it is what was asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlinf.scheduler.comm.shm.parcel import Arrived


class Batch(list[Any]):
    """The items of a batch, in order.

    Attributes:
        complete: it is what was asked for; False for what was left at the end of a queue, or when it was flushed.
    """

    def __init__(self, items: Iterable[Any] = (), complete: bool = True) -> None:
        super().__init__(items)
        self.complete = complete


class Delivery(list[Arrived]):
    """The items of a batch as they came."""

    def __init__(self, items: Iterable[Arrived], complete: bool) -> None:
        super().__init__(items)
        self.complete = complete
