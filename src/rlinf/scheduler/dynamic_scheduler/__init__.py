"""RLinf's scheduling of groups that grow and shrink: its names; the groups here keep their sizes."""

from rlinf.scheduler.absent import add_absent_modules

add_absent_modules(__name__)
