"""Workers of the tests of routes; in a module of their own, so that workers import them by name."""

import asyncio
import os
import signal

import numpy as np

from rlinf_scheduler import Channel, Worker
from rlinf_scheduler.routing import RowServer, ask_rows, count_rows

WAIT_S = 60.0


def observations(rank, rows, step=0):
    """What an environment of a rank sees: each row says whose it is."""
    keys = np.array([[rank, row, step] for row in range(rows)]).reshape(rows, 3)
    return {
        "keys": keys,
        "images": np.full((rows, 8), rank, np.uint8),
        "names": [f"{rank}/{row}" for row in range(rows)],
    }


class Env(Worker):
    """Sends its rows away, and gets answers to them."""

    def round_trips(self, group, own_rows, rows=None, steps=1, channel="", async_op=False, **options):
        """Whether every row came back to its place, after each step."""
        by = Channel.connect(channel) if channel else None
        for step in range(steps):
            seen = observations(self.rank, own_rows, step)
            sent = self.send_to(group, seen, rows, async_op, channel=by, tag="obs", **options)
            answer = self.recv_from(group, rows, async_op, channel=by, tag="actions", **options)
            if async_op:
                answer = answer.wait(WAIT_S)
                sent.wait(WAIT_S)
            if own_rows == 0:
                assert answer is None
            else:
                assert np.array_equal(answer["keys"], seen["keys"])
                assert answer["names"] == seen["names"]
                answer["keys"] += 1  # it is this process's own
        return step + 1

    def send_rows(self, group, own_rows, rows=None, **options):
        self.send_to(group, observations(self.rank, own_rows), rows, **options)

    def send_object(self, group, batch, rows=None, **options):
        self.send_to(group, batch, rows, **options)

    def recv_rows(self, group, rows=None, **options):
        return self.recv_from(group, rows, **options)

    async def recv_in_a_task(self, group, rows=None):
        handle = self.recv_from(group, rows, async_op=True)
        batch = await asyncio.wait_for(handle.then(count_rows), WAIT_S)
        return batch, handle.done()

    def ask(self, channel, sizes):
        """The answers to batches of such sizes, asked at once."""
        requests = Channel.connect(channel)
        asked = [ask_rows(requests, observations(self.rank, rows), async_op=True) for rows in sizes]
        answers = [handle.wait(WAIT_S) for handle in asked]
        return [
            np.array_equal(a, observations(self.rank, n)["keys"]) for a, n in zip(answers, sizes, strict=True)
        ]

    def restarts(self):
        return self.num_restarts

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Rollout(Env):
    """Answers rows."""

    def answer(self, group, rows=None, steps=1, channel="", **options):
        """How many rows it had in each step, and who saw them."""
        by = Channel.connect(channel) if channel else None
        seen = []
        for _ in range(steps):
            batch = self.recv_from(group, rows, channel=by, tag="obs", **options)
            seen.append([] if batch is None else batch["names"])
            back = rows.back() if hasattr(rows, "back") else self.back_rows(rows, batch)
            answer = batch or {"keys": np.zeros((0, 3), int), "names": []}
            self.send_to(group, answer, back, channel=by, tag="actions", **options)
        return seen

    def back_rows(self, rows, batch):
        return rows if rows is None or isinstance(rows, int) else None

    def serve(self, channel, num_batches, max_rows, max_wait_s):
        served = []
        server = RowServer(Channel.connect(channel), max_rows, max_wait_s)
        for batch in server:
            served.append((len(batch), batch.asked_by))
            batch.answer(lambda rows: rows["keys"])
        return served
