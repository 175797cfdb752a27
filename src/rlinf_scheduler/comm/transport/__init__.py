"""Connections between two processes: one protocol over stream sockets, Unix on one machine, else TLS over TCP.

peer_session.py     what two processes say to each other, whatever happens to connections: pure
peer_transport.py   the shell around it: dials, adopts connections and keeps time
handshake.py        how two processes prove who they are: pure; identity.py: by which keys
opening.py          one connection until then; stream_link.py: from then on; receive_buffers.py: where it reads into
listener.py         where connections come in, and who is refused
sockets.py          the sockets of this process
"""
