"""The server is killed at each step of each verb: what is there then, and that asking again does it once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chaos import NOTE
from chaos_world import Answer
from fake_world import FakeWorld
from torpor.kit.faultpoints import POINTS

NOTHING: dict[str, Any] = {"params": {}, "content": None, "json": None, "key": None}


@dataclass(frozen=True)
class Verb:
    """One call: what is done before it, how a sandbox stands before and after, and what it answers at last."""

    name: str
    method: str
    path: str
    before: str
    after: str
    status: int
    prepared: tuple[str, ...] = ()
    body: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


ONE, BACK = "/sandboxes/{id}", {"snapshot": "{snapshot}"}
VERBS = [
    Verb("create", "POST", "/sandboxes", "running", "running", 201),
    Verb("restore", "POST", "/sandboxes", "running", "running", 201, body={"from_snapshot": "{snapshot}"}),
    Verb("snapshot", "POST", f"{ONE}/snapshots", "running", "running", 201),
    Verb("snapshot of paused", "POST", f"{ONE}/snapshots", "paused", "paused", 201, ("pause",)),
    Verb("hibernate", "POST", f"{ONE}/hibernate", "running", "hibernated", 200),
    Verb("hibernate paused", "POST", f"{ONE}/hibernate", "paused", "hibernated", 200, ("pause",)),
    Verb("wake", "POST", f"{ONE}/wake", "hibernated", "running", 200, ("hibernate",)),
    Verb("pause", "POST", f"{ONE}/pause", "running", "paused", 204),
    Verb("resume", "POST", f"{ONE}/resume", "paused", "running", 204, ("pause",)),
    Verb("fork", "POST", f"{ONE}/fork", "running", "running", 201, body={"count": 2}),
    Verb("fork asleep", "POST", f"{ONE}/fork", "hibernated", "hibernated", 201, ("hibernate",), {"count": 2}),
    Verb("rollback", "POST", f"{ONE}/rollback", "running", "running", 200, body=BACK),
    Verb("rollback asleep", "POST", f"{ONE}/rollback", "hibernated", "running", 200, ("hibernate",), BACK),
    Verb("delete", "DELETE", ONE, "running", "deleted", 204),
    Verb("delete asleep", "DELETE", ONE, "hibernated", "deleted", 204, ("hibernate",)),
]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    world = FakeWorld(tmp_path)
    with world.started():
        yield world


class Scene:
    """A sandbox as a verb begins with it: with a note, and a checkpoint in which the note says another thing."""

    def __init__(self, world: FakeWorld, verb: Verb, number: int) -> None:
        self.world, self.verb = world, verb
        self.key = f"{verb.name}/{number}".replace(" ", "-")
        self.id = self.ask("POST", "/sandboxes", 201, json={}).body["id"]
        self.ask("PUT", f"/sandboxes/{self.id}/fs", 200, params=NOTE, content=b"before")
        self.snapshot = self.ask("POST", f"/sandboxes/{self.id}/snapshots", 201, json={}).body["id"]
        self.ask("PUT", f"/sandboxes/{self.id}/fs", 200, params=NOTE, content=b"now")
        for step in verb.prepared:
            assert self.ask("POST", f"/sandboxes/{self.id}/{step}").status < 300

    def ask(self, method: str, path: str, expected: int | None = None, **more: Any) -> Answer:
        answer = self.world.request(method, path, **NOTHING | more)
        assert expected is None or answer.status == expected, (method, path, answer)
        return answer

    def go(self) -> Answer:
        """Ask for what the verb does, always under the same key."""
        fill = {"{id}": self.id, "{snapshot}": self.snapshot}
        body = {name: fill.get(str(value), value) for name, value in self.verb.body.items()}
        path = self.verb.path.replace("{id}", self.id)
        return self.world.request(
            self.verb.method, path, **NOTHING | {"json": body if self.verb.method == "POST" else None, "key": self.key}
        )

    def state(self) -> str:
        shown = self.ask("GET", f"/sandboxes/{self.id}")
        return "deleted" if shown.status == 404 else str(shown.body["status"])

    def note(self) -> str:
        """Return what the note says, once the sandbox runs."""
        if self.state() == "paused":
            self.ask("POST", f"/sandboxes/{self.id}/resume", 204)
        return str(self.ask("GET", f"/sandboxes/{self.id}/fs", 200, params=NOTE).body)

    def clean_up(self, answer: Answer) -> None:
        """Delete it, what came of the verb, and see that nothing else is there."""
        listed = self.ask("GET", "/sandboxes", 200, params={"limit": "1000"}).body["items"]
        made = {self.id: 0} | self._made(answer)
        assert {item["id"] for item in listed} <= set(made), "there is a sandbox that nobody was told of"
        for one in made:
            self.ask("DELETE", f"/sandboxes/{one}", 204)
        taken = self.ask("GET", "/snapshots", 200, params={"limit": "1000"}).body["items"]
        expected = {self.snapshot} | ({answer.body["id"]} if self.verb.path.endswith("snapshots") else set())
        assert {item["id"] for item in taken} == expected, "there are other snapshots than were told of"
        for one in expected:
            self.ask("DELETE", f"/snapshots/{one}", 204)
        rig = self.world.server.rig
        assert rig.driver.running == []
        assert [*rig.layout.sandboxes.iterdir(), *rig.layout.snapshots.iterdir()] == []

    def _made(self, answer: Answer) -> dict[str, int]:
        if self.verb.path == "/sandboxes":
            return {answer.body["id"]: 1}
        return {child["id"]: 1 for child in answer.body["children"]} if self.verb.path.endswith("fork") else {}


def points_of(world: FakeWorld, verb: Verb) -> list[str]:
    """Return the points that a verb comes to, each once, by doing it."""
    scene = Scene(world, verb, 0)
    world.passed.clear()
    answer = scene.go()
    assert answer.status == verb.status, answer
    passed = [point for point in POINTS if point in world.passed]
    scene.clean_up(answer)
    return passed


@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_a_verb_cut_off_at_any_step_is_done_or_undone_and_asking_again_does_it_once(
    world: FakeWorld, verb: Verb
) -> None:
    points = points_of(world, verb)
    assert {"passage.answered", "passage.settled"} <= set(points)
    for number, point in enumerate(points, start=1):
        scene = Scene(world, verb, number)
        hit = world.crash_at(point)
        with ThreadPoolExecutor(1) as other:
            cut = other.submit(scene.go)
            assert hit.wait(30), f"{verb} did not come to {point}"
            world.kill_now()
            assert cut.result(30).lost
        assert scene.state() in {verb.before, verb.after}, point
        answer = scene.go()
        assert answer.status == verb.status, (point, answer)
        assert scene.state() == verb.after, point
        if verb.after != "deleted":
            assert scene.note() == ("before" if verb.path.endswith("rollback") else "now"), point
        scene.clean_up(answer)


def test_every_point_there_is_belongs_to_some_verb(world: FakeWorld) -> None:
    assert {point for verb in VERBS for point in points_of(world, verb)} == set(POINTS)
