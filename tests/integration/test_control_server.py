"""The API on a real socket: what only a real connection shows."""

from __future__ import annotations

import hashlib
import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from torpor.testing.host import FakeHost
from torpor.testing.server import running_server

BIG = 200_000_000
GROWTH = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture(scope="module")
def client(host: FakeHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    with (
        running_server(tmp_path_factory.mktemp("server") / "home", host) as (url, key),
        httpx2.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=30) as made,
    ):
        yield made


@pytest.fixture
def made(client: httpx2.Client) -> str:
    sandbox: str = client.post("/v1/sandboxes", json={}).json()["id"]
    return sandbox


def resident() -> int:
    """Return this process's resident memory in bytes; the server is a thread of it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_a_large_file_passes_both_ways_in_flat_memory(client: httpx2.Client, made: str) -> None:
    url = f"/v1/sandboxes/{made}/fs"
    client.get(url, params={"path": "/zeros/1000000"})
    before, peak, count = resident(), 0, 0
    with client.stream("GET", url, params={"path": f"/zeros/{BIG}"}) as answer:
        for chunk in answer.iter_raw():
            count += len(chunk)
            peak = max(peak, resident())
    assert count == BIG

    def chunks() -> Iterator[bytes]:
        nonlocal peak
        for _ in range(BIG // 1_000_000):
            peak = max(peak, resident())
            yield bytes(1_000_000)

    written = client.put(url, params={"path": "/dev/null"}, content=chunks())
    assert written.json()["bytes"] == BIG
    assert peak - before < GROWTH


def test_bytes_are_exact_over_a_socket(client: httpx2.Client, made: str) -> None:
    data = bytes(range(256)) * 20_000
    url = f"/v1/sandboxes/{made}/fs"
    client.put(url, params={"path": "/work/f"}, content=data)
    back = client.get(url, params={"path": "/work/f"}).content
    assert hashlib.sha256(back).digest() == hashlib.sha256(data).digest()


@pytest.mark.parametrize("rest", ["exec", "exec/stream"])
def test_closing_the_connection_kills_the_command(client: httpx2.Client, host: FakeHost, made: str, rest: str) -> None:
    killed = threading.Event()
    queue = host.machines[made].killed
    put = queue.put_nowait

    def note(item: list[str]) -> None:
        put(item)
        killed.set()

    queue.put_nowait = note  # type: ignore[method-assign]
    started = threading.Event()
    host.machines[made].started.set = started.set  # type: ignore[method-assign]
    address = urlsplit(str(client.base_url))
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    body = b'{"cmd": ["hang"]}'
    headers = {"authorization": client.headers["authorization"], "content-type": "application/json"}
    connection.request("POST", f"/v1/sandboxes/{made}/{rest}", body, headers)
    assert started.wait(10)
    assert isinstance(connection.sock, socket.socket)
    connection.close()
    assert killed.wait(10)


def test_an_upload_cut_off_leaves_the_old_file(client: httpx2.Client, made: str) -> None:
    url = f"/v1/sandboxes/{made}/fs"
    client.put(url, params={"path": "/work/f"}, content=b"old")
    address = urlsplit(str(client.base_url))
    with socket.create_connection((address.hostname, address.port)) as line:
        head = (
            f"PUT {url}?path=/work/f HTTP/1.1\r\nhost: x\r\nauthorization: {client.headers['authorization']}\r\n"
            "content-length: 1000\r\n\r\n"
        )
        line.sendall(head.encode() + b"new")
    assert client.get(url, params={"path": "/work/f"}).content == b"old"


def test_a_download_that_breaks_off_is_no_short_success(client: httpx2.Client, made: str) -> None:
    with pytest.raises(httpx2.RemoteProtocolError):
        client.get(f"/v1/sandboxes/{made}/fs", params={"path": "/broken/100000"})


def test_one_connection_serves_one_request_after_another(client: httpx2.Client, made: str) -> None:
    codes = [
        client.post(f"/v1/sandboxes/{made}/exec", json={"cmd": f"exit {code}"}).json()["exit_code"]
        for code in range(20)
    ]
    assert codes == list(range(20))


def test_an_unmodified_client_of_the_compatible_api_works(
    client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pandastack = pytest.importorskip("pandastack")
    key = client.headers["authorization"].removeprefix("Bearer ")
    other = pandastack.Client(api_key=key, api_url=str(client.base_url).rstrip("/"))
    sandbox = other.sandboxes.create(template="base", metadata={"run": "1"}, ttl_seconds=60)
    try:
        assert sandbox.exec("echo hi; exit 3").exit_code == 3
        heard: list[str] = []
        assert sandbox.exec_stream("echo é; exit 4", on_stdout=heard.append) == 4
        assert "".join(heard) == "é\n"
        sandbox.filesystem.write("/work/f", "text")
        assert sandbox.filesystem.read("/work/f") == b"text"
        assert [entry.name for entry in sandbox.filesystem.listdir("/work")] == ["f"]
        assert not sandbox.filesystem.exists("/work/none")
        assert sandbox.set_ttl(120)["ttl_seconds"] == 120
        with pytest.raises(pandastack.SandboxTimeout):
            sandbox.exec("sleep 30", timeout_seconds=1)
        assert sandbox.id in [one.id for one in other.sandboxes.list()]
    finally:
        sandbox.kill()
    assert sandbox.id not in [one.id for one in other.sandboxes.list()]
