"""`rlinf pdb` on a terminal that stays open after it."""

import os
import pty
import socket
import subprocess
import sys

from waits import DEADLINE_S


def test_it_carries_both_ways_and_ends_well_when_the_rank_goes_on(tmp_path):
    path = tmp_path / "s"
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from rlinf_scheduler.cli.main import main; main()", "pdb", str(path)]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)
        listening.settimeout(DEADLINE_S)
        with subprocess.Popen(
            command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as client:
            try:
                rank, _ = listening.accept()
                rank.settimeout(DEADLINE_S)
                os.write(ours, "p 'ü'\n".encode())
                assert rank.recv(100) == "p 'ü'\n".encode()
                rank.sendall(b"'\xc3")
                rank.sendall(b"\xbc'\n")
                rank.close()
                said, _ = client.communicate(timeout=DEADLINE_S)
            finally:
                client.kill()
    os.close(ours)
    os.close(theirs)
    assert said.decode() == "'ü'\n"
    assert client.returncode == 0
