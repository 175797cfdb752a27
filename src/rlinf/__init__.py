"""RLinf: reinforcement-learning infrastructure. The scheduler lives in `rlinf.scheduler`."""
