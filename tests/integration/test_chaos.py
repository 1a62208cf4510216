"""Thousands of random calls from eight threads, while servers and machines are killed in the middle of them.

TORPOR_CHAOS_CALLS chooses how many: a release is let through by 10,000, which take some minutes.
"""

from __future__ import annotations

import os
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from chaos import Killer, run
from chaos_shared import Shared
from fake_world import FakeWorld
from torpor.control.reconcile import reconcile
from torpor.control.service.chores import Chore
from torpor.control.service.plane import DEFAULT_WORKSPACE, Plane
from torpor.control.store.contract import AccountListing
from torpor.model.lifecycle import State

WORKERS, SHARED = 8, 3
CALLS = int(os.environ.get("TORPOR_CHAOS_CALLS", "2400"))
NOTHING: dict[str, Any] = {"params": {}, "content": None, "json": None, "key": None}
ALIVE = {"running", "paused"}


def test_thousands_of_calls_lose_nothing_while_servers_and_machines_are_killed(tmp_path: Path) -> None:
    check_chaos(FakeWorld(tmp_path, seed=7), calls=CALLS, seed=7)


def check_chaos(world: FakeWorld, *, calls: int, seed: int) -> None:
    """Make calls while servers and machines are killed, and see that nothing is lost and nothing left over."""
    with world.started():
        killer = Killer(world, machines=0.01, servers=0.004)
        shared = Shared(world, SHARED)
        run(world, killer, workers=WORKERS, calls=calls // WORKERS, seed=seed, shared=shared)
        assert shared.answers > calls / 10
        shared.rest()
        assert killer.servers_killed >= calls / 1000
        assert killer.machines_killed >= calls / 1000
        server = world.server
        server.call(quiet(server.plane))
        assert server.call(reconcile(server.plane)) == 0, "what is recorded is how things are"
        check_nothing_is_left_over(world)
        check_the_ledger(world)


async def quiet(plane: Plane) -> None:
    """Wait for the end of what the server does of its own accord."""
    for sandbox in await plane.store.living():
        for chore in Chore:
            await plane.chores.wait_over(chore, sandbox.id)


def test_nothing_is_lost_either_where_the_records_are_a_database_on_disk(tmp_path: Path) -> None:
    check_chaos(FakeWorld(tmp_path, seed=8, on_disk=True), calls=max(CALLS // 10, 400), seed=8)


def check_nothing_is_left_over(world: FakeWorld) -> None:
    """Every machine, folder and snapshot belongs to somebody, and there are no drafts."""
    rig = world.server.rig
    listed = world.request("GET", "/sandboxes", **NOTHING | {"params": {"limit": "1000"}}).body["items"]
    states = {item["id"]: item["status"] for item in listed}
    assert set(states.values()) <= {"running", "paused", "hibernated", "failed"}
    there = {one for one, state in states.items() if state != "failed"}
    assert {machine.place.name for machine in rig.driver.running} == {one for one in there if states[one] in ALIVE}
    folders = {entry.name for entry in rig.layout.sandboxes.iterdir()}
    assert there <= folders <= set(states)
    recorded = world.request("GET", "/snapshots", **NOTHING | {"params": {"limit": "1000"}}).body["items"]
    assert {entry.name for entry in rig.layout.snapshots.iterdir()} == {item["id"] for item in recorded}


def check_the_ledger(world: FakeWorld) -> None:
    """Of each sandbox there is one interval after another from its beginning, without a gap and without an overlap."""
    server = world.server
    accounts = server.call(world.store.accounts(AccountListing(DEFAULT_WORKSPACE)))
    assert len(accounts) > WORKERS
    for account in accounts:
        intervals = account.intervals
        assert intervals[0].began_at == account.sandbox.created_at
        assert all(one.ended_at == other.began_at for one, other in pairwise(intervals))
        lengths = sum(((one.ended_at - one.began_at) for one in intervals), timedelta())
        assert lengths == intervals[-1].ended_at - account.sandbox.created_at
        assert account.deleted_at in (None, intervals[-1].ended_at)
        assert all(one.cpu_seconds >= 0 and one.resident_byte_seconds >= 0 for one in intervals)
        is_open = [interval.is_open for interval in intervals]
        assert is_open == [False] * (len(intervals) - 1) + [account.sandbox.state is not State.DELETED]
