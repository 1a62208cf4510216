"""Servers in sandboxes that sleep: the first request wakes them, once, and nobody waits without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from loopback_servers import answering, echo_server
from ports_rig import IN_GUEST, PATIENCE_S, PortsRig, ports_rig
from torpor import errors
from torpor.control.service.plane import DEFAULT_WORKSPACE
from torpor.control.service.ports import WAKE_PATIENCE_S, connected
from torpor.control.service.sandboxes import Owned
from torpor.model.ids import SandboxId

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture
async def ports() -> AsyncIterator[PortsRig]:
    async with ports_rig() as rig:
        yield rig


async def test_many_requests_at_once_wake_a_sandbox_once_and_all_are_answered(ports: PortsRig) -> None:
    async with answering(OK) as (port, _), ports.serves(port) as sandbox:
        headers = await ports.linked(sandbox)
        await ports.rig.post(sandbox, "hibernate")
        answers = await asyncio.gather(*(ports.http.get("/", headers=headers) for _ in range(10)))
    assert [answer.status_code for answer in answers] == [200] * 10
    assert ports.rig.host.calls["wake"] == 1


async def test_a_wake_that_takes_long_is_told_and_goes_on_and_is_not_begun_twice(ports: PortsRig) -> None:
    async with answering(OK) as (port, _), ports.serves(port) as sandbox:
        headers = await ports.linked(sandbox)
        await ports.rig.post(sandbox, "hibernate")
        hold = ports.rig.host.hold("wake")
        for _ in range(3):
            asked = asyncio.create_task(ports.http.get("/", headers=headers))
            await hold.reached.wait()
            await ports.rig.clock.wait_sleepers(2)  # one for the link's end, one for the wake
            await ports.rig.clock.jump(WAKE_PATIENCE_S)
            answer = await asked
            assert (answer.status_code, answer.json()["code"]) == (503, "busy")
            assert int(answer.headers["retry-after"]) >= 1
        hold.go.set()
        await ports.rig.wait_status(sandbox, "running")
        assert (await ports.http.get("/", headers=headers)).status_code == 200
    assert ports.rig.host.calls["wake"] == 1


async def test_a_wake_that_is_refused_is_told_with_its_reason(ports: PortsRig) -> None:
    async with answering(OK) as (port, _), ports.serves(port) as sandbox:
        headers = await ports.linked(sandbox)
        await ports.rig.post(sandbox, "hibernate")
        ports.rig.host.fail("wake", errors.NoCapacity("the host has no memory left"), times=2)
        answer = await ports.http.get("/", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (503, "no_capacity")
        assert "retry-after" in answer.headers
        assert (await ports.http.get("/", headers=headers)).status_code == 200


async def test_a_sandbox_that_is_paused_is_left_so(ports: PortsRig) -> None:
    async with answering(OK) as (port, came), ports.serves(port) as sandbox:
        headers = await ports.linked(sandbox)
        await ports.rig.post(sandbox, "pause")
        assert (await ports.http.get("/", headers=headers)).status_code == 409
        await ports.rig.post(sandbox, "resume")
        assert (await ports.http.get("/", headers=headers)).status_code == 200
    assert len(came) == 1


async def test_a_sandbox_that_is_lost_is_gone(ports: PortsRig) -> None:
    async with answering(OK) as (port, _), ports.serves(port) as sandbox:
        headers = await ports.linked(sandbox)
        ports.rig.host.die(sandbox)
        assert (await ports.http.get("/", headers=headers)).status_code == 410


async def test_no_connection_is_left_over_from_before_a_rollback(ports: PortsRig) -> None:
    async with answering(OK) as (port, came), ports.serves(port) as sandbox:
        headers = await ports.linked(sandbox)
        taken = await ports.rig.post(sandbox, "snapshots")
        for _ in range(3):
            assert (await ports.http.get("/", headers=headers)).status_code == 200
            await ports.rig.post(sandbox, "rollback", snapshot=taken["id"])
        assert (await ports.http.get("/", headers=headers)).status_code == 200
    assert len(came) == 4
    assert all(b"\r\nconnection: close" in request for request in came)


async def test_what_is_sent_to_a_sandbox_that_fell_asleep_wakes_it_and_the_connection_goes_on(ports: PortsRig) -> None:
    async with echo_server() as port, ports.serves(port) as sandbox:
        owned = Owned(DEFAULT_WORKSPACE, SandboxId(sandbox))
        async with connected(ports.rig.plane, owned, IN_GUEST) as connection, asyncio.timeout(PATIENCE_S):
            await connection.send(b"one")
            assert await connection.receive() == b"one"
            await ports.rig.post(sandbox, "hibernate")
            assert await connection.send(b"two")
            assert await connection.receive() == b"two"
        assert await ports.rig.status(sandbox) == "running"
    assert ports.rig.host.calls["wake"] == 1
