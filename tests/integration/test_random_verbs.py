"""Random verbs in random order, on everything but real guests, against a model of what they mean."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from torpor.control.reconcile import reconcile
from whole_rig import WholeRig

T = TypeVar("T")
NOTE = {"path": "/work/note"}
AWAKE, PAUSED, ASLEEP, LOST, GONE = "running", "paused", "hibernated", "failed", "deleted"


@dataclass
class Model:
    """What a sandbox should be: its state, and what its note says."""

    state: str = AWAKE
    note: str | None = None
    snapshots: dict[str, str | None] = field(default_factory=dict)  # those it may be rolled back to


class RandomVerbs(RuleBasedStateMachine):
    """Each rule does one thing through the public API and says what should come of it."""

    sandboxes = Bundle("sandboxes")
    snapshots = Bundle("snapshots")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.whole = WholeRig(Path(self.folder.name))
        self.models: dict[str, Model] = {}
        self.kept: dict[str, str | None] = {}  # checkpoints that were not deleted, and what the note says in each
        self.count = 0
        self.run(self.whole.bake())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def ask(self, method: str, path: str, expected: int, **more: Any) -> Any:
        answer = self.run(self.whole.http.request(method, path, **more))
        assert answer.status_code == expected, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content and "json" in answer.headers.get("content-type", "") else answer.text

    def verb(self, sandbox: str, name: str, expected: int, **body: Any) -> Any:
        return self.ask("POST", f"/sandboxes/{sandbox}/{name}", expected, json=body)

    @rule(target=sandboxes)
    def create(self) -> str:
        made: str = self.ask("POST", "/sandboxes", 201, json={})["id"]
        self.models[made] = Model()
        return made

    @rule(sandbox=sandboxes)
    def write(self, sandbox: str) -> None:
        model = self.models[sandbox]
        self.count += 1
        text = f"note {self.count}"
        expected = {PAUSED: 409, LOST: 410, GONE: 404}.get(model.state, 200)
        self.ask("PUT", f"/sandboxes/{sandbox}/fs", expected, params=NOTE, content=text)
        if expected == 200:
            model.state, model.note = AWAKE, text

    @rule(sandbox=sandboxes)
    def read(self, sandbox: str) -> None:
        model = self.models[sandbox]
        there = 200 if model.note is not None else 404
        expected = {PAUSED: 409, LOST: 410, GONE: 404}.get(model.state, there)
        text = self.ask("GET", f"/sandboxes/{sandbox}/fs", expected, params=NOTE)
        if model.state in (AWAKE, ASLEEP):
            model.state = AWAKE
        if expected == 200:
            assert text == model.note

    @rule(sandbox=sandboxes)
    def hibernate(self, sandbox: str) -> None:
        model = self.models[sandbox]
        self.verb(sandbox, "hibernate", {LOST: 410, GONE: 404}.get(model.state, 200))
        if model.state in (AWAKE, PAUSED):
            model.state = ASLEEP

    @rule(sandbox=sandboxes)
    def wake(self, sandbox: str) -> None:
        model = self.models[sandbox]
        self.verb(sandbox, "wake", {LOST: 410, GONE: 404, PAUSED: 409}.get(model.state, 200))
        if model.state == ASLEEP:
            model.state = AWAKE

    @rule(sandbox=sandboxes)
    def pause(self, sandbox: str) -> None:
        model = self.models[sandbox]
        self.verb(sandbox, "pause", {LOST: 410, GONE: 404, ASLEEP: 409}.get(model.state, 204))
        if model.state == AWAKE:
            model.state = PAUSED

    @rule(sandbox=sandboxes)
    def resume(self, sandbox: str) -> None:
        model = self.models[sandbox]
        self.verb(sandbox, "resume", {LOST: 410, GONE: 404, ASLEEP: 409}.get(model.state, 204))
        if model.state == PAUSED:
            model.state = AWAKE

    @rule(target=snapshots, sandbox=sandboxes)
    def snapshot(self, sandbox: str) -> Any:
        model = self.models[sandbox]
        answer = self.verb(sandbox, "snapshots", {LOST: 410, GONE: 404, ASLEEP: 409}.get(model.state, 201))
        if model.state not in (AWAKE, PAUSED):
            return multiple()
        self.kept[answer["id"]] = model.snapshots[answer["id"]] = model.note
        return answer["id"]

    @rule(target=sandboxes, snapshot=snapshots)
    def restore(self, snapshot: str) -> Any:
        there = snapshot in self.kept
        answer = self.ask("POST", "/sandboxes", 201 if there else 404, json={"from_snapshot": snapshot})
        if not there:
            return multiple()
        self.models[answer["id"]] = Model(note=self.kept[snapshot], snapshots={snapshot: self.kept[snapshot]})
        return answer["id"]

    @rule(sandbox=sandboxes, snapshot=snapshots)
    def roll_back(self, sandbox: str, snapshot: str) -> None:
        model = self.models[sandbox]
        if model.state == GONE or snapshot not in self.kept:
            expected = 404
        else:
            expected = 200 if snapshot in model.snapshots else 409
        self.verb(sandbox, "rollback", expected, snapshot=snapshot)
        if expected == 200:
            model.state, model.note = AWAKE, self.kept[snapshot]

    @rule(target=sandboxes, sandbox=sandboxes, count=st.integers(1, 3))
    def fork(self, sandbox: str, count: int) -> Any:
        model = self.models[sandbox]
        answer = self.verb(sandbox, "fork", {LOST: 410, GONE: 404}.get(model.state, 201), count=count)
        if model.state in (LOST, GONE):
            return multiple()
        children = [child["id"] for child in answer["children"]]
        assert len(set(children)) == count
        for child in children:
            self.models[child] = Model(note=model.note)
        return multiple(*children)

    @rule(snapshot=consumes(snapshots))
    def delete_snapshot(self, snapshot: str) -> None:
        self.ask("DELETE", f"/snapshots/{snapshot}", 204)
        del self.kept[snapshot]

    @rule(sandbox=sandboxes)
    def delete(self, sandbox: str) -> None:
        self.ask("DELETE", f"/sandboxes/{sandbox}", 204)
        self.models[sandbox].state = GONE

    @rule(sandbox=sandboxes)
    def die(self, sandbox: str) -> None:
        for machine in self.whole.rig.driver.running:
            if machine.place.name == sandbox and self.models[sandbox].state == AWAKE:
                machine.die("it crashed")
                self.run(reconcile(self.whole.plane))
                self.models[sandbox].state = LOST

    @rule()
    def crash(self) -> None:
        self.run(self.whole.crash())

    @rule()
    def crash_with_all_machines(self) -> None:
        self.run(self.whole.crash(machines_die=True))
        for model in self.models.values():
            if model.state in (AWAKE, PAUSED):
                model.state = LOST

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        listed = {item["id"]: item["status"] for item in self.ask("GET", "/sandboxes?limit=1000", 200)["items"]}
        assert listed == {each: model.state for each, model in self.models.items() if model.state != GONE}
        by_state: dict[str, set[str]] = {state: set() for state in (AWAKE, PAUSED, ASLEEP, LOST, GONE)}
        for each, model in self.models.items():
            by_state[model.state].add(each)
        rig = self.whole.rig
        assert {machine.place.name for machine in rig.driver.running} == by_state[AWAKE] | by_state[PAUSED]
        folders = {entry.name for entry in rig.layout.sandboxes.iterdir()}
        assert by_state[AWAKE] | by_state[PAUSED] | by_state[ASLEEP] <= folders <= set(listed)
        on_disk = {entry.name for entry in rig.layout.snapshots.iterdir()}
        recorded = {item["id"]: item for item in self.ask("GET", "/snapshots?limit=1000", 200)["items"]}
        assert on_disk == set(recorded)
        assert {each for each, item in recorded.items() if item["kind"] == "checkpoint"} == set(self.kept)

    def teardown(self) -> None:
        self.run(self.whole.aclose())
        self.runner.close()
        self.folder.cleanup()


RandomVerbs.TestCase.settings = settings(
    max_examples=10, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRandomVerbs = RandomVerbs.TestCase
