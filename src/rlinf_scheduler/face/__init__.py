"""Programs of an RLinf checkout on this package: its face, `rlinf.scheduler`, in the place of the checkout's own.

`python -m rlinf_scheduler PROGRAM` starts a program so (`command`); `install()` is for a notebook. A finder (`finder`)
answers for `rlinf.scheduler` in the driver, in every rank, and in what these start; nothing on disk is changed.
"""

from rlinf_scheduler.face.finder import install as install
