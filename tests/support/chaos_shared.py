"""Sandboxes that several callers use at the same time: nobody knows what they are, and still few answers are right."""

from __future__ import annotations

import itertools
import random
import secrets
import threading
from typing import Any

from chaos_world import Answer, World

_NOTE = {"path": "/root/note"}
# What may be said to somebody who does not know the sandbox's state.
_LEGAL = frozenset({200, 201, 204, 409, 410, 503})
_CARE = {"ttl_seconds": 3600, "idle_timeout_seconds": 1, "checkpoint_every_execs": 3}
_TRIES = 60


class Shared:
    """A few sandboxes, and every text that was ever sent to be written there."""

    def __init__(self, world: World, count: int) -> None:
        self._world = world
        self._texts = itertools.count(1)
        self._ever: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        self.answers = 0
        for _ in range(count):
            answer = self._told("POST", "/sandboxes", key=secrets.token_hex(8), json=_CARE)
            assert answer.status == 201, answer
            self._ever[answer.body["id"]] = set()

    def call(self, dice: random.Random) -> None:
        """Make one random call."""
        sandbox = dice.choice(sorted(self._ever))
        dice.choice([self._write, self._read, self._count, self._pass])(sandbox, dice)

    def rest(self) -> None:
        """Let them fall asleep by themselves no more."""
        for sandbox in self._ever:
            self._told("PATCH", f"/sandboxes/{sandbox}/lifecycle", json={"idle_seconds": 0})

    def _write(self, sandbox: str, _dice: random.Random) -> None:
        text = f"shared {next(self._texts)}"
        with self._lock:
            self._ever[sandbox].add(text)
        self._legal(self._ask("PUT", f"/sandboxes/{sandbox}/fs", params=_NOTE, content=text.encode()))

    def _read(self, sandbox: str, _dice: random.Random) -> None:
        answer = self._ask("GET", f"/sandboxes/{sandbox}/fs", params=_NOTE)
        if answer.status == 404:  # nothing was written, or only after what it went back to
            return
        self._legal(answer)
        if answer.status == 200:
            with self._lock:
                assert answer.body in self._ever[sandbox], f"{sandbox} says {answer.body!r}, which nobody wrote"

    def _count(self, sandbox: str, _dice: random.Random) -> None:
        key, command = secrets.token_hex(8), self._world.count_command(f"shared-{next(self._texts)}")
        answer = self._told("POST", f"/sandboxes/{sandbox}/exec", key=key, json={"cmd": command})
        self._legal(answer)
        if answer.status == 200:
            assert answer.body["stdout"].strip() == "1", f"a command of {sandbox} with one key said {answer.body}"

    def _pass(self, sandbox: str, dice: random.Random) -> None:
        verb = dice.choice(["hibernate", "wake", "pause", "resume", "snapshots", "fork", "unused"])
        body: dict[str, Any] = {}
        if verb == "unused":
            verb, body = "hibernate", {"if_unused": True}
        if verb == "fork":
            body = {"ttl_seconds": 3600}
        answer = self._told("POST", f"/sandboxes/{sandbox}/{verb}", key=secrets.token_hex(8), json=body)
        self._legal(answer)
        if verb == "fork" and answer.status == 201:
            self._told("DELETE", f"/sandboxes/{answer.body['sandbox']['id']}")
        if answer.status == 410 and (last := answer.body["details"]["last_snapshot"]) is not None:
            self._told("POST", f"/sandboxes/{sandbox}/rollback", json={"snapshot": last})

    def _legal(self, answer: Answer) -> None:
        self.answers += 1
        assert answer.lost or answer.status in _LEGAL, f"{answer.status} {answer.body} is no answer to anybody"

    def _ask(self, method: str, path: str, *, key: str | None = None, **more: Any) -> Answer:
        params, content, json = more.get("params", {}), more.get("content"), more.get("json")
        return self._world.request(method, path, params=params, content=content, json=json, key=key)

    def _told(self, method: str, path: str, *, key: str | None = None, **more: Any) -> Answer:
        for _ in range(_TRIES):
            answer = self._ask(method, path, key=key, **more)
            if not answer.lost and answer.status != 503:
                return answer
        raise AssertionError(f"{method} {path} was never answered")
