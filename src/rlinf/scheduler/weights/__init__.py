"""Versions of weights: published once, fetched into the reader's own tensors, one replica per machine."""

from rlinf.scheduler.weights.weights import Weights

__all__ = ["Weights"]
