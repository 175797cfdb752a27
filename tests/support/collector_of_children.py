"""What is imported before this stays in all processes that are forked, and garbage is collected in them."""

import gc

import forked_memory

forked_memory.keep()
gc.enable()
