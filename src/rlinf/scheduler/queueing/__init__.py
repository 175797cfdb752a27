"""Part of rlinf.scheduler: queueing."""
