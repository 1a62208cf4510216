"""What random calls are made to: a server that can be killed, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2


@dataclass(frozen=True)
class Answer:
    """What came back. `status` 0: nothing did, or that the outcome is not known."""

    status: int
    body: Any = None

    @property
    def code(self) -> str | None:
        """The code of an error."""
        return self.body.get("code") if isinstance(self.body, dict) else None

    @property
    def lost(self) -> bool:
        """Whether nobody knows what came of it."""
        return self.status == 0


def told(answer: httpx2.Response) -> Answer:
    """Return what a response says; an outcome that nobody knows is a lost answer."""
    is_json = "json" in answer.headers.get("content-type", "")
    body = answer.json() if is_json and answer.content else answer.text
    if isinstance(body, dict) and body.get("code") == "outcome_unknown":
        return Answer(0)
    return Answer(answer.status_code, body)


class World(Protocol):
    """A server that can be killed, with machines that can."""

    def request(
        self, method: str, path: str, *, params: Mapping[str, str], content: bytes | None, json: Any, key: str | None
    ) -> Answer:
        """Send one request, after a restart that is under way. A broken connection is a lost answer."""

    def kill_machine(self, sandbox: str) -> bool:
        """End a sandbox's machine as a crash does; False if it has none."""

    def kill_server(self) -> None:
        """End the server in the middle of whatever it does, and start another one."""

    def count_command(self, name: str) -> str:
        """Return a command that adds one to a count of the guest's, and prints it."""
