"""Part of rlinf.scheduler: channel."""
