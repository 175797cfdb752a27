"""Something that listens where a Ray should, and answers one question as it is told."""

import contextlib
import socket
import threading

LAST_FRAME = b"\0\0\5\0\1\0\0\0\1" + bytes(5)  # of a question: an empty message
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


def trailers(status):
    """The last frame of an answer, as Ray writes it."""
    body = b"\x88\0\x0bgrpc-status" + bytes((len(status),)) + status
    return len(body).to_bytes(3, "big") + b"\1\5\0\0\0\1" + body


def as_ray(token=None):
    """What a Ray says that wants this token (None: nothing) of whoever asks."""

    def answer(question):
        accepted = token is None or (b"authorization" in question and f"Bearer {token}".encode() in question)
        return SETTINGS + trailers(b"0" if accepted else b"16")

    return answer


@contextlib.contextmanager
def listening(answer, wants=LAST_FRAME):
    """Listens; `answer(question)` are the bytes that go back, once `wants` has come. Gives host and port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_serve, args=(server, answer, wants), daemon=True)
        thread.start()
        try:
            yield server.getsockname()
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def _serve(server, answer, wants):
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):
            question = b""
            while wants not in question:
                more = connection.recv(4096)
                if not more:
                    break
                question += more
            connection.sendall(answer(question))
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
