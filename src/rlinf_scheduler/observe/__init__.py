"""Looks at a running job: what every process is at, who waits for whom, and why nothing goes on."""
