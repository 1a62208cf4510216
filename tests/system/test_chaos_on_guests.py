"""Hundreds of random calls from several threads on real guests, while server and machines are killed with -9."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2

from chaos import Killer, run
from chaos_world import Answer, told
from home_remains import machine_of, processes_of
from running_server import RunningServer, serving

CALLS, WORKERS = 304, 8
NOTHING: dict[str, Any] = {"params": {}, "content": None, "json": None, "key": None}


class RealWorld:
    """A server on a data directory, which is killed and started again while workers call it."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._turnstile = threading.Condition()
        self._under_way = 0
        self._restarting = False
        self.server: RunningServer
        self._serving: Any = None

    @contextmanager
    def started(self) -> Iterator[RealWorld]:
        """Run it while the block lasts; at the end the server that runs then is stopped in good order."""
        self._start()
        try:
            yield self
        finally:
            self._serving.__exit__(None, None, None)

    def _start(self) -> None:
        self._serving = serving(self._home)
        self.server = self._serving.__enter__()

    def request(
        self, method: str, path: str, *, params: Mapping[str, str], content: bytes | None, json: Any, key: str | None
    ) -> Answer:
        with self._turnstile:
            self._turnstile.wait_for(lambda: not self._restarting)
            url, token = self.server.url, self.server.key
        headers = {"authorization": f"Bearer {token}", "prefer": "wait=300"}
        headers |= {"idempotency-key": key} if key else {}
        try:
            answer = httpx2.request(
                method,
                f"{url}/v1{path}",
                params=dict(params),
                content=content,
                json=json,
                headers=headers,
                timeout=300,
                trust_env=False,
            )
            return told(answer)
        except httpx2.TransportError:
            return Answer(0)

    def kill_machine(self, sandbox: str) -> bool:
        pid = machine_of(self.server.data / "sandboxes", sandbox)
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    def kill_server(self) -> None:
        with self._turnstile:
            self._restarting = True
        try:
            self.server.kill()
            self._serving.__exit__(None, None, None)
            self._start()
        finally:
            with self._turnstile:
                self._restarting = False
                self._turnstile.notify_all()

    def count_command(self, name: str) -> str:
        return f"echo once >>/root/{name}; wc -l </root/{name}"


def test_hundreds_of_random_calls_lose_nothing_while_servers_and_machines_are_killed(fresh_home: Path) -> None:
    world = RealWorld(fresh_home)
    with world.started():
        killer = Killer(world, machines=0.03, servers=0.012)
        workers = run(world, killer, workers=WORKERS, calls=CALLS // WORKERS, seed=4)
        assert killer.servers_killed >= 2
        assert killer.machines_killed >= 3
        for held in [held for worker in workers for held in worker.held]:
            assert world.request("DELETE", f"/sandboxes/{held.id}", **NOTHING).status in (204, 404)
        for item in world.request("GET", "/snapshots", **NOTHING | {"params": {"limit": "1000"}}).body["items"]:
            assert world.request("DELETE", f"/snapshots/{item['id']}", **NOTHING).status == 204
        assert world.request("GET", "/sandboxes", **NOTHING).body["items"] == []
        data = world.server.data
        # But for a spare machine, where a sandbox was created in the last minute, nothing stands there any more.
        left = [entry.name for entry in (data / "sandboxes").iterdir()]
        assert [name for name in left if not name.startswith("spare-")] == []
        assert len(left) <= 1
        assert [*(data / "snapshots").iterdir()] == []
    assert processes_of(fresh_home) == []
