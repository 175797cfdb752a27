"""RLinf's name of what opens connections, which here nobody sees."""

from rlinf.scheduler.absent import absent

Collective = absent(
    "Collective",
    __name__,
    "workers are connected when they first exchange something; use `Worker.send`, `recv` and `broadcast`",
)
