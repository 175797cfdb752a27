"""Connections between two processes: one protocol over stream sockets, Unix on one machine, TLS over TCP between two."""
