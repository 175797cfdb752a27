"""Stands in for one of the two agents that Ray starts with every node, until somebody asks it something.

To start either takes an interpreter that imports Ray, most of a second of a core, for each node of a simulation too.
The one for environments of processes is asked by a raylet when a process is to have one, which ours seldom have: this
program listens where it would, and turns into it at the first question. The one for the dashboard offers nothing where
Ray was installed without the dashboard. Both end with their raylet.

Run by its path in an interpreter that imports nothing, with the agent's program and that one's arguments; when it has
turned, with `--turned` and the socket that listens before them. It is no part of the library to those who import it.
"""

import _socket
import os
import select
import sys

_TURNED = "--turned"
_ADDRESS, _PORT, _PORT_FILE = "--node-ip-address=", "--runtime-env-agent-port=", "--port-file="
_LOOK_MS = 1000


def _value(option: str, arguments: list[str]) -> str:
    return next((each.removeprefix(option) for each in arguments if each.startswith(option)), "")


def _wait_for_question(listening: _socket.socket | None) -> None:
    """Return when somebody connects; ends this process when the raylet does, or has."""
    poll = select.poll()
    if listening is not None:
        poll.register(listening, select.POLLIN)
    raylet = int(os.environ["RAY_RAYLET_PID"])
    pause_ms = None
    try:
        poll.register(ended := os.pidfd_open(raylet), select.POLLIN)
    except OSError:  # where it is refused, or the raylet is gone
        ended, pause_ms = None, _LOOK_MS
    while os.getppid() == raylet:
        ready = [descriptor for descriptor, _ in poll.poll(pause_ms)]
        if ready and ended not in ready:
            return
    os._exit(0)


def _listen(address: str, port: int) -> _socket.socket:
    family, kind, protocol, _, place = _socket.getaddrinfo(address, port, 0, _socket.SOCK_STREAM)[0]
    listening = _socket.socket(family, kind, protocol)
    listening.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    listening.bind(place)
    listening.listen()
    return listening


def _tell(port: int, path: str) -> None:
    """Write the port where the raylet looks for it, all at once."""
    with open(f"{path}.part", "w") as file:
        file.write(str(port))
    os.rename(file.name, path)


def _be(program: str, arguments: list[str], descriptor: int) -> None:
    """Be the agent, which gets that socket where it binds one to its port: nobody who has asked is turned away."""
    import runpy  # noqa: PLC0415 - what an idle one would pay for
    import socket  # noqa: PLC0415

    with socket.socket(fileno=os.dup(descriptor)) as listening:
        port = listening.getsockname()[1]
    others = socket.socket.bind

    def bind(its: socket.socket, place: tuple[str, int]) -> None:
        if place[1] != port:
            others(its, place)
            return
        socket.socket.bind = others  # type: ignore[method-assign]
        os.dup2(descriptor, its.fileno(), inheritable=False)
        os.close(descriptor)

    socket.socket.bind = bind  # type: ignore[method-assign,assignment]
    sys.argv[:] = [program, *arguments, f"{_PORT}{port}"]  # what is said last counts
    sys.path[0] = os.path.dirname(program)
    runpy.run_path(program, run_name="__main__")


def _main() -> None:
    first, *rest = sys.argv[1:]
    if first == _TURNED:
        descriptor, program, *arguments = rest
        _be(program, arguments, int(descriptor))
        return
    if not (port := _value(_PORT, rest)):
        _wait_for_question(None)
    listening = _listen(_value(_ADDRESS, rest), int(port))
    if path := _value(_PORT_FILE, rest):
        _tell(listening.getsockname()[1], path)
    _wait_for_question(listening)
    os.set_inheritable(listening.fileno(), True)
    own = [each for each in rest if not each.startswith(_PORT_FILE)]
    turned = [_TURNED, str(listening.fileno()), first, *own]
    os.execv(sys.executable, [sys.executable, "-u", __file__, *turned])  # noqa: S606


if __name__ == "__main__":
    _main()
