"""A server that is asked to end puts its guests to sleep, and the next one finds them so."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx2

from control_rig import events_of
from home_remains import mounts_of, processes_of, vmms_of
from running_server import RunningServer, serving
from torpor import Sandbox

COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.2; done"
KEY = {"idempotency-key": "counter"}


def streamed(running: RunningServer, sandbox: str, since: int, enough: threading.Event) -> tuple[bytes, bool]:
    """Listen to the counter from an offset on until it breaks off or ends; return its output, and whether it ended."""
    text = ""
    with httpx2.Client(base_url=running.url, headers={"authorization": f"Bearer {running.key}"}, timeout=60) as http:
        body = {"cmd": COUNTER, "stdout_from": since}
        try:
            with http.stream("POST", f"/v1/sandboxes/{sandbox}/exec/stream", json=body, headers=KEY) as answer:
                for part in answer.iter_text():
                    text += part
                    if text.count("event: stdout") >= 3:
                        enough.set()
        except httpx2.TransportError:
            pass
    whole = text[: text.rfind("\n\n") + 2]  # what was cut off in mid-event was not said
    events = events_of(whole)
    output = "".join(data["chunk"] for kind, data in events if kind == "stdout")
    return output.encode(), "exit" in {kind for kind, _ in events}


def test_what_runs_sleeps_after_a_stop_and_goes_on_when_it_is_used(fresh_home: Path) -> None:
    heard: list[tuple[bytes, bool]] = []
    with serving(fresh_home) as running, running.client() as client:
        made = [Sandbox.create(client=client, ttl_seconds=600) for _ in range(3)]
        for sandbox in made:
            sandbox.filesystem.write("/root/who", sandbox.id)
        made[1].pause()
        enough = threading.Event()
        listening = threading.Thread(target=lambda: heard.append(streamed(running, made[0].id, 0, enough)))
        listening.start()
        assert enough.wait(60)
        assert running.stop() == 0
        listening.join()
        assert processes_of(fresh_home) == []
        assert mounts_of(fresh_home) == []
    before, ended = heard[0]
    assert not ended, "a stream that the stop cuts off is no end of the command"

    with serving(fresh_home) as running, running.client() as client:
        states = {sandbox.id: sandbox.state for sandbox in Sandbox.list(client=client)}
        assert states == dict.fromkeys((sandbox.id for sandbox in made), "hibernated")
        assert vmms_of(fresh_home) == [], "the start wakes nothing"
        for sandbox in made:
            again = Sandbox.connect(sandbox.id, client=client)
            assert again.exec("cat /root/who").stdout == sandbox.id
        enough = threading.Event()
        listening = threading.Thread(
            target=lambda: heard.append(streamed(running, made[0].id, len(before), enough)), daemon=True
        )
        listening.start()
        assert enough.wait(60)
        Sandbox.connect(made[0].id, client=client).delete()
        listening.join()
        for sandbox in made[1:]:
            Sandbox.connect(sandbox.id, client=client).delete()
    numbers = [int(line) for line in (before + heard[1][0]).splitlines()]
    assert numbers == list(range(1, len(numbers) + 1)), "the counter was not run twice, and nothing of it is missing"
