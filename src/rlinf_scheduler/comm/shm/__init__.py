"""Shared memory: blocks that one process writes once and others read in place."""
