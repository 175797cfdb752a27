"""Versions of weights: published once, fetched into the reader's own tensors, one replica per machine.

weights.py        publishes, and fetches, of one process; records.py: what is said of weights
versions.py       what this process has for others
index.py          which versions there are, and who has what: pure; index_service.py: at the job's home
published.py      what of that is shown
layout.py         what a process has of weights, as data: pure; held.py: of which tensors, and their bytes
sources.py        the layouts of all publishers as one; plan.py: what a reader reads from whom: both pure
fetch.py          from a name to a version that has come here
target.py         where it goes: a reader's own tensors; stream.py: or whole tensors, one after the other
delta.py          what has changed from one version to the next: pure
"""

from rlinf_scheduler.weights.published import AllWeights, PublishedWeights, published_weights
from rlinf_scheduler.weights.weights import Weights, open_weights

__all__ = ["AllWeights", "PublishedWeights", "Weights", "open_weights", "published_weights"]
