"""What a Ray of ours leaves of its user's: the home folder and Ray's own folder are as they were, during and after."""

import os
import tempfile
from pathlib import Path

import pytest

from programs import run_program
from rlinf_scheduler.ray_backend.folders import KEPT_SESSIONS

PROGRAM = """
import os, sys
from pathlib import Path
from rlinf.scheduler import Cluster, Worker

def shown(where):
    print(where, sorted(path.name for path in Path.home().iterdir()), os.environ.get("RAY_AUTH_TOKEN_PATH"),
          Path(os.environ["TMPDIR"], "ray", "ray_current_cluster").read_text())

class Rank(Worker):
    def token(self):
        return os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN_PATH"], os.environ.get("RAY_AUTH_TOKEN")

shown("before")
with Cluster(address="local") as cluster:
    shown("during")
    print(*Rank.create_group().launch(cluster, name="rank").token().wait())
shown("after")
"""


@pytest.mark.ray(own=True)
def test_a_ray_of_ours_changes_nothing_of_its_users_home_and_rays_and_prunes_its_own():
    # Ray's sockets have long names: a short folder.
    with tempfile.TemporaryDirectory(prefix="rl", dir="/tmp") as folder:
        home, temporary = Path(folder, "home"), Path(folder, "tmp")
        home.mkdir()
        (temporary / "ray").mkdir(parents=True)
        (temporary / "ray" / "ray_current_cluster").write_text("of another Ray")
        old = [f"session_2026-01-{day:02}_00-00-00_000000_1" for day in range(1, 16)]
        for parent in (temporary / f"rlinf-{os.getuid()}", temporary):
            parent.mkdir(mode=0o700, exist_ok=True)
            for name in old:
                (parent / "ray" / name).mkdir(parents=True, exist_ok=True)
                os.utime(parent / "ray" / name, (0, 0))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "RLINF_"))}
        environment = {**kept, "HOME": str(home), "TMPDIR": str(temporary)}
        done = run_program("-c", PROGRAM, with_ray=True, env=environment, timeout=250)
        assert done.returncode == 0, done.stderr
        token = home / ".rlinf" / "ray_token"
        assert done.stdout.splitlines() == [
            "before [] None of another Ray",
            f"during ['.rlinf'] {token} of another Ray",
            f"('token', '{token}', None)",
            "after ['.rlinf'] None of another Ray",
        ]
        assert token.stat().st_mode & 0o777 == 0o600
        assert sorted(path.name for path in (temporary / "ray").iterdir()) == ["ray_current_cluster", *old]
        ours = [path.name for path in (temporary / f"rlinf-{os.getuid()}" / "ray").glob("session_2*")]
        assert len(ours) == KEPT_SESSIONS + 1
        assert set(old) & set(ours) == set(old[-KEPT_SESSIONS:])
