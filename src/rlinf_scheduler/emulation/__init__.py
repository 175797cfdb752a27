"""Emulated networks: links between ranks, groups or nodes that are as slow as between data centres."""
