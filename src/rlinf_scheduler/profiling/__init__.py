"""Profiles of ranks: their stacks sampled, and profilers of torch and of vendors around their steps."""
