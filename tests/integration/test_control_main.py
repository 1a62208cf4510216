"""The control plane as a whole: what it keeps over a restart, learns at its start, and lets go of at its end."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx2
import pytest

from torpor.control.keys import load_or_make_key
from torpor.control.main import DATABASE_FILE, ControlConfig, control_plane
from torpor.errors import Forbidden, Unsupported
from torpor.testing.host import FakeHost
from torpor.wire.memory import MemoryTransport


@asynccontextmanager
async def serving(home: Path, host: FakeHost, watch_every_s: float = 1000) -> AsyncIterator[httpx2.AsyncClient]:
    # What a test leaves running is not put to sleep at the end: test_control_stop.py is about that.
    async with control_plane(ControlConfig(home, watch_every_s, stop_within_s=0), host.transport()) as app:
        key = load_or_make_key(home)
        async with httpx2.AsyncClient(
            transport=MemoryTransport(app),
            base_url="http://localhost",
            headers={"authorization": f"Bearer {key}"},
            timeout=None,
        ) as client:
            yield client


async def states(client: httpx2.AsyncClient) -> dict[str, str]:
    return {item["id"]: item["status"] for item in (await client.get("/v1/sandboxes")).json()["items"]}


async def test_sandboxes_outlive_a_restart(tmp_path: Path) -> None:
    host = FakeHost()
    async with serving(tmp_path / "home", host) as client:
        made = (await client.post("/v1/sandboxes", json={"metadata": {"a": "b"}})).json()
    async with serving(tmp_path / "home", host) as client:
        assert (await client.get(f"/v1/sandboxes/{made['id']}")).json() == made
        answer = await client.post(f"/v1/sandboxes/{made['id']}/exec", json={"cmd": "echo still here"})
        assert answer.json()["stdout"] == "still here\n"


async def test_a_start_learns_what_became_of_everything(tmp_path: Path) -> None:
    host = FakeHost()
    async with serving(tmp_path / "home", host) as client:
        kept, dead, gone = [(await client.post("/v1/sandboxes", json={})).json()["id"] for _ in range(3)]
    host.die(dead, "killed by signal 9")
    host.vanish(gone)
    host.begin("sbx-9999999999999999")
    async with serving(tmp_path / "home", host) as client:
        assert await states(client) == {kept: "running", dead: "failed", gone: "failed"}
        assert (await client.get(f"/v1/sandboxes/{dead}")).json()["reason"] == "killed by signal 9"
    assert "sbx-9999999999999999" not in host.machines


async def test_a_sleeper_outlives_a_restart_and_wakes_when_it_is_used(tmp_path: Path) -> None:
    host = FakeHost()
    async with serving(tmp_path / "home", host) as client:
        made = (await client.post("/v1/sandboxes", json={})).json()["id"]
        asleep = (await client.post(f"/v1/sandboxes/{made}/hibernate")).json()
        awake = (await client.post("/v1/sandboxes", json={})).json()["id"]
        checkpoint = (await client.post(f"/v1/sandboxes/{awake}/snapshots")).json()["id"]
    host.vanish(awake)
    async with serving(tmp_path / "home", host) as client:
        assert await states(client) == {made: "hibernated", awake: "failed"}
        shown = (await client.get(f"/v1/sandboxes/{made}")).json()
        assert shown["last_snapshot_id"] == asleep["snapshot_id"]
        lost = (await client.post(f"/v1/sandboxes/{awake}/exec", json={"cmd": "true"})).json()
        assert lost["details"] == {"last_snapshot": checkpoint}
        answer = await client.post(f"/v1/sandboxes/{made}/exec", json={"cmd": "echo still here"})
        assert answer.json()["stdout"] == "still here\n"


async def test_a_creation_cut_off_by_a_stop_is_settled_by_the_next_start(tmp_path: Path) -> None:
    host = FakeHost()
    hold = host.hold("restore")
    async with serving(tmp_path / "home", host) as client:
        creating = asyncio.create_task(client.post("/v1/sandboxes", json={}))
        await hold.reached.wait()
        creating.cancel()
        await asyncio.wait([creating])
    with closing(sqlite3.connect(tmp_path / "home" / DATABASE_FILE)) as connection:
        assert connection.execute("SELECT state FROM sandboxes").fetchall() == [("creating",)]
    async with serving(tmp_path / "home", host) as client:
        assert await states(client) == {}


async def test_a_host_that_is_away_at_the_start_is_no_error(tmp_path: Path) -> None:
    host = FakeHost()
    host.down = True
    async with serving(tmp_path / "home", host) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.post("/v1/sandboxes", json={})).status_code == 503


async def test_a_sandbox_whose_time_passed_while_it_was_stopped_ends_at_the_start(tmp_path: Path) -> None:
    host = FakeHost()
    async with serving(tmp_path / "home", host) as client:
        made = (await client.post("/v1/sandboxes", json={"ttl_seconds": 3600})).json()["id"]
    with closing(sqlite3.connect(tmp_path / "home" / DATABASE_FILE)) as connection, connection:
        connection.execute("UPDATE sandboxes SET expires_at = created_at")
    closed = asyncio.Event()

    async def app(scope: object, receive: object, send: object) -> None:
        await host(scope, receive, send)  # type: ignore[arg-type]
        if host.calls["close"]:
            closed.set()

    async with control_plane(ControlConfig(tmp_path / "home"), MemoryTransport(app)):
        await asyncio.wait_for(closed.wait(), 10)
    assert made not in host.machines


async def test_nothing_of_it_runs_after_its_end(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with serving(tmp_path / "home", FakeHost()) as client:
        await client.post("/v1/sandboxes", json={})
        assert len(asyncio.all_tasks()) > len(before)
    assert asyncio.all_tasks() == before


async def test_what_is_cancelled_inside_is_closed_all_the_same(tmp_path: Path) -> None:
    inside = asyncio.Event()

    async def until_cancelled() -> None:
        async with serving(tmp_path / "home", FakeHost()):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(until_cancelled())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not list((tmp_path / "home").glob("*-wal"))


async def test_a_newer_database_keeps_it_from_starting(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeHost()):
        pass
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0999'")
    with pytest.raises(Unsupported, match="0999"):
        async with serving(tmp_path, FakeHost()):
            pytest.fail("it must not start")


async def test_a_key_that_others_can_read_keeps_it_from_starting(tmp_path: Path) -> None:
    load_or_make_key(tmp_path)
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(Forbidden):
        async with serving(tmp_path, FakeHost()):
            pytest.fail("it must not start")


async def test_the_home_is_its_owners_only(tmp_path: Path) -> None:
    async with serving(tmp_path / "new" / "home", FakeHost()):
        assert (tmp_path / "new" / "home").stat().st_mode & 0o777 == 0o700
