"""The host's passages, the points that each comes to, and what the next host agent finds after one was killed there.

The killed one is a copy of the data directory, and of the machines, as they are at that instant: nothing that the
first one does afterwards is seen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from frozen_rig import NOTE, order, take
from host_rig import BASE, HostRig, guest_file, new_rig, put_guest_file
from torpor.host.flow.create import Source, create
from torpor.host.flow.delete import delete
from torpor.host.flow.hibernate import hibernate
from torpor.host.flow.pause import pause, resume
from torpor.host.flow.rollback import rollback
from torpor.host.flow.snapshot import snapshot
from torpor.host.flow.wake import wake
from torpor.host.record import RECORD
from torpor.kit import faultpoints
from torpor.model.ids import SandboxId, SnapshotId, new_sandbox_id
from torpor.model.snapshot import Kind

LOADED = ["restore.loaded", "restore.adopted", "restore.confirmed", "restore.thawed"]
WOKEN = ["restore.loaded", "restore.adopted", "restore.confirmed", "wake.settled", "restore.thawed"]
FROZEN = ["freeze.drafted", "freeze.stopped", "freeze.copied", "freeze.sealed"]
TAKEN = [*FROZEN, "freeze.published", "freeze.linked"]
SLEPT = [*FROZEN, "freeze.marked", "freeze.published", "freeze.linked", "hibernate.frozen", "hibernate.ended"]
BACK = [*LOADED, "rollback.aside", "rollback.replaced"]


class Cut(BaseException):
    """The host agent dies here."""


@dataclass(frozen=True)
class Scene:
    """A sandbox whose note says "after", with a checkpoint in which it says "before"; `child` is an id not used yet."""

    rig: HostRig
    one: SandboxId
    checkpoint: SnapshotId
    child: SandboxId

    async def to_template(self) -> None:
        await create(self.rig.host, self.child, Source(template=BASE))

    async def to_child(self) -> None:
        await create(self.rig.host, self.child, Source(snapshot=self.checkpoint))

    async def to_snapshot(self) -> None:
        await snapshot(self.rig.host, self.one, order())

    async def to_sleep(self) -> None:
        await hibernate(self.rig.host, self.one, order(Kind.HIBERNATION))

    async def to_wake(self) -> None:
        await wake(self.rig.host, self.one)

    async def to_pause(self) -> None:
        await pause(self.rig.host, self.one)

    async def to_resume(self) -> None:
        await resume(self.rig.host, self.one)

    async def to_checkpoint(self) -> None:
        await rollback(self.rig.host, self.one, self.checkpoint)

    async def to_delete(self) -> None:
        await delete(self.rig.host, self.one)


Step = Callable[[Scene], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Passage:
    """A verb, what is done before it, the points it comes to, and what is found after each: by default as before.

    `found` has the state from a point on; `without` the same if the machines ended too. What ran is lost then.
    """

    name: str
    verb: Step
    points: list[str]
    state: str
    found: dict[str, str]
    without: dict[str, str]
    before: tuple[Step, ...] = ()
    of_child: bool = False

    def expected(self, point: str, *, machines_die: bool) -> str:
        """Return the state in which the sandbox is found after a cut at a point."""
        state = ("lost" if self.state in ("running", "paused") else self.state) if machines_die else self.state
        changes = self.without if machines_die else self.found
        for reached in self.points[: self.points.index(point) + 1]:
            state = changes.get(reached, state)
        return state


RUNS, SLEEPS, LOST = {"restore.confirmed": "running"}, {"freeze.published": "asleep"}, {"restore.confirmed": "lost"}
BECOMES = {"rollback.aside": "running"}
PASSAGES = [
    Passage("create", Scene.to_template, LOADED, "gone", RUNS, LOST, of_child=True),
    Passage("restore", Scene.to_child, LOADED, "gone", RUNS, LOST, of_child=True),
    Passage("snapshot", Scene.to_snapshot, TAKEN, "running", {}, {}),
    Passage("snapshot of paused", Scene.to_snapshot, TAKEN, "paused", {}, {}, (Scene.to_pause,)),
    Passage("hibernate", Scene.to_sleep, SLEPT, "running", SLEEPS, SLEEPS),
    Passage("hibernate paused", Scene.to_sleep, SLEPT, "paused", SLEEPS, SLEEPS, (Scene.to_pause,)),
    Passage("wake", Scene.to_wake, WOKEN, "asleep", RUNS, LOST, (Scene.to_sleep,)),
    Passage("wake again", Scene.to_wake, WOKEN, "asleep", RUNS, LOST, (Scene.to_sleep, Scene.to_wake, Scene.to_sleep)),
    Passage("roll back running", Scene.to_checkpoint, BACK, "running", BECOMES, {}),
    Passage("roll back paused", Scene.to_checkpoint, BACK, "paused", BECOMES, {}, (Scene.to_pause,)),
    Passage(
        "roll back asleep",
        Scene.to_checkpoint,
        BACK,
        "asleep",
        BECOMES,
        {"rollback.replaced": "lost"},
        (Scene.to_sleep,),
    ),
    Passage("roll back what is gone", Scene.to_checkpoint, LOADED, "gone", RUNS, {}, (Scene.to_delete,)),
    Passage("delete", Scene.to_delete, ["delete.ended"], "lost", {}, {}),
    Passage("delete asleep", Scene.to_delete, ["delete.ended"], "asleep", {}, {}, (Scene.to_sleep,)),
    Passage("pause", Scene.to_pause, ["pause.stopped"], "running", {}, {}),
]


@asynccontextmanager
async def a_scene(folder: Path) -> AsyncIterator[Scene]:
    """A scene on a new data directory. What there is of it at the end is not looked at: it is killed."""
    rig = new_rig(folder)
    await rig.bake()
    one = new_sandbox_id()
    await create(rig.host, one, Source(template=BASE))
    await put_guest_file(rig, one, NOTE, b"before")
    checkpoint = await take(rig, one)
    await put_guest_file(rig, one, NOTE, b"after")
    yield Scene(rig, one, checkpoint, new_sandbox_id())
    faultpoints.watch(None)
    for machine in rig.driver.machines:
        await machine.aclose()


@asynccontextmanager
async def next_agent(found: HostRig) -> AsyncIterator[HostRig]:
    """Start the host agent on what was found; at the end nothing is left of it."""
    await found.recover()
    yield found
    live = found.host.live
    awake, asleep, far = live.all(), live.sleepers(), live.out_of_reach()
    here = [*(each.id for each in awake), *(each.id for each in asleep), *(each.id for each in far)]
    for sandbox in [*here, *live.damaged]:
        await delete(found.host, sandbox)
    assert [each for each in found.left if not each.startswith("snapshot")] == []


async def cut_at(scene: Scene, passage: Passage, point: str, home: Path, *, machines_die: bool) -> HostRig:
    """Carry out a passage up to a point, and return the host agent that would start if that one was killed there."""
    images: list[HostRig] = []

    def cut(reached: str) -> None:
        if reached == point and not images:
            images.append(scene.rig.image(home))
            raise Cut

    for step in passage.before:
        await step(scene)
    faultpoints.watch(cut)
    with pytest.raises(Cut):
        await passage.verb(scene)
    faultpoints.watch(None)
    (image,) = images
    if machines_die:
        image.driver.survivors.clear()
    return image


def assert_tidy(rig: HostRig) -> None:
    """Nothing is there that is nobody's."""
    live = rig.host.live
    awake, asleep = {each.id for each in live.all()}, {each.id for each in live.sleepers()}
    assert rig.driver.survivors == []
    assert {machine.place.name for machine in rig.driver.running} == awake
    assert {entry.name for entry in rig.layout.sandboxes.iterdir()} == awake | asleep
    assert {entry.name for entry in rig.layout.sandboxes.iterdir() if (entry / RECORD).exists()} == awake
    assert [entry.name for entry in rig.layout.snapshots.iterdir() if entry.name.startswith(".")] == []
    for entry in rig.layout.sandboxes.iterdir():
        assert [inner.name for inner in entry.iterdir() if inner.name.startswith(".")] == []


async def assert_usable(rig: HostRig, sandbox: SandboxId, state: str, note: bytes) -> None:
    """It does what one in its state does, and has all it had."""
    if state == "asleep":
        await wake(rig.host, sandbox)
    elif state == "paused":
        await resume(rig.host, sandbox)
    assert await guest_file(rig, sandbox, NOTE) == note
    await put_guest_file(rig, sandbox, NOTE, b"since")
    taken = await take(rig, sandbox)
    await hibernate(rig.host, sandbox, order(Kind.HIBERNATION))
    await wake(rig.host, sandbox)
    await rollback(rig.host, sandbox, taken)
    assert await guest_file(rig, sandbox, NOTE) == b"since"
