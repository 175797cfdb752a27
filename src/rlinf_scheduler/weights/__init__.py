"""Versions of weights: published once, fetched into the reader's own tensors, one replica per machine."""

from rlinf_scheduler.weights.published import AllWeights, PublishedWeights, published_weights
from rlinf_scheduler.weights.weights import Weights, open_weights

__all__ = ["AllWeights", "PublishedWeights", "Weights", "open_weights", "published_weights"]
