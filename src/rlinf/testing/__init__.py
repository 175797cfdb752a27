"""Helpers for tests of programs built on rlinf."""
