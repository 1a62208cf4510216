"""Servers in sandboxes that stand open to whoever knows their host, where the operator wants that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from control_rig import NOBODY
from loopback_servers import answering
from ports_rig import PortsRig, ports_rig
from torpor.control.main import ControlConfig
from torpor.control.proxy.addresses import Domain
from torpor.errors import InvalidRequest

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture
async def ports() -> AsyncIterator[PortsRig]:
    async with ports_rig(Domain(is_open=True)) as rig:
        yield rig


async def test_whoever_knows_the_host_may_use_the_server_and_speaks_to_it_alone(ports: PortsRig) -> None:
    async with answering(OK) as (port, came), ports.serves(port) as sandbox:
        headers = {"host": ports.by_host(sandbox), "authorization": "Basic app", "cookie": "a=1"}
        answer = await ports.http.get("/v1/sandboxes", headers=headers)
    assert (answer.status_code, answer.text) == (200, "ok")
    assert b"authorization: basic app" in came[0].lower()
    assert b"cookie: a=1" in came[0].lower()


async def test_by_path_a_key_or_a_link_is_needed_all_the_same(ports: PortsRig) -> None:
    async with answering(OK) as (port, _), ports.serves(port) as sandbox:
        assert (await ports.http.get(f"{ports.by_path(sandbox)}/")).status_code == 401
        assert (await ports.http.get(f"{ports.by_path(sandbox)}/", headers=ports.key())).status_code == 200


async def test_a_link_that_is_over_shuts_nobody_out(ports: PortsRig) -> None:
    async with answering(OK) as (port, _), ports.serves(port) as sandbox:
        headers = {"host": ports.by_host(sandbox), "accept": "text/html"}
        answer = await ports.http.get("/?torpor_token=stale", headers=headers)
        assert (answer.status_code, answer.text) == (200, "ok")
        linked = await ports.linked(sandbox)
        assert (await ports.http.get("/", headers=linked)).status_code == 200


async def test_it_wakes_what_sleeps_and_ends_with_its_sandbox(ports: PortsRig) -> None:
    async with answering(OK) as (port, _), ports.serves(port) as sandbox:
        headers = {"host": ports.by_host(sandbox)}
        await ports.rig.post(sandbox, "hibernate")
        assert (await ports.http.get("/", headers=headers)).status_code == 200
        assert await ports.rig.status(sandbox) == "running"
        await ports.rig.http.delete(f"/v1/sandboxes/{sandbox}")
        assert (await ports.http.get("/", headers=headers)).status_code == 404
        assert (await ports.http.get("/", headers={"host": ports.by_host(NOBODY)})).status_code == 404


async def test_nothing_stands_open_unless_that_is_said() -> None:
    async with ports_rig() as ports, answering(OK) as (port, _), ports.serves(port) as sandbox:
        assert (await ports.http.get("/", headers={"host": ports.by_host(sandbox)})).status_code == 401


@pytest.mark.parametrize(("text", "is_open"), [(None, False), ("off", False), ("on", True), ("1", None)])
def test_the_environment_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, is_open: bool | None
) -> None:
    monkeypatch.delenv("TORPOR_PORTS_OPEN", raising=False)
    if text is not None:
        monkeypatch.setenv("TORPOR_PORTS_OPEN", text)
    if is_open is None:
        with pytest.raises(InvalidRequest, match="TORPOR_PORTS_OPEN"):
            ControlConfig.from_environment(tmp_path)
    else:
        assert ControlConfig.from_environment(tmp_path).ports_domain.is_open is is_open
