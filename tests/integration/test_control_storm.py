"""Many verbs at once, some failing and some losing their answers: in the end the records say what the host has."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from control_rig import NOBODY, Rig, control_rig
from torpor.control.reconcile import reconcile
from torpor.control.store.contract import Store
from torpor.control.store.sql import open_store
from torpor.errors import Busy, FreezeFailed, NoCapacity, RestoreFailed
from torpor.model.sandbox import Sandbox
from torpor.testing.store import MemoryStore

WORKERS = 8
CALLS = {"memory": 40, "sql": 12}
FOUND = {"running": "running", "paused": "paused", "asleep": "hibernated"}
# Answers that are legal whatever else is under way. 500 is for what failed on the host, or was lost on the way.
LEGAL = {200, 201, 204, 404, 409, 410, 503}
TROUBLE = ("snapshot", "hibernate", "wake", "restore", "rollback", "close", "pause", "remove_snapshot", "exec")
ERRORS = (Busy("later"), NoCapacity("full"), FreezeFailed("no answer"), RestoreFailed("no answer"))


async def call(rig: Rig, dice: random.Random) -> None:
    """Ask for something, anything, of a sandbox that is there."""
    sandboxes: list[str] = [sandbox.id for sandbox in await rig.store.living()] or [NOBODY]
    made = f"/v1/sandboxes/{dice.choice(sandboxes)}"
    snapshots: list[str] = [record.id for record in await rig.store.every_snapshot()] or ["snp-0000000000000000"]
    snapshot = dice.choice(snapshots)
    few = len(sandboxes) < 6
    asked: list[tuple[str, str, dict[str, Any] | None]] = [
        ("POST", f"{made}/hibernate", None),
        ("POST", f"{made}/wake", None),
        ("POST", f"{made}/exec", {"cmd": "echo a"}),
        ("POST", f"{made}/exec", {"cmd": "echo b"}),
        ("POST", f"{made}/pause", None),
        ("POST", f"{made}/resume", None),
        ("POST", f"{made}/resume", None),
        ("POST", f"{made}/snapshots", None),
        ("POST", f"{made}/rollback", {"snapshot": snapshot}),
        ("POST", f"{made}/fork", {"count": 2}) if few else ("DELETE", made, None),
        ("POST", "/v1/sandboxes", {"from_snapshot": snapshot}) if few else ("DELETE", made, None),
        ("POST", "/v1/sandboxes", {}) if few else ("DELETE", made, None),
        ("DELETE", f"/v1/snapshots/{snapshot}", None),
    ]
    method, url, body = dice.choice(asked)
    if dice.random() < 0.1:
        rig.host.fail(dice.choice(TROUBLE), dice.choice(ERRORS))
    if dice.random() < 0.1:
        rig.host.lose_answer(dice.choice(TROUBLE))
    if dice.random() < 0.03:
        rig.host.die(dice.choice(sorted(rig.host.machines))) if rig.host.machines else None
    answer = await rig.http.request(method, url, json=body)
    problem = {} if answer.is_success else answer.json()
    if problem.get("code") not in ("outcome_unknown", "freeze_failed", "restore_failed"):
        assert answer.status_code in LEGAL, (method, url, answer.text)


async def let_go(rig: Rig, callers: set[asyncio.Task[None]]) -> None:
    """Let go on what stands still until every caller is done: a command in it is answered only then, and whoever would
    have asked for it may be waiting for another, or be done.
    """
    while callers:
        for sandbox in await rig.store.living():
            for verb in ("resume", "wake"):
                await rig.http.post(f"/v1/sandboxes/{sandbox.id}/{verb}")
        _, callers = await asyncio.wait(callers, timeout=0.1)


async def check(rig: Rig) -> None:
    """Reconcile, and compare what is recorded with what is on the host."""
    for verb in TROUBLE:
        rig.host.calm(verb)
    for _ in range(3):
        await reconcile(rig.plane)
    assert await reconcile(rig.plane) == 0
    recorded: dict[str, Sandbox] = {sandbox.id: sandbox for sandbox in await rig.store.living()}
    alive = {name: FOUND[one.facts.status] for name, one in rig.host.machines.items() if one.facts.alive}
    states = {name: sandbox.state.value for name, sandbox in recorded.items()}
    # What failed may still have a machine: a deletion that did not work leaves it for the next one.
    assert {name: state for name, state in states.items() if state != "failed"} == {
        name: state for name, state in alive.items() if states.get(name) != "failed"
    }
    kept = await rig.store.every_snapshot()
    assert {record.id for record in kept} == set(rig.host.snapshots)
    for sandbox in recorded.values():
        own = [record.id for record in kept if record.sandbox == sandbox.id]
        origin = sandbox.from_snapshot if sandbox.from_snapshot in rig.host.snapshots else None
        assert sandbox.last_snapshot == (own[0] if own else origin)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["memory", "sql"])
async def test_whatever_happens_the_records_come_to_say_what_the_host_has(tmp_path: Path, seed: int, kind: str) -> None:
    dice = random.Random(seed)
    store: Store = MemoryStore() if kind == "memory" else await open_store(tmp_path / "torpor.db")
    async with control_rig(store) as rig:

        async def worker() -> None:
            for _ in range(CALLS[kind]):
                await call(rig, dice)

        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            callers = {group.create_task(worker()) for _ in range(WORKERS)}
            _, waiting = await asyncio.wait(callers, return_when=asyncio.FIRST_COMPLETED)
            await let_go(rig, waiting)
        await check(rig)
        for sandbox in await rig.store.living():
            assert (await rig.http.delete(f"/v1/sandboxes/{sandbox.id}")).status_code == 204
        assert rig.host.machines == {}
        assert {one.frozen.kind for one in rig.host.snapshots.values()} <= {"checkpoint"}
    await store.aclose()
