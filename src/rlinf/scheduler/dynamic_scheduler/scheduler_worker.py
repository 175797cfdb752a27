"""RLinf's name of the worker that decides which group has which accelerators."""

from rlinf.scheduler.absent import absent
from rlinf.scheduler.dynamic_scheduler.manager import INSTEAD

SchedulerWorker = absent("SchedulerWorker", __name__, INSTEAD)
