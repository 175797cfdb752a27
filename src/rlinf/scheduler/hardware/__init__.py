"""Part of rlinf.scheduler: hardware."""
