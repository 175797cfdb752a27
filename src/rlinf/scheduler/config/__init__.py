"""Part of rlinf.scheduler: config."""
