"""The cluster's key shows nowhere: not in text, not in a log, not in a process's environment or files."""

import copy
import logging
import os
import pickle
import sys
import traceback
from pathlib import Path

import pytest

from comm_peers import serve_echo
from open_files import descriptors
from rlinf_scheduler.comm import ClusterSecret, Messenger
from rlinf_scheduler.comm.transport.identity import ClusterTls, Identity
from rlinf_scheduler.errors import PeerDied
from waits import wait_until

DEADLINE_S = 60.0
KEY = bytes(range(97, 129))


def traces(secret):
    """What must not be seen anywhere: the key and what is derived from it, as bytes and as text would show them."""
    for key in (KEY, secret.derive(b"tls")):
        yield from (key, key.hex().encode(), repr(key)[2:-1].encode())


def assert_not_in(secret, text):
    data = text if isinstance(text, bytes) else text.encode()
    assert not [trace for trace in traces(secret) if trace in data]


@pytest.fixture
def secret():
    return ClusterSecret(KEY)


def test_neither_repr_nor_str_nor_format_shows_it(secret):
    held = [secret, ClusterTls(secret), Identity(secret, "x")]
    for text in (repr(held), *map(str, held), f"{secret}", f"{vars(held[1])}"):
        assert_not_in(secret, text)


def test_it_arrives_whole_where_it_is_handed_to(secret):
    for other in (copy.deepcopy(secret), pickle.loads(pickle.dumps(secret))):
        assert other == secret
        assert other.derive(b"x") == secret.derive(b"x")
    assert ClusterSecret.generate() != ClusterSecret.generate()


def test_one_label_or_part_never_gives_the_code_of_another(secret):
    assert secret.mac(b"a", b"b") != secret.mac(b"b", b"a")
    assert secret.derive(b"tls") != secret.derive(b"else")
    assert KEY not in secret.derive(b"tls")


def test_what_is_logged_at_every_level_does_not_hold_it(secret, new_messenger, transport, caplog):
    caplog.set_level(logging.DEBUG)
    machines = ("here", "there") if transport == "tcp" else (None, None)
    client, server = (
        new_messenger(name, machine) for name, machine in zip(("a:0", "b:0"), machines, strict=True)
    )
    server.serve("echo", lambda request: request.reply(request.head))
    assert client.request(server.endpoint, "echo", 1).result(DEADLINE_S).head == 1
    stranger = Messenger(ClusterSecret.generate(), tcp=transport == "tcp", machine_id=machines[0])
    with pytest.raises(PeerDied) as caught:
        stranger.request(server.endpoint, "echo", 1).result(DEADLINE_S)
    stranger.close()
    text = caplog.text + "".join(traceback.format_exception(caught.value))
    assert_not_in(secret, text)
    for messenger in (client, server):
        assert_not_in(secret, repr(vars(messenger)) + repr(messenger.endpoint))


def test_a_process_that_was_handed_it_shows_it_to_nobody(secret, start_process):
    process, endpoint = start_process(serve_echo)
    here = Path(f"/proc/{process.pid}")
    assert_not_in(secret, (here / "cmdline").read_bytes() + (here / "environ").read_bytes())
    for path in Path(endpoint.unix_path).parent.iterdir():
        assert not path.stat().st_mode & 0o077 or path.parent.stat().st_mode & 0o777 == 0o700
        assert path.is_socket() or not path.read_bytes()
    assert_not_in(secret, repr(sys.argv) + repr(dict(os.environ)))


def test_the_key_of_its_connections_leaves_no_file_behind(secret):
    before = descriptors()
    ClusterTls(secret)
    wait_until(lambda: descriptors() <= before)  # others in this process may open some for a moment
