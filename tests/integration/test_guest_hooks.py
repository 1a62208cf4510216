"""The user's own hooks under the real agent, as an ordinary process of this machine."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from guest_agent import Agent, is_there, run, running_agent, wait_gone
from torpor import errors
from torpor.guest.client import Guest, connect
from torpor.kit.shielded import wait_ended
from torpor.model.identity import Identity
from torpor.model.ids import new_sandbox_id


@pytest.fixture(params=["cgroups", "sessions"])
async def agent(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Agent]:
    async with running_agent(tmp_path, cgroups=request.param == "cgroups") as agent:
        yield agent


@pytest.fixture
async def guest(agent: Agent) -> AsyncIterator[Guest]:
    async with await agent.connect() as guest:
        yield guest


@pytest.fixture
def said(tmp_path: Path) -> Path:
    """A file that hooks write to."""
    return tmp_path / "said"


def put_hook(agent: Agent, event: str, name: str, script: str, mode: int = 0o755) -> Path:
    path = agent.hooks / f"{event}.d" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)
    return path


async def test_hooks_run_in_the_byte_order_of_their_names_and_nothing_else_does(
    agent: Agent, guest: Guest, said: Path
) -> None:
    for name in ("20-b", "100-a", "A", "a", ".hidden", "20-b~"):
        put_hook(agent, "post-wake", name, f'echo "$0" >> {said}')
    put_hook(agent, "post-wake", "15-no-program", f"echo no >> {said}", mode=0o644)
    (agent.hooks / "post-wake.d" / "16-folder").mkdir()
    (agent.hooks / "post-wake.d" / "17-lost").symlink_to(said.parent / "nowhere")
    assert await guest.adopt(Identity(new_sandbox_id()), event="wake") == 4
    assert await guest.adopt(Identity(new_sandbox_id()), event="fork") == 0
    assert not said.exists()  # counted only
    assert await guest.run_hooks("wake") == []
    assert [Path(line).name for line in said.read_text().splitlines()] == ["100-a", "20-b", "A", "a"]


async def test_a_hook_finds_who_it_is_and_what_happened(agent: Agent, guest: Guest, said: Path) -> None:
    facts = ("TORPOR_HOOK", "TORPOR_SANDBOX_ID", "GIVEN", "HOME")
    words = " ".join(f"${name}" for name in facts)
    put_hook(agent, "post-fork", "10", f"echo {words} $# $(pwd) $(id -u) > {said}; cat >> {said}")
    identity = Identity(new_sandbox_id())
    await guest.adopt(identity, env={"GIVEN": "yes"})
    assert await guest.run_hooks("fork") == []
    assert said.read_text() == f"post-fork {identity.sandbox_id} yes /root 0 / {os.geteuid()}\n"


async def test_what_a_hook_says_is_on_the_console(agent: Agent, guest: Guest) -> None:
    put_hook(agent, "post-wake", "10", "echo to stdout; echo to stderr >&2")
    await guest.run_hooks("wake")
    assert agent.console.read_text() == "to stdout\nto stderr\n"


async def test_a_hook_that_fails_is_named_and_stops_no_other(agent: Agent, guest: Guest, said: Path) -> None:
    put_hook(agent, "post-wake", "10-fails", "exit 3")
    put_hook(agent, "post-wake", "20-dies", "kill -9 $$")
    (agent.hooks / "post-wake.d" / "30-no-interpreter").write_text("#!/no/such/interpreter\n")
    (agent.hooks / "post-wake.d" / "30-no-interpreter").chmod(0o755)
    put_hook(agent, "post-wake", "40-works", f"echo worked > {said}")
    assert await guest.run_hooks("wake") == ["10-fails", "20-dies", "30-no-interpreter"]
    assert said.read_text() == "worked\n"
    lines = agent.console.read_text().splitlines()
    folder = agent.hooks / "post-wake.d"
    assert lines[0] == f"torpor: the hook {folder}/10-fails failed: it ended with 3"
    assert lines[1] == f"torpor: the hook {folder}/20-dies failed: it was ended by signal 9"
    assert lines[2].startswith(f"torpor: the hook {folder}/30-no-interpreter failed: ")


async def test_pre_freeze_hooks_run_before_the_freeze_and_only_where_they_are_asked_for(
    agent: Agent, guest: Guest, said: Path
) -> None:
    put_hook(agent, "pre-freeze", "10", f"echo $TORPOR_HOOK >> {said}")
    await guest.quiesce(timeout_s=10)
    await guest.thaw()
    guest.release()
    assert not said.exists()
    await guest.quiesce(timeout_s=10, hooks=True)
    await guest.thaw()
    guest.release()
    assert said.read_text() == "pre-freeze\n"
    assert (await run(guest, "true")).code == 0


async def test_a_hook_that_overruns_is_killed_with_its_children_and_the_freeze_comes_about(
    agent: Agent, guest: Guest, said: Path
) -> None:
    put_hook(agent, "pre-freeze", "10-hangs", f"sleep 1000 & echo $! > {said}; wait")
    put_hook(agent, "pre-freeze", "20-late", "true")
    await guest.quiesce(timeout_s=1.0, hooks=True)
    assert guest.confirmed
    await guest.thaw()
    guest.release()
    await wait_gone(guest, int(said.read_text()))
    console = agent.console.read_text()
    assert "10-hangs failed: it took longer than 0.5 s" in console
    assert "20-late failed: there was no time left for it" in console


async def test_a_background_process_of_a_hook_that_ended_well_lives_on(agent: Agent, guest: Guest, said: Path) -> None:
    put_hook(agent, "post-wake", "10", f"sleep 1000 > /dev/null 2>&1 & echo $! > {said}")
    assert await guest.run_hooks("wake") == []
    pid = int(said.read_text())
    assert is_there(pid)
    await run(guest, "kill", "-9", str(pid))


async def test_giving_up_a_freeze_kills_the_hook_under_way(agent: Agent, guest: Guest, said: Path) -> None:
    os.mkfifo(said)
    put_hook(agent, "pre-freeze", "10", f"echo $$ > {said}; sleep 1000")
    put_hook(agent, "pre-freeze", "20", f"echo second > {said}.second")
    asking = asyncio.create_task(guest.quiesce(timeout_s=100, hooks=True))
    pid = int(await asyncio.to_thread(said.read_text))
    asking.cancel()
    await asyncio.wait([asking])
    await guest.thaw()
    guest.release()
    await wait_gone(guest, pid)
    assert not Path(f"{said}.second").exists()
    assert (await run(guest, "true")).code == 0


async def test_a_host_that_goes_away_in_the_middle_of_hooks_is_followed_by_another(
    agent: Agent, guest: Guest, said: Path
) -> None:
    os.mkfifo(said)
    put_hook(agent, "pre-freeze", "10", f"echo $$ > {said}; sleep 1000")
    asking = asyncio.create_task(guest.quiesce(timeout_s=100, hooks=True))
    pid = int(await asyncio.to_thread(said.read_text))
    await guest.aclose()
    with pytest.raises(errors.OutcomeUnknown):
        await asking
    async with await connect(agent.sock.dup(), timeout_s=10) as second:
        await wait_gone(second, pid)
        await second.adopt(Identity(new_sandbox_id()))
        assert (await run(second, "true")).code == 0


async def test_a_cancelled_run_of_hooks_runs_no_more_of_them(agent: Agent, guest: Guest, said: Path) -> None:
    os.mkfifo(said)
    put_hook(agent, "post-wake", "10", f"echo $$ > {said}; sleep 1000")
    put_hook(agent, "post-wake", "20", f"echo second > {said}.second")
    asking = asyncio.create_task(guest.run_hooks("wake"))
    pid = int(await asyncio.to_thread(said.read_text))
    asking.cancel()
    await wait_ended(asking)
    await wait_gone(guest, pid)
    assert not Path(f"{said}.second").exists()


async def test_of_very_many_hooks_the_first_64_run(agent: Agent, guest: Guest) -> None:
    for number in range(70):
        put_hook(agent, "post-wake", f"{number:03}", "exit 1")
    assert await guest.adopt(Identity(new_sandbox_id()), event="wake") == 64
    assert await guest.run_hooks("wake") == [f"{number:03}" for number in range(64)]


async def test_a_name_that_is_no_text_is_told_all_the_same(agent: Agent, guest: Guest) -> None:
    put_hook(agent, "post-wake", "x", "exit 1")
    os.rename(agent.hooks / "post-wake.d" / "x", os.fsencode(agent.hooks / "post-wake.d") + b"/\xff")
    failed = await guest.run_hooks("wake")
    assert len(failed) == 1
    assert b"failed: it ended with 1" in agent.console.read_bytes()


async def test_hooks_between_which_a_freeze_comes_go_on_after_it(agent: Agent, guest: Guest, said: Path) -> None:
    os.mkfifo(said)
    put_hook(agent, "post-wake", "10", f"echo on > {said}; sleep 0.2")
    put_hook(agent, "post-wake", "20", f"echo second > {said}.second")
    asking = asyncio.create_task(guest.run_hooks("wake"))
    await asyncio.to_thread(said.read_text)
    await guest.quiesce(timeout_s=10)
    await guest.thaw()
    guest.release()
    assert await asking == []
    assert Path(f"{said}.second").read_text() == "second\n"


async def test_no_hook_starts_while_everything_stands_still(agent: Agent, guest: Guest) -> None:
    if agent.cgroup is None:
        pytest.skip("no control groups: nothing stands still")
    running = asyncio.create_task(run(guest, "sleep", "1000"))
    await guest.ping()
    await guest.quiesce(timeout_s=10)
    with pytest.raises(errors.Failed, match="being frozen"):
        await guest.run_hooks("wake")
    await guest.thaw()
    guest.release()
    running.cancel()
    await wait_ended(running)


async def test_the_identity_file_has_grown_by_the_time_hooks_run(agent: Agent, guest: Guest, said: Path) -> None:
    put_hook(agent, "post-wake", "10", f"cat {agent.root}/identity.json > {said}")
    generations = []
    for _ in range(2):
        identity = Identity(new_sandbox_id())
        await guest.adopt(identity, event="wake")
        await guest.run_hooks("wake")
        found = json.loads(said.read_text())
        assert found["sandbox_id"] == identity.sandbox_id
        generations.append(found["generation"])
    assert generations[0] < generations[1]
