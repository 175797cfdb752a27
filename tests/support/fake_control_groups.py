"""What /proc and the mounts of control groups show of a process, as files."""


class FakeControlGroups:
    """A machine's control groups, and who is in them.

    Args:
        folder: an empty one.

    Attributes:
        proc: stands for /proc.
    """

    def __init__(self, folder):
        self.proc = folder / "proc"
        self._points = {1: folder / "cgroup" / "memory", 2: folder / "cgroup" / "unified hierarchy"}
        self._roots = {}
        for each in (self.proc / "self", *self._points.values()):
            each.mkdir(parents=True, exist_ok=True)

    def mount(self, version, root="/"):
        """Mount the groups of a version, from `root` on."""
        self._roots[version] = root
        kinds = {1: "cgroup cgroup rw,cpu,memory", 2: "cgroup2 cgroup2 rw,nsdelegate"}
        lines = ["23 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw"]
        for mounted, begins in self._roots.items():
            point = str(self._points[mounted]).replace(" ", "\\040")
            lines.append(f"31 23 0:28 {begins} {point} rw,relatime shared:2 - {kinds[mounted]}")
        (self.proc / "self" / "mountinfo").write_text("".join(f"{line}\n" for line in lines))

    def group(self, path, version, **files):
        """Make a group, `path` from the root of the mount; its files' names are written with points."""
        folder = self._points[version] / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(f"{text}\n")

    def place(self, pid, path, version):
        """Let a process be in a group, as it is told its path."""
        line = {1: f"4:cpu,memory:{path}", 2: f"0::{path}"}[version]
        (self.proc / pid).mkdir(exist_ok=True)
        (self.proc / pid / "cgroup").write_text(f"9:name=systemd:/elsewhere\n{line}\n")
