"""A host agent that is killed at each step of each passage, on a fake VMM: what the next one finds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from frozen_rig import NOTE
from host_rig import HostRig, guest_file, put_guest_file
from passages import LOADED, PASSAGES, Passage, Scene, a_scene, assert_tidy, assert_usable, cut_at, next_agent
from torpor.host.flow.rollback import rollback
from torpor.kit import faultpoints
from torpor.model.ids import SandboxId
from torpor.testing.fake_guest import FakeGuest

CUTS = [
    pytest.param(passage, point, machines_die, id=f"{passage.name}-{point}-{'host' if machines_die else 'agent'}")
    for passage in PASSAGES
    for point in passage.points
    for machines_die in (False, True)
]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with a_scene(tmp_path) as scene:
        yield scene


@pytest.mark.parametrize(("passage", "point", "machines_die"), CUTS)
async def test_what_a_host_agent_finds_that_starts_after_one_was_killed_at(
    scene: Scene, tmp_path: Path, passage: Passage, point: str, machines_die: bool
) -> None:
    image = await cut_at(scene, passage, point, tmp_path / "image", machines_die=machines_die)
    published = set(image.host.snapshots.names())
    assert scene.checkpoint in published
    async with next_agent(image) as again:
        subject = scene.child if passage.of_child else scene.one
        state = passage.expected(point, machines_die=machines_die)
        assert again.state_of(subject) == state
        assert_tidy(again)
        assert set(again.host.snapshots.names()) == published
        assert ("freeze.published" in passage.points[: passage.points.index(point) + 1]) <= (len(published) > 1)
        if state in ("running", "paused", "asleep"):
            rolled = passage.verb in (Scene.to_checkpoint, Scene.to_child) and state == "running"
            kept_on = passage.verb is Scene.to_checkpoint and not passage.before and point in LOADED
            await _assert_note(again, subject, state, passage, rolled=rolled and not kept_on)
        elif not passage.of_child:
            await rollback(again.host, subject, scene.checkpoint)
            assert await guest_file(again, subject, NOTE) == b"before"


async def _assert_note(rig: HostRig, sandbox: SandboxId, state: str, passage: Passage, *, rolled: bool) -> None:
    if passage.verb is Scene.to_template:
        await put_guest_file(rig, sandbox, NOTE, b"before")
    await assert_usable(rig, sandbox, state, b"before" if rolled or passage.verb is Scene.to_template else b"after")


def test_every_point_of_the_host_is_one_where_it_was_killed() -> None:
    ours = {point for point in faultpoints.POINTS if not point.startswith(("passage.", "snapshot."))}
    assert {point for passage in PASSAGES for point in passage.points} == ours


@pytest.mark.parametrize("passage", PASSAGES, ids=lambda passage: passage.name)
async def test_a_passage_comes_to_its_points_and_to_no_others(scene: Scene, passage: Passage) -> None:
    for step in passage.before:
        await step(scene)
    reached: list[str] = []
    faultpoints.watch(reached.append)
    await passage.verb(scene)
    faultpoints.watch(None)
    assert set(reached) - {"rollback.replaced"} == set(passage.points) - {"rollback.replaced"}


@pytest.mark.parametrize("machines_die", [False, True])
@pytest.mark.parametrize("point", faultpoints.UNDO_POINTS)
async def test_a_wake_that_is_undone_leaves_a_sleeper_also_where_its_host_agent_is_killed_in_the_undo(
    scene: Scene, tmp_path: Path, point: str, machines_die: bool
) -> None:
    async def told_to_fail(scene: Scene) -> None:
        scene.rig.guests.append(FakeGuest(refuse_thaw="it does not go on"))

    passage = Passage("failing wake", Scene.to_wake, [point], "asleep", {}, {}, (Scene.to_sleep, told_to_fail))
    image = await cut_at(scene, passage, point, tmp_path / "image", machines_die=machines_die)
    async with next_agent(image) as again:
        assert again.state_of(scene.one) == "asleep"
        assert_tidy(again)
        await assert_usable(again, scene.one, "asleep", b"after")
