"""What the page of a job costs a browser, and how it looks: of a simulated job of 512 ranks, or of one that runs.

It needs Chromium (Debian: `chromium`). Pictures of two sizes are for looking at: nothing else finds what is ugly.

    python benchmarks/job_page.py [--nodes 64] [--seconds 20] [--pictures FOLDER] [--url ADDRESS]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, expect

from browser import chromium, complaints_of, tasks_ms
from rlinf_scheduler.observe.status import (
    ChannelStatus,
    DeviceStatus,
    EventRecord,
    GroupStatus,
    JobStatus,
    NodeStatus,
    QueueStatus,
    RankStatus,
    WaitingOperation,
    WeightsStatus,
)
from rlinf_scheduler.web.server import WebServer

DEVICES = 8
SIZES = {"wide": (1440, 900), "narrow": (390, 844)}
MIB = 1 << 20
PAST_S = 300
FRAME_MS = 16
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
# Share of nodes, devices of a rank, and what it calls, of each group.
GROUPS = {
    "actor": (0.0, 0.25, 1, "update"),
    "critic": (0.0, 0.125, 1, "values"),
    "rollout": (0.25, 0.75, 1, "generate"),
    "reward": (0.75, 1.0, 2, "score"),
}


class SimulatedJob:
    """A job that changes as real ones do: ranks work and wait in phases, one died, a node falls silent, queues fill.

    Args:
        num_nodes: of eight devices each.
    """

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        self._begun = time.time()
        self._tick = 40
        self._random = random.Random(7)
        self._holders: dict[tuple[int, int], list[str]] = {}
        self._places: dict[str, list[tuple[int, int]]] = {}
        for name, (first, last, width, _) in GROUPS.items():
            nodes = range(int(first * num_nodes), max(int(first * num_nodes) + 1, int(last * num_nodes)))
            seats = [(node, device) for node in nodes for device in range(0, DEVICES, width)]
            self._places[name] = seats
            for rank, (node, device) in enumerate(seats):
                for index in range(device, device + width):
                    self._holders.setdefault((node, index), []).append(f"{name}:{rank}")

    def __call__(self) -> JobStatus:
        """What it does a second later."""
        self._tick += 1
        groups = [
            GroupStatus(
                "driver",
                (
                    RankStatus(
                        "driver",
                        0,
                        0,
                        4711,
                        "head",
                        (),
                        "waiting",
                        wait="GroupResult.wait('rollout.generate')",
                        wait_since_s=self._tick % 40,
                        rss_bytes=300 * MIB,
                    ),
                ),
                "driver",
            ),
            *(
                GroupStatus(name, tuple(self._rank(name, rank, node) for rank, (node, _) in enumerate(seats)))
                for name, seats in self._places.items()
            ),
            GroupStatus(
                "channel-server",
                tuple(
                    RankStatus(
                        f"channel-server:{i}",
                        i,
                        i,
                        99,
                        f"node{i}",
                        (),
                        "running",
                        cpu_percent=12.0,
                        rss_bytes=150 * MIB,
                    )
                    for i in range(2)
                ),
                "channels",
            ),
        ]
        return JobStatus(
            time.time(),
            "python train.py --config grpo-7b.yaml",
            4711,
            took_s=0.021,
            nodes=tuple(map(self._node, range(self._num_nodes))),
            groups=tuple(groups),
            channels=tuple(self._channels()),
            weights=(
                WeightsStatus(
                    "policy",
                    self._tick // 20,
                    "actor:0",
                    14 << 30,
                    {
                        f"rollout:{i}": self._tick // 20 - (i % 17 == 0)
                        for i in range(len(self._places["rollout"]))
                    },
                    1,
                ),
            ),
            events=self._events(),
        )

    def past(self) -> dict[str, object]:
        """What its ranks did in the minutes before."""
        now, every_s = self._tick, 2
        states: dict[str, list[str]] = {
            f"{name}:{rank}": [] for name in GROUPS for rank in range(len(self._places[name]))
        }
        for back in range(PAST_S // every_s, 0, -1):
            self._tick = now - back * every_s
            for name in GROUPS:
                for rank, (node, _) in enumerate(self._places[name]):
                    states[f"{name}:{rank}"].append(self._rank(name, rank, node).state)
        self._tick = now
        return {"at_s": time.time(), "every_s": every_s, "states": states}

    def _node(self, number: int) -> NodeStatus:
        devices = tuple(
            DeviceStatus(
                i,
                "NVIDIA H100",
                f"GPU-{number}-{i}",
                tuple(self._holders.get((number, i), ())),
                61 << 30,
                80 << 30,
            )
            for i in range(DEVICES)
        )
        is_silent = number == self._num_nodes - 2 and self._tick % 60 > 30
        return NodeStatus(
            number,
            f"node{number:04x}",
            f"10.0.{number // 250}.{number % 250 + 1}",
            "unresponsive" if is_silent else "alive",
            "its raylet does not answer" if is_silent else "",
            devices,
        )

    def _rank(self, name: str, rank: int, node: int) -> RankStatus:
        method = GROUPS[name][3]
        phase = (self._tick + (rank * 7) % 11 + (13 if name in ("actor", "critic") else 0)) % 26
        address = f"{name}:{rank}"
        common = {
            "node_rank": node,
            "pid": 10_000 + rank,
            "host": f"node{node:04x}",
            "rss_bytes": (3000 + rank) * MIB,
            "device_memory_bytes": 55 << 30,
            "cpu_s": float(self._tick * 30),
        }
        if address == "rollout:97":
            return RankStatus(
                address, rank, state="lost", detail="killed by SIGKILL", silent_s=float(self._tick), **common
            )
        if node == self._num_nodes - 2 and self._tick % 60 > 30:
            return RankStatus(
                address,
                rank,
                state="unresponsive",
                detail="it is cut off",
                silent_s=float(self._tick % 60 - 30),
                **common,
            )
        if phase < 15:
            return RankStatus(
                address,
                rank,
                state="running",
                method=method,
                method_since_s=float(phase),
                cpu_percent=self._random.uniform(60, 140),
                **common,
            )
        if phase < 23:
            return RankStatus(
                address,
                rank,
                state="waiting",
                method=method,
                method_since_s=float(phase),
                wait="get_batch('trajectories', 4096)",
                wait_since_s=float(phase - 15),
                **common,
            )
        return RankStatus(address, rank, state="idle", **common)

    def _channels(self) -> list[ChannelStatus]:
        swing = (self._tick * 37) % 900
        rollouts, rewards = len(self._places["rollout"]), len(self._places["reward"])
        return [
            ChannelStatus(
                "prompts",
                "channel-server:0",
                0,
                1024 - swing,
                (1024 - swing) * 2000,
                "1,024 items",
                96.0,
                91.5,
                190_000.0,
                self._tick * 96,
                self._tick * 91,
                0,
                2.4,
                0,
                {"driver": 96.0},
                {f"rollout:{i}": 91.5 / rollouts for i in range(rollouts)},
                (),
                (QueueStatus("'default'", 1024 - swing, 2.4),),
                1,
            ),
            ChannelStatus(
                "answers",
                "channel-server:0",
                0,
                12,
                12 * MIB,
                "256 items",
                91.0,
                91.0,
                91.0 * MIB,
                1,
                1,
                0,
                0.2,
                8,
                {f"rollout:{i}": 91.0 / rollouts for i in range(rollouts)},
                {f"reward:{i}": 91.0 / rewards for i in range(rewards)},
                (),
                (QueueStatus("'default'", 12, 0.2),),
                1,
            ),
            ChannelStatus(
                "trajectories",
                "channel-server:1",
                1,
                swing,
                swing * 3 * MIB,
                "4,096 items, 64 GiB",
                90.0,
                85.0,
                270.0 * MIB,
                1,
                1,
                0,
                11.0,
                0,
                {f"reward:{i}": 90.0 / rewards for i in range(rewards)},
                {f"actor:{i}": 0.7 for i in range(8)},
                tuple(
                    WaitingOperation(f"actor:{i}", "'default'", "get_batch of weight 4096", 3.0 + i)
                    for i in range(8)
                ),
                (QueueStatus("'default'", swing, 11.0),),
                1,
            ),
        ]

    def _events(self) -> tuple[EventRecord, ...]:
        texts = [
            ("NodeJoined", "node 63 (10.0.0.64) joined with 8 accelerators", "info"),
            ("WorkerLost", "rollout:97 on node 28 was killed by SIGKILL in generate(), after 41 s", "error"),
            ("WorkerUnresponsive", "rollout:97 has not been heard of for 6 s: silent", "warning"),
        ]
        return tuple(EventRecord(self._begun + i, *texts[i % 3]) for i in range(min(200, self._tick)))


def served(num_nodes: int) -> WebServer:
    """Serve the page of a simulated job."""
    job = SimulatedJob(num_nodes)
    return WebServer(job, why, past=job.past)


def why() -> dict[str, object]:
    """Why a simulated job waits."""
    return {
        "headline": "reward:12 stands in judge.py:31 (requests.get) since 44 s; for it actor:0 and 127 others wait",
        "culprits": [
            {"address": "reward:12", "reason": "reward:12 stands in judge.py:31 (requests.get) since 44 s"},
            {"address": "rollout:97", "reason": "rollout:97 has ended: it was killed by SIGKILL"},
        ],
        "text": "waits:\n  actor:0 waits 44 s in get_batch('trajectories', 4096): 3,900 of 4,096 are there",
        "took_s": 0.02,
    }


def measure(browser: Browser, url: str, seconds: float) -> None:
    """Print what following a page costs its main thread."""
    with opened(browser, url, "wide", "light") as page:
        page.wait_for_timeout(3000)
        tasks = sorted(tasks_ms(page, seconds))
    longest = ", ".join(f"{each:.1f}" for each in tasks[-5:])
    num_long = sum(each > FRAME_MS for each in tasks)
    print(
        f"{seconds:.0f} s of the page: {len(tasks)} tasks, {sum(tasks) / seconds / 10:.1f} % of a core; "
        f"the longest took {longest} ms; {num_long} of them took more than {FRAME_MS} ms"
    )


@contextmanager
def opened(browser: Browser, url: str, size: str, scheme: Literal["light", "dark"]) -> Iterator[Page]:
    """Open the page of a job in a window of a size, wait until it is live, and print what it complains of."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, is_mobile=width < 600
    )
    page = context.new_page()
    complaints = complaints_of(page)
    page.goto(url)
    expect(page.locator("#live")).to_contain_text("live, ")
    yield page
    context.close()
    for complaint in complaints:
        print(f"the page complains: {complaint}")


def take_pictures(browser: Browser, url: str, folder: Path, after_s: float) -> None:
    """Save how the page looks."""
    folder.mkdir(parents=True, exist_ok=True)
    for size in SIZES:
        for scheme in SCHEMES:
            with opened(browser, url, size, scheme) as page:
                page.wait_for_timeout(after_s * 1000)
                page.screenshot(path=folder / f"{size}-{scheme}.png")
                page.evaluate("choose('rank', page.status.groups[1].ranks[0].address)")
                page.wait_for_timeout(300)
                page.screenshot(path=folder / f"{size}-{scheme}-chosen.png")
                page.screenshot(path=folder / f"{size}-{scheme}-whole.png", full_page=True)


def main() -> None:
    """Serve a simulated job, and open its page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--after-s", type=float, default=4)
    parser.add_argument("--url", help="of a page that is served already")
    chosen = parser.parse_args()
    server = None if chosen.url else served(chosen.nodes)
    url = chosen.url or (server.url if server else "")
    with chromium() as browser:
        if chosen.pictures:
            take_pictures(browser, url, chosen.pictures, chosen.after_s)
        else:
            measure(browser, url, chosen.seconds)
    if server:
        server.close()


if __name__ == "__main__":
    main()
