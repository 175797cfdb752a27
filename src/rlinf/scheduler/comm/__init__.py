"""Part of rlinf.scheduler: comm."""
