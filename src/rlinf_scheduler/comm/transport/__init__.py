"""Connections between two processes: one protocol over stream sockets, Unix on one machine, else TLS over TCP."""
