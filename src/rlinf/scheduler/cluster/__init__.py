"""Part of rlinf.scheduler: cluster."""
