"""Ports as the SDK, the command line and another client see them, against the real control plane over a fake host."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pandastack  # type: ignore[import-untyped]
import pytest

from loopback_servers import closed_port
from torpor import AsyncClient, AsyncSandbox, Client, Sandbox
from torpor.cli.app import run
from torpor.errors import InvalidRequest, NotFound, PortClosed
from torpor.testing.host import FakeHost
from torpor.testing.server import running_server

GONE = "sbx-0000000000000000"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    host = FakeHost()
    host.servers.update({8000: closed_port(), 9000: closed_port()})
    with running_server(tmp_path_factory.mktemp("server") / "home", host) as told:
        yield told


@pytest.fixture
def sandbox(server: tuple[str, str]) -> Iterator[Sandbox]:
    with Client(*server) as client, Sandbox.create(client=client) as sandbox:
        yield sandbox


def port_of(server: tuple[str, str]) -> int:
    port = httpx2.URL(server[0]).port
    assert port is not None
    return port


def test_the_sdk_lists_ports_and_makes_links(server: tuple[str, str], sandbox: Sandbox) -> None:
    host = f"8000-{sandbox.id}.localhost:{port_of(server)}"
    first, second = sandbox.ports()
    assert (first.port, first.process, first.url, second.port) == (8000, "fake", f"http://{host}/", 9000)
    by_host, by_path = sandbox.url(8000, "/a?b=c"), sandbox.url(8000, "/a", expires_seconds=60, route="path")
    assert by_host.startswith(f"http://{host}/a?b=c&torpor_token=tpl_")
    assert by_path.startswith(f"{server[0]}/v1/sandboxes/{sandbox.id}/proxy/8000/a?torpor_token=tpl_")
    answer = httpx2.get(by_path)
    assert (answer.status_code, answer.json()["code"]) == (502, PortClosed.code)


@pytest.mark.parametrize(
    ("port", "path", "more"),
    [(0, "/", {}), (65536, "/", {}), (True, "/", {}), (80, "x", {}), (80, "/#x", {}), (80, "/", {"route": "x"})],
)
def test_what_makes_no_sense_is_refused_before_it_is_sent(
    sandbox: Sandbox, port: int, path: str, more: dict[str, str]
) -> None:
    with pytest.raises(InvalidRequest):
        sandbox.url(port, path, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0, -1, 10**9])
def test_a_link_has_an_end_within_bounds(sandbox: Sandbox, seconds: int) -> None:
    with pytest.raises(InvalidRequest, match="expires_seconds"):
        sandbox.url(80, expires_seconds=seconds)


def test_a_link_to_a_deleted_sandbox_cannot_be_made(sandbox: Sandbox) -> None:
    sandbox.delete()
    with pytest.raises(NotFound):
        sandbox.url(80)
    with pytest.raises(NotFound):
        sandbox.ports()


def test_the_asynchronous_sdk_does_the_same(server: tuple[str, str]) -> None:
    async def work() -> None:
        async with AsyncClient(*server) as client, AsyncSandbox.create(client=client) as sandbox:
            assert [port.port for port in await sandbox.ports()] == [8000, 9000]
            assert "torpor_token=" in await sandbox.url(8000)

    asyncio.run(work())


def test_another_client_finds_the_ports(server: tuple[str, str], sandbox: Sandbox) -> None:
    found = pandastack.Client(api_url=server[0], api_key=server[1]).sandboxes.get(sandbox.id)
    assert sorted(found.preview_urls()) == [8000, 9000]


@pytest.fixture
def torpor(
    server: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("TORPOR_API", server[0])
    monkeypatch.setenv("TORPOR_API_KEY", server[1])

    def call(*argv: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(argv)
        sys.stdout.flush()
        return (code, *capfd.readouterr())

    return call


def test_the_command_line_prints_a_link_alone_and_ports_as_a_table(
    torpor: Callable[..., tuple[int, str, str]], sandbox: Sandbox
) -> None:
    code, out, err = torpor("url", sandbox.id, "8000", "--path", "/x", "--expires", "15m")
    assert (code, err) == (0, "")
    assert out.startswith(f"http://8000-{sandbox.id}.localhost:")
    assert "/x?torpor_token=" in out
    shown = json.loads(torpor("url", sandbox.id, "8000", "--by-path", "--json")[1])
    assert f"/v1/sandboxes/{sandbox.id}/proxy/8000/" in shown["url"]
    code, out, _ = torpor("ports", sandbox.id)
    assert (code, out.split("\n")[0].split()) == (0, ["PORT", "ADDRESS", "PROCESS", "WHERE"])
    assert [port["port"] for port in json.loads(torpor("ports", sandbox.id, "--json")[1])] == [8000, 9000]
    assert torpor("url", sandbox.id, "0")[0] == 2
    assert torpor("url", GONE, "80")[0] == 1
    assert torpor("url", sandbox.id, "80", "--expires", "soon")[0] == 1


def test_a_home_with_no_links_has_a_seal_that_only_its_owner_reads(tmp_path: Path) -> None:
    with running_server(tmp_path / "home"):
        assert (tmp_path / "home" / "seal").stat().st_mode & 0o777 == 0o600
