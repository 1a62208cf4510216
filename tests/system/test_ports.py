"""Servers in real guests, reached from outside: at once, after a wake, a rollback and a restore."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
from websockets.sync.client import connect

from running_server import RunningServer
from torpor import Client, Sandbox

PORT = 8080
PATIENCE_S = 240.0
# A server of HTTP and an echo of WebSocket messages, with as few imports as can be: in an emulated guest each costs.
SERVER = r"""
import socket, _thread
from binascii import b2a_base64
from _sha1 import sha1

def serve(sock):
    file = sock.makefile("rwb")
    method = file.readline().split()[0]
    headers = {}
    while (line := file.readline().strip()):
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    if headers.get(b"upgrade", b"").lower() == b"websocket":
        return echo(file, headers[b"sec-websocket-key"])
    body = file.read(int(headers[b"content-length"])) if method == b"POST" else open("/work/page", "rb").read()
    file.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    file.close()
    sock.close()

def echo(file, key):
    accept = b2a_base64(sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()).strip()
    file.write(b"HTTP/1.1 101 OK\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
    file.write(b"Sec-WebSocket-Accept: %s\r\n\r\n" % accept)
    file.flush()
    while len(begin := file.read(2)) == 2:
        size = begin[1] & 127
        if size > 125:
            size = int.from_bytes(file.read(2 if size == 126 else 8), "big")
        mask, data = file.read(4), file.read(size)
        pad = (mask * (size // 4 + 1))[:size]
        data = (int.from_bytes(data, "big") ^ int.from_bytes(pad, "big")).to_bytes(size, "big")
        file.write(bytes([begin[0], 127]) + size.to_bytes(8, "big") + data)
        file.flush()

listening = socket.socket()
listening.bind(("127.0.0.1", 8080))
listening.listen(64)
open("/root/listens", "w").close()
while True:
    _thread.start_new_thread(serve, (listening.accept()[0],))
"""


def serve_in(sandbox: Sandbox, page: str = "hello") -> None:
    """Start the server above in a sandbox, and return when it listens."""
    sandbox.filesystem.write("/work/page", page)
    sandbox.filesystem.write("/root/server.py", SERVER)
    process = sandbox.start("python3 /root/server.py")
    sandbox.exec("until [ -e /root/listens ]; do sleep 0.1; done", timeout_seconds=PATIENCE_S)
    assert process.refresh().state == "running"


@contextmanager
def getting(sandbox: Sandbox) -> Iterator[tuple[httpx2.Client, str]]:
    with httpx2.Client(timeout=PATIENCE_S, trust_env=False) as http:
        yield http, sandbox.url(PORT, "/", route="path")


@pytest.fixture
def serving_sandbox(fresh_sandbox: Sandbox) -> Sandbox:
    serve_in(fresh_sandbox)
    return fresh_sandbox


def test_a_server_is_listed_and_answers_by_path_and_by_host(server: RunningServer, serving_sandbox: Sandbox) -> None:
    (listed,) = [port for port in serving_sandbox.ports() if port.port == PORT]
    assert (listed.address, listed.process) == ("127.0.0.1", "python3")
    with getting(serving_sandbox) as (http, url):
        assert http.get(url).text == "hello"
        by_host = httpx2.URL(serving_sandbox.url(PORT, "/?a=1"))
        here = httpx2.URL(server.url).copy_with(raw_path=by_host.raw_path)
        assert http.get(here, headers={"host": by_host.netloc.decode()}).text == "hello"
        assert http.get(here).status_code == 401, "on the API's own host a link to a port opens nothing"
        body = bytes(range(256)) * 40_000
        assert http.post(url, content=body).content == body


def test_after_a_rollback_the_server_answers_at_once_and_as_it_was(serving_sandbox: Sandbox) -> None:
    with getting(serving_sandbox) as (http, url):
        assert http.get(url).text == "hello"
        checkpoint = serving_sandbox.snapshot()
        serving_sandbox.filesystem.write("/work/page", "later")
        assert http.get(url).text == "later"
        serving_sandbox.rollback(checkpoint)
        began = time.monotonic()
        answer = http.get(url)
        assert (answer.status_code, answer.text) == (200, "hello")
        assert time.monotonic() - began < 2.0


def test_twenty_restores_answer_at_once(client: Client, serving_sandbox: Sandbox) -> None:
    checkpoint = serving_sandbox.snapshot()
    statuses = []
    for _ in range(20):
        with Sandbox.restore(checkpoint, client=client) as restored, getting(restored) as (http, url):
            statuses.append(http.get(url).status_code)
    assert statuses == [200] * 20


def test_a_request_wakes_a_sandbox_that_sleeps_and_is_answered(serving_sandbox: Sandbox) -> None:
    with getting(serving_sandbox) as (http, url):
        serving_sandbox.hibernate()
        assert serving_sandbox.refresh().state == "hibernated"
        end = time.monotonic() + PATIENCE_S
        while (answer := http.get(url)).status_code == 503:
            assert "retry-after" in answer.headers
            assert time.monotonic() < end
        assert (answer.status_code, answer.text) == (200, "hello")
    assert serving_sandbox.refresh().state == "running"


def test_a_websocket_wakes_a_sandbox_and_goes_on_over_a_hibernation(serving_sandbox: Sandbox) -> None:
    url = serving_sandbox.url(PORT, "/", route="path").replace("http://", "ws://", 1)
    serving_sandbox.hibernate()
    mebibyte = bytes(range(256)) * 4096
    with connect(url, max_size=2 * len(mebibyte), open_timeout=PATIENCE_S, proxy=None) as line:
        line.send(mebibyte)
        assert line.recv(PATIENCE_S) == mebibyte
        serving_sandbox.hibernate()
        assert serving_sandbox.refresh().state == "hibernated"
        for message in (mebibyte, "still there?", "é" * (len(mebibyte) // 2), mebibyte[::-1]):
            line.send(message)  # the first of these wakes it
            assert line.recv(PATIENCE_S) == message
        assert serving_sandbox.refresh().state == "running"


def test_a_port_at_which_nobody_listens_is_a_bad_gateway_at_once(fresh_sandbox: Sandbox) -> None:
    with getting(fresh_sandbox) as (http, url):
        began = time.monotonic()
        answer = http.get(url)
        assert (answer.status_code, answer.json()["code"]) == (502, "port_closed")
        assert time.monotonic() - began < 5.0
