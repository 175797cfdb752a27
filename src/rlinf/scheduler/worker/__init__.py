"""Part of rlinf.scheduler: worker."""
