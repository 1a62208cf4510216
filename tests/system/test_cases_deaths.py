"""Machines that die, guests that run wild, clients that vanish: whoever asked is told, and nobody else notices."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

from guests import machines_of
from running_server import RunningServer
from torpor import Client, Sandbox
from torpor.errors import Conflict, NotFound, OutcomeUnknown, SandboxLost, TorporError

# A command that has begun, and goes on for longer than any test.
BEGIN_AND_STAY = "echo begun; exec sleep 600"


def machine_of(sandbox: Sandbox) -> int:
    """Return the process that runs a sandbox's machine."""
    (pid,) = machines_of(sandbox)
    return pid


def test_a_machine_that_is_killed_ends_its_commands_and_loses_its_sandbox(fresh_sandbox: Sandbox) -> None:
    pid = machine_of(fresh_sandbox)
    with pytest.raises((SandboxLost, OutcomeUnknown)):
        fresh_sandbox.exec(BEGIN_AND_STAY, on_stdout=lambda _: os.kill(pid, signal.SIGKILL))
    with pytest.raises(SandboxLost) as caught:
        fresh_sandbox.exec("true")
    assert caught.value.last_snapshot is None
    info = fresh_sandbox.refresh()
    assert (info.state, bool(info.reason)) == ("failed", True)
    with pytest.raises(SandboxLost):
        fresh_sandbox.filesystem.read("/etc/passwd")


@pytest.mark.parametrize("letter", ["b", "c"], ids=["reboot", "crash"])
def test_a_guest_whose_kernel_ends_is_lost_and_never_a_blank_machine(fresh_sandbox: Sandbox, letter: str) -> None:
    with pytest.raises((SandboxLost, OutcomeUnknown)):
        fresh_sandbox.exec(f"echo {letter} > /proc/sysrq-trigger; sleep 600")
    with pytest.raises(SandboxLost):
        fresh_sandbox.exec("true")
    fresh_sandbox.delete()


def test_deleting_a_sandbox_ends_what_runs_in_it(fresh_sandbox: Sandbox) -> None:
    with pytest.raises(TorporError):
        fresh_sandbox.exec(BEGIN_AND_STAY, on_stdout=lambda _: fresh_sandbox.delete())
    with pytest.raises(NotFound):
        fresh_sandbox.exec("true")


def test_a_deleted_sandbox_is_gone_from_the_host_and_can_be_deleted_again(
    server: RunningServer, client: Client
) -> None:
    sandbox = Sandbox.create(client=client, ttl_seconds=600)
    pid = machine_of(sandbox)
    sandbox.delete()
    assert not Path(f"/proc/{pid}").exists()
    assert not (server.home / "sandboxes" / sandbox.id).exists()
    sandbox.delete()
    assert sandbox.id not in [each.id for each in Sandbox.list(client=client)]


def test_a_sandbox_ends_with_its_ttl_although_a_command_runs(client: Client) -> None:
    sandbox = Sandbox.create(client=client, ttl_seconds=3)
    with pytest.raises(TorporError):
        sandbox.exec("sleep 600")
    with pytest.raises((NotFound, Conflict)):  # Conflict as long as its removal is under way
        sandbox.filesystem.read("/etc/passwd")


def test_a_fork_bomb_stays_in_its_sandbox_which_still_answers(fresh_sandbox: Sandbox, sandbox: Sandbox) -> None:
    fresh_sandbox.exec(["bash", "-c", "bomb() { bomb | bomb & }; bomb"], timeout_seconds=20)
    assert fresh_sandbox.exec("echo ok", timeout_seconds=30).stdout == "ok\n"
    assert sandbox.exec("echo ok", timeout_seconds=30).stdout == "ok\n"
    fresh_sandbox.delete()


def test_a_command_that_takes_all_memory_is_killed_and_says_so(fresh_sandbox: Sandbox) -> None:
    result = fresh_sandbox.exec(["python3", "-c", "held = []\nwhile True: held.append(b'a' * 10_000_000)"])
    assert (result.exit_code, result.signal, result.oom_killed) == (137, "SIGKILL", True)
    assert fresh_sandbox.exec("echo ok").stdout == "ok\n"


def test_killing_every_process_in_the_guest_leaves_the_sandbox_usable(fresh_sandbox: Sandbox) -> None:
    fresh_sandbox.exec("kill -TERM 1; kill -9 1; kill -9 -1")
    assert fresh_sandbox.exec("echo ok").stdout == "ok\n"


def connection(server: RunningServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)


def headers_of(server: RunningServer) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}


@pytest.mark.parametrize("kind", ["exec", "exec/stream"])
def test_a_command_whose_client_vanishes_is_ended(server: RunningServer, fresh_sandbox: Sandbox, kind: str) -> None:
    http = connection(server)
    body = json.dumps({"cmd": "echo $$ > /tmp/pid.new; mv /tmp/pid.new /tmp/pid; exec sleep 600"})
    http.request("POST", f"/v1/sandboxes/{fresh_sandbox.id}/{kind}", body, headers_of(server))
    pid = fresh_sandbox.exec(
        "until [ -e /tmp/pid ]; do sleep 0.05; done; cat /tmp/pid", check=True, timeout_seconds=15
    ).stdout.strip()
    http.close()
    ended = f"until ! [ -e /proc/{pid} ]; do sleep 0.05; done; echo ended"
    assert fresh_sandbox.exec(ended, timeout_seconds=30).stdout == "ended\n"


def test_an_upload_that_breaks_off_leaves_the_old_file_and_no_part_of_the_new_one(
    server: RunningServer, fresh_sandbox: Sandbox
) -> None:
    fresh_sandbox.filesystem.write("/srv/kept", "old")
    http = connection(server)
    http.putrequest("PUT", f"/v1/sandboxes/{fresh_sandbox.id}/fs?path={quote('/srv/kept')}")
    http.putheader("Authorization", f"Bearer {server.key}")
    http.putheader("Content-Length", str(10_000_000))
    http.endheaders()
    http.send(bytes(5_000_000))
    begun = "until [ $(ls -A /srv | wc -l) = 2 ]; do sleep 0.05; done"
    fresh_sandbox.exec(begun, check=True, timeout_seconds=30)
    http.close()
    ended = "until [ $(ls -A /srv | wc -l) = 1 ]; do sleep 0.05; done"
    fresh_sandbox.exec(ended, check=True, timeout_seconds=30)
    assert fresh_sandbox.filesystem.read_text("/srv/kept") == "old"


def test_a_reader_that_stops_reading_holds_up_only_its_own_command(
    server: RunningServer, fresh_sandbox: Sandbox
) -> None:
    http = connection(server)
    order = json.dumps({"cmd": "echo > /tmp/begun; yes"})
    http.request("POST", f"/v1/sandboxes/{fresh_sandbox.id}/exec/stream", order, headers_of(server))
    fresh_sandbox.exec("until [ -e /tmp/begun ]; do sleep 0.05; done", check=True, timeout_seconds=15)
    results: list[str] = []
    others = [
        threading.Thread(target=lambda: results.append(fresh_sandbox.exec("seq 20000 | tail -1", check=True).stdout))
        for _ in range(4)
    ]
    for other in others:
        other.start()
    for other in others:
        other.join()
    http.close()
    assert results == ["20000\n"] * 4
