"""Metrics of training steps: logged by ranks, reduced over those of a group, written by the job's home."""
