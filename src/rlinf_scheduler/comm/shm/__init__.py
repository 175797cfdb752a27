"""Shared memory of the processes of one machine: each writes into an arena of its own, and reads those of others."""
