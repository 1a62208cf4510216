"""Eight callers at once, random verbs, the same few sandboxes: every answer is one that some order allows."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import httpx2
import pytest

from torpor.control.reconcile import reconcile
from whole_rig import WholeRig

CALLERS, CALLS = 8, 63
NOTE = {"path": "/work/note"}
# What each verb may answer, whatever the others do meanwhile. Nothing else, and never a 500.
LEGAL = {
    "write": {200, 404, 409},
    "read": {200, 404, 409},
    "hibernate": {200, 404},
    "wake": {200, 404, 409},
    "pause": {204, 404, 409},
    "resume": {204, 404, 409},
    "snapshots": {201, 404, 409},
    "fork": {201, 404},
    "rollback": {200, 404, 409},
    "delete": {204},
    "create": {201},
}


class Caller:
    """One client with a random mind of its own; `known` is what all of them have heard of."""

    def __init__(self, http: httpx2.AsyncClient, known: dict[str, list[str]], seed: int) -> None:
        self._http, self._known, self._random = http, known, random.Random(seed)
        self._seed = seed

    async def run(self) -> None:
        for number in range(CALLS):
            verb = self._random.choice([*LEGAL, "write", "read", "wake", "resume"])
            if verb == "create" and len(self._known["sandboxes"]) >= 6:
                continue
            answer = await self._call(verb, number)
            assert answer.status_code in LEGAL[verb], (verb, answer.status_code, answer.text)
            self._learn(verb, answer)

    async def _call(self, verb: str, number: int) -> httpx2.Response:
        if verb == "create":
            return await self._http.post("/sandboxes", json={})
        one = f"/sandboxes/{self._random.choice(self._known['sandboxes'])}"
        if verb == "write":
            return await self._http.put(f"{one}/fs", params=NOTE, content=f"{self._seed}/{number}")
        if verb == "read":
            return await self._http.get(f"{one}/fs", params=NOTE)
        if verb == "delete":
            return await self._http.delete(one)
        body = {"snapshot": self._random.choice(self._known["snapshots"])} if verb == "rollback" else {}
        return await self._http.post(f"{one}/{verb}", json=body)

    def _learn(self, verb: str, answer: httpx2.Response) -> None:
        if answer.status_code != 201:
            return
        made = answer.json()
        if verb == "snapshots":
            self._known["snapshots"].append(made["id"])
        else:
            self._known["sandboxes"].append(made["id"] if verb == "create" else made["sandbox"]["id"])


@pytest.mark.parametrize("seed", [1, 2])
async def test_eight_callers_get_answers_that_make_sense_and_leave_everything_consistent(
    tmp_path: Path, seed: int
) -> None:
    whole = WholeRig(tmp_path)
    await whole.bake()
    first = (await whole.http.post("/sandboxes", json={})).json()["id"]
    known = {"sandboxes": [first], "snapshots": ["snp-0000000000000000"]}
    callers = [Caller(whole.http, known, seed * 100 + number) for number in range(CALLERS)]
    await asyncio.gather(*(caller.run() for caller in callers))

    assert await reconcile(whole.plane) == 0, "what is recorded is how things are"
    listed = (await whole.http.get("/sandboxes", params={"limit": 1000})).json()["items"]
    assert {item["status"] for item in listed} <= {"running", "paused", "hibernated"}
    awake = {item["id"] for item in listed if item["status"] != "hibernated"}
    assert {machine.place.name for machine in whole.rig.driver.running} == awake
    for item in listed:
        if item["status"] == "paused":
            await whole.http.post(f"/sandboxes/{item['id']}/resume")
        read = await whole.http.get(f"/sandboxes/{item['id']}/fs", params=NOTE)
        assert read.status_code in (200, 404)
    await whole.aclose()
