"""`python -m rlinf_scheduler PROGRAM ARGS...`: a program of an RLinf checkout on this package."""

from rlinf_scheduler.face.command import main

if __name__ == "__main__":
    main()
