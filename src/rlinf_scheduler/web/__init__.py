"""The page of a job, for a browser on this machine: what it does, live."""
