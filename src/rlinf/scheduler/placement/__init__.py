"""Part of rlinf.scheduler: placement."""
