"""Versions of weights: published once, fetched into the reader's own tensors, one replica per machine."""

from rlinf_scheduler.weights.published import PublishedWeights, published_weights
from rlinf_scheduler.weights.weights import Weights, open_weights

__all__ = ["PublishedWeights", "Weights", "open_weights", "published_weights"]
