"""Part of rlinf.scheduler: observe."""
