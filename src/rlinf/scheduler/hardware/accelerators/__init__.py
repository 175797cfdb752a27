"""Accelerators, by RLinf's names."""
