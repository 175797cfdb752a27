"""How much a run of the suite tries of what is drawn at random: `EFFORT=10` ten times as much, as `make soak` does."""

import contextlib
import os

EFFORT = float(os.environ.get("EFFORT", "1"))


def tries(count):
    """How many examples, seeds or rounds there are where one run of the suite affords `count`."""
    return max(1, round(count * EFFORT))


@contextlib.contextmanager
def case(which):
    """A case of many that one test goes through: its name stands below the error that it raises.

    A test of its own costs pytest, its workers and whoever waits for them 10 ms.
    """
    try:
        yield
    except BaseException as error:
        error.add_note(f"in this case: {which}")
        raise
