"""RLinf's name of a process that keeps something for all others."""

from rlinf.scheduler.absent import absent

Manager = absent(
    "Manager",
    __name__,
    "no manager is a process of its own: what all know is in the job's directory; use `Cluster.groups` and `channels`",
)
