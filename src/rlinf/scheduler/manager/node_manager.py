"""RLinf's name of what knows the nodes."""

from rlinf.scheduler.absent import absent

NodeManager = absent(
    "NodeManager",
    __name__,
    "every process of a job knows its nodes; use `Cluster().topology`, or `get_node_info`",
)
