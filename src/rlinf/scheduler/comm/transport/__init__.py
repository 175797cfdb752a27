"""Connections between two processes: Unix sockets on one machine, CURVE over TCP between machines."""
