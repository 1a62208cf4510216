"""A server that is asked to end puts to sleep what runs; the next start finds it so, and wakes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from control_rig import PATIENCE_S, control_rig
from torpor.control.keys import load_or_make_key
from torpor.control.main import ControlConfig, control_plane
from torpor.control.service.plane import DEFAULT_WORKSPACE
from torpor.control.stopping import put_to_sleep
from torpor.control.store.contract import EventListing
from torpor.errors import InvalidRequest, OutOfSpace
from torpor.testing.host import FakeHost
from torpor.wire.memory import MemoryTransport


@asynccontextmanager
async def serving(home: Path, host: FakeHost, stop_within_s: float = 60) -> AsyncIterator[httpx2.AsyncClient]:
    config = ControlConfig(home, watch_every_s=1000, stop_within_s=stop_within_s)
    async with control_plane(config, host.transport()) as app:
        key = load_or_make_key(home)
        async with httpx2.AsyncClient(
            transport=MemoryTransport(app),
            base_url="http://localhost",
            headers={"authorization": f"Bearer {key}"},
            timeout=None,
        ) as client:
            yield client


async def create(client: httpx2.AsyncClient, **wish: Any) -> str:
    made: str = (await client.post("/v1/sandboxes", json=wish)).json()["id"]
    return made


async def states(client: httpx2.AsyncClient) -> dict[str, str]:
    return {item["id"]: item["status"] for item in (await client.get("/v1/sandboxes")).json()["items"]}


async def test_what_runs_or_is_paused_sleeps_after_a_stop_and_wakes_when_it_is_used(tmp_path: Path) -> None:
    host = FakeHost()
    async with serving(tmp_path / "home", host) as client:
        made = [await create(client) for _ in range(9)] + [await create(client, persistent=True)]
        await client.put(f"/v1/sandboxes/{made[0]}/fs", params={"path": "/work/note"}, content="kept")
        await client.post(f"/v1/sandboxes/{made[1]}/pause")
        await client.post(f"/v1/sandboxes/{made[2]}/hibernate")
    assert {one.facts.status for one in host.machines.values()} == {"asleep"}
    async with serving(tmp_path / "home", host) as client:
        assert await states(client) == dict.fromkeys(made, "hibernated")
        assert host.calls["wake"] == 0
        answer = await client.post(f"/v1/sandboxes/{made[0]}/exec", json={"cmd": "cat /work/note"})
        assert answer.json()["stdout"] == "kept"


async def test_what_has_no_life_left_is_deleted(tmp_path: Path) -> None:
    async with control_rig() as rig:
        over, left = [await rig.create(ttl_seconds=ttl) for ttl in (10, 100)]
        await rig.clock.jump(10)
        await put_to_sleep(rig.plane, 60)
        assert [await rig.status(one) for one in (over, left)] == ["deleted", "hibernated"]


async def test_what_cannot_be_put_to_sleep_runs_on_and_the_next_start_takes_it_over(tmp_path: Path) -> None:
    host = FakeHost()
    async with serving(tmp_path / "home", host) as client:
        made = await create(client)
        host.fail("hibernate", OutOfSpace("the disk is full"))
    assert host.machines[made].facts.status == "running"
    host.crash()
    async with control_plane(ControlConfig(tmp_path / "home", stop_within_s=0), host.transport()) as app:
        plane = app.state.plane
        assert [(one.id, one.state.value) for one in await plane.store.living()] == [(made, "running")]
        await plane.noter.flush()
        told = await plane.store.events(EventListing(DEFAULT_WORKSPACE, types=frozenset({"adopted"})))
        assert [(one.sandbox, one.data) for one in told] == [(made, {"pid": host.machines[made].facts.pid})]


async def test_the_time_it_takes_is_bounded_and_what_is_under_way_then_is_found_by_the_next_start() -> None:
    async with control_rig() as rig:
        made = [await rig.create() for _ in range(5)]
        holds = [rig.host.hold("hibernate") for _ in range(4)]
        stopping = asyncio.create_task(put_to_sleep(rig.plane, 60))
        for hold in holds:
            await asyncio.wait_for(hold.reached.wait(), PATIENCE_S)
        assert rig.host.calls["hibernate"] == 4, "no more than four at once"
        await rig.clock.jump(60)
        await asyncio.wait_for(stopping, PATIENCE_S)
        async with control_rig(rig.store) as second:
            second.host.machines, second.host.snapshots = rig.host.machines, rig.host.snapshots
            for one in made:
                assert (await second.http.post(f"/v1/sandboxes/{one}/exec", json={"cmd": "true"})).status_code == 200


async def test_a_host_that_is_away_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    host = FakeHost()
    async with serving(tmp_path / "home", host) as client:
        await create(client)
        host.down = True
    host.down = False
    assert [one.facts.status for one in host.machines.values()] == ["running"]


async def test_an_end_by_cancellation_leaves_everything_running(tmp_path: Path) -> None:
    host, inside = FakeHost(), asyncio.Event()

    async def until_cancelled() -> None:
        async with serving(tmp_path / "home", host) as client:
            await create(client)
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(until_cancelled())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [one.facts.status for one in host.machines.values()] == ["running"]


async def test_a_process_sleeps_with_its_sandbox_and_goes_on_after(tmp_path: Path) -> None:
    host = FakeHost()
    async with serving(tmp_path / "home", host) as client:
        made = await create(client)
        url = f"/v1/sandboxes/{made}/processes"
        started = (await client.post(url, json={"cmd": ["cat"], "open_stdin": True})).json()
        await client.post(f"{url}/{started['id']}/stdin", content=b"before ")
    async with serving(tmp_path / "home", host) as client:
        assert await states(client) == {made: "hibernated"}
        await client.post(f"{url}/{started['id']}/stdin?close=true", content=b"after")
        text = (await client.get(f"{url}/{started['id']}/stream")).text
        assert '{"chunk": "before after"}' in text or ("before " in text and "after" in text)
        assert '"exit_code": 0' in text


@pytest.mark.parametrize(("text", "seconds"), [("5", 5.0), ("0", 0.0), (None, 60.0)])
def test_the_environment_says_how_long_a_stop_may_take(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, seconds: float
) -> None:
    if text is None:
        monkeypatch.delenv("TORPOR_STOP_SECONDS", raising=False)
    else:
        monkeypatch.setenv("TORPOR_STOP_SECONDS", text)
    assert ControlConfig.from_environment(tmp_path).stop_within_s == seconds


def test_a_stop_time_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORPOR_STOP_SECONDS", "soon")
    with pytest.raises(InvalidRequest, match="TORPOR_STOP_SECONDS"):
        ControlConfig.from_environment(tmp_path)


@pytest.mark.parametrize(("text", "tells"), [(None, True), ("on", True), ("off", False)])
def test_whether_events_have_commands_in_them_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, tells: bool
) -> None:
    if text is None:
        monkeypatch.delenv("TORPOR_EVENT_COMMANDS", raising=False)
    else:
        monkeypatch.setenv("TORPOR_EVENT_COMMANDS", text)
    assert ControlConfig.from_environment(tmp_path).tells_commands is tells


def test_a_word_that_is_neither_on_nor_off_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORPOR_EVENT_COMMANDS", "0")
    with pytest.raises(InvalidRequest, match="TORPOR_EVENT_COMMANDS"):
        ControlConfig.from_environment(tmp_path)
