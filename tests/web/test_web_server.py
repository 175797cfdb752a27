"""The page of a real job of plain processes, asked for over real sockets."""

import http.client
import json
import logging
import os
import socket
import threading
import time
import urllib.request
from contextlib import contextmanager
from multiprocessing import get_context
from urllib.parse import parse_qs, urlsplit

import pytest

from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.web.app import CLOSED
from rlinf_scheduler.web.server import MAX_CONNECTIONS, WebServer, metrics_url, page_url, serve_job
from waits import seen, wait_until

DEADLINE_S = 60.0


class Browser:
    """Asks a page's server, as a page does."""

    def __init__(self, url):
        parts = urlsplit(url)
        self.port = parts.port
        self.token = parse_qs(parts.query)["token"][0]

    @contextmanager
    def ask(self, path, token=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        connection.request("GET", path, headers={"Authorization": f"Bearer {token or self.token}"})
        try:
            yield connection.getresponse()
        finally:
            connection.close()

    def json(self, path):
        with self.ask(path) as answer:
            assert answer.status == 200
            return json.loads(answer.read())

    def events(self, stream):
        while line := stream.readline():
            if line.startswith(b"event: "):
                yield line[7:-1].decode(), json.loads(stream.readline().removeprefix(b"data: "))


def consume(address):
    with LocalRuntime(address, own_name="actor:0"):
        channel = Channel.connect("trajectories")
        channel.get()
        channel.get_batch(batch_weight=8, timeout_s=DEADLINE_S)


@pytest.fixture(scope="module")
def job():
    """A driver, and an actor that waits for a batch."""
    with LocalRuntime() as runtime:
        channel = Channel.create("trajectories", maxsize=64)
        child = get_context("spawn").Process(target=consume, args=(runtime.address,))
        child.start()
        channel.put("one")
        channel.put("two", weight=3)
        yield runtime
        channel.close()
        child.join(DEADLINE_S)


@pytest.fixture(scope="module")
def browser(job):
    return Browser(page_url(job))


def waiting_at(channel):
    """Who waits at a channel of a status, and in what."""
    return {(each["process"], each["operation"].split()[0]) for each in channel["waiting"]}


def test_the_page_follows_the_job_and_says_why_it_waits(browser):
    with browser.ask("/events") as stream:
        for kind, status in browser.events(stream):
            assert kind == "status"
            (channel,) = status["channels"]
            if ("actor:0", "get_batch") in waiting_at(channel):
                break
        assert (channel["name"], channel["depth"], channel["num_got"]) == ("trajectories", 1, 1)
    told = "get_batch('trajectories', 8): 3 of 8 are there"
    why = seen(lambda: browser.json("/why.json"), lambda why: told in why["text"])
    assert why["culprits"][0]["reason"] in why["headline"]
    assert browser.json("/status.json")["driver_pid"] == os.getpid()


def test_metrics_are_beside_the_page_and_as_secret(job, browser):
    pytest.importorskip("prometheus_client")

    def told():
        with browser.ask("/metrics") as answer:
            return answer.read().decode().splitlines()

    wait_until(lambda: 'rlinf_channel_got_items_total{channel="trajectories"} 1.0' in told())
    with browser.ask("/metrics", "wrong") as answer:
        assert answer.status == 403
    assert metrics_url(job) == f"http://127.0.0.1:{browser.port}/metrics?token={browser.token}"
    with urllib.request.urlopen(metrics_url(job), timeout=DEADLINE_S) as answer:
        assert "rlinf_group_ranks" in answer.read().decode()


def test_the_address_stays_and_is_a_secret(job, browser):
    assert page_url(job) == f"http://127.0.0.1:{browser.port}/?token={browser.token}"
    assert len(browser.token) >= 32
    other = serve_job(job)
    assert Browser(other.url).token != browser.token
    for token in ("wrong", Browser(other.url).token):
        with browser.ask("/status.json", token) as answer:
            assert (answer.status, answer.read()) == (403, b"Forbidden\n")


def test_nobody_but_this_machine_is_listened_to(browser):
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table if line.split()[3] == "0A"]
    local = [row[1].split(":") for row in rows]
    assert [address for address, port in local if int(port, 16) == browser.port] == ["0100007F"]


def test_any_process_of_the_job_may_serve_its_page(job):
    with LocalRuntime(job.address, own_name="actor:1") as other:
        assert Browser(page_url(other)).json("/status.json")["driver_pid"] == os.getpid()


@pytest.mark.ray
def test_a_cluster_has_a_page_with_its_nodes(ray_cluster):
    browser = Browser(ray_cluster.web_url)
    nodes = browser.json("/status.json")["nodes"]
    assert [len(node["devices"]) for node in nodes] == [
        node.num_accelerators for node in ray_cluster.topology.nodes
    ]
    assert Browser(ray_cluster.web_url).port == browser.port


def test_the_page_ends_with_the_job():
    with LocalRuntime() as runtime:
        browser = Browser(page_url(runtime))
        with browser.ask("/events") as stream:
            events = browser.events(stream)
            assert next(events)[0] == "status"
            closing = threading.Thread(target=runtime.close)
            closing.start()
            assert list(events)[-1] == ("end", CLOSED)
            closing.join(DEADLINE_S)
    with pytest.raises(ConnectionRefusedError), browser.ask("/status.json"):
        pass


def test_a_port_that_is_taken_is_told(browser):
    with pytest.raises(ClusterError, match=f"port {browser.port} of 127.0.0.1: .*in use; port 0 takes any"):
        WebServer(dict, dict, port=browser.port)


@pytest.fixture
def server():
    server = WebServer(lambda: {"x": "y" * 100_000}, dict)
    yield Browser(server.url)
    server.close()


def test_connections_that_say_nothing_are_bounded_and_make_room_again(server):
    def connect():
        return socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S)

    silent = [connect() for _ in range(MAX_CONNECTIONS)]
    with connect() as refused:
        assert refused.recv(1) == b""
    for each in silent:
        each.close()
    until = time.monotonic() + DEADLINE_S
    while True:  # those that were closed are noticed soon, but not at once
        try:
            assert "x" in server.json("/status.json")
            break
        except ConnectionError:
            assert time.monotonic() < until


def test_a_browser_that_goes_away_is_no_news(server, caplog, capsys):
    with caplog.at_level(logging.DEBUG), server.ask("/events") as stream:
        assert next(server.events(stream))[0] == "status"
    with caplog.at_level(logging.DEBUG):
        assert "x" in server.json("/status.json")
    assert [record.getMessage() for record in caplog.records] == []
    assert capsys.readouterr() == ("", "")


def test_a_failure_of_our_own_goes_to_the_log_and_not_to_the_terminal(caplog, capsys):
    def fail():
        raise ZeroDivisionError("of the test")

    server = WebServer(fail, dict)
    try:
        browser = Browser(server.url)
        with browser.ask("/status.json") as answer:
            assert answer.status == 500
            assert b"of the test" not in answer.read()
    finally:
        server.close()
    assert "ZeroDivisionError: of the test" in caplog.text
    assert capsys.readouterr() == ("", "")
