"""What other processes do in the tests of questions."""

from __future__ import annotations

from rlinf_scheduler.errors import ResultTimeout

DEADLINE_S = 60.0


def double_all(channel):
    """Answer until the channel is closed; how many there were."""
    count = 0
    for request in channel.requests():
        request.reply(request.item * 2)
        count += 1
    return count


def ask_all(channel, first, count):
    """Ask one after the other; the answers."""
    return [channel.ask(first + number, timeout_s=DEADLINE_S) for number in range(count)]


def take_and_never_answer(channel, ready):
    """Have a request until this process is killed."""
    request = channel.next_request(timeout_s=DEADLINE_S)
    ready.put(request.item)
    ready.get("never", timeout_s=DEADLINE_S)
    return request


def fail_by_a_deadline(channel):
    """Answer one question with a deadline that was missed here."""
    channel.next_request(timeout_s=DEADLINE_S).fail(ResultTimeout("policy.act()", 3.0))


def invert_all(channel):
    """Answer with what cannot be had of 0."""
    for request in channel.requests(timeout_s=DEADLINE_S):
        request.reply(1 / request.item)
