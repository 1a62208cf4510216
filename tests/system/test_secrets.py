"""Secrets in real guests: in the environment of commands, gone where they were replaced, and nowhere on the host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from running_server import RunningServer
from torpor import Client, Sandbox
from torpor.storage.frozen import DISK, MEMORY

# Made of parts, so that no command line that looks for it has it.
CANARY = "-".join(["canary", "value", "of", str(os.getpid())])
# Where the guest agent, or anybody, might have left one: its own files, and its own environment.
SEARCH = (
    "cat /run/torpor/* /etc/hostname /etc/hosts /etc/environment /etc/profile.d/* /proc/1/environ 2>/dev/null"
    " | grep -a -c canary"
)


@pytest.fixture
def keeper(client: Client) -> Iterator[Sandbox]:
    """A sandbox that holds the secret."""
    with Sandbox.create(client=client, ttl_seconds=1800, secrets={"TOKEN": CANARY, "OTHER": "o"}) as sandbox:
        yield sandbox


def found(sandbox: Sandbox) -> tuple[str, str]:
    """Return what a command finds in the two variables."""
    token, other = sandbox.exec('printf "%s\\n%s\\n" "$TOKEN" "$OTHER"').stdout.splitlines()
    return token, other


def test_every_command_has_them_and_no_file_of_the_guest(keeper: Sandbox) -> None:
    assert found(keeper) == (CANARY, "o")
    assert keeper.exec("echo $TOKEN", env={"TOKEN": "of this command"}).stdout == "of this command\n"
    assert keeper.exec("su nobody -s /bin/sh -c 'echo $TOKEN'").stdout.strip() == CANARY
    assert keeper.start("echo $TOKEN").wait().stdout.strip() == CANARY
    assert keeper.exec(SEARCH).stdout.strip() == "0"


def test_they_are_there_after_a_sleep_and_a_rollback(keeper: Sandbox) -> None:
    before = keeper.snapshot()
    keeper.hibernate()
    assert found(keeper) == (CANARY, "o")
    keeper.rollback(before)
    assert found(keeper) == (CANARY, "o")
    before.delete()


def test_hooks_and_commands_of_a_child_have_its_own_and_what_ran_before_keeps_the_old(keeper: Sandbox) -> None:
    keeper.exec("mkdir -p /etc/torpor/hooks/post-fork.d")
    hook = '#!/bin/sh\necho "hook $TOKEN $OTHER" > /work-of-hook\n'
    keeper.filesystem.write("/etc/torpor/hooks/post-fork.d/tell", hook, mode=0o755)
    running = keeper.start(["sleep", "600"])
    with keeper.fork(secrets={"TOKEN": "own"}) as child, keeper.fork(secrets={}) as bare, keeper.fork() as same:
        assert (found(child), found(bare), found(same)) == (("own", ""), ("", ""), (CANARY, "o"))
        assert child.filesystem.read_text("/work-of-hook") == "hook own \n"
        assert bare.filesystem.read_text("/work-of-hook") == "hook  \n"
        assert (child.info.secret_names, bare.info.secret_names) == (("TOKEN",), ())
        assert child.exec(SEARCH).stdout.strip() == "0"
        # What is said in docs/secrets.md: a process that ran before the fork is the parent's, environment and all.
        old = child.exec(["cat", f"/proc/{running.info.pid}/environ"]).stdout
        assert f"TOKEN={CANARY}" in old.split("\0")


def test_a_restore_replaces_them(client: Client, keeper: Sandbox) -> None:
    checkpoint = keeper.snapshot()
    assert checkpoint.secret_names == ("OTHER", "TOKEN")
    with Sandbox.restore(checkpoint, client=client, secrets={"OTHER": "new"}) as restored:
        assert found(restored) == ("", "new")
        restored.rollback(checkpoint)
        assert found(restored) == ("", ""), "it does not get the secrets of whom it was made from"
    checkpoint.delete()


def files_with(folder: Path, text: bytes) -> list[str]:
    """Return the files below a folder that have a text in them, but for the memory and the disks of guests."""
    names = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    read = [path for path in names if path.name not in (MEMORY, DISK, "volume.xfs")]
    assert any(path.name == "torpor.db" for path in read)
    return [str(path) for path in read if text in path.read_bytes()]


def processes_with(text: bytes, kinds: tuple[str, ...]) -> list[str]:
    """Return what the processes of this machine tell of themselves, of these kinds, that has a text in it."""
    told = []
    for entry in [path for path in Path("/proc").iterdir() if path.name.isdecimal()]:
        for kind in kinds:
            try:
                if text in (entry / kind).read_bytes():
                    told.append(f"{entry.name} {kind}")
            except OSError:  # it has ended, or shows nobody
                continue
    return told


def test_nothing_on_the_host_has_a_value_but_the_memory_of_guests(
    server: RunningServer, client: Client, keeper: Sandbox, tmp_path: Path
) -> None:
    env = {**os.environ, "TORPOR_API": server.url, "TORPOR_API_KEY": server.key, "CANARY": CANARY}
    argv = [sys.executable, "-m", "torpor.cli", "create", "--secret", "CANARY", "--json"]
    told = subprocess.run(argv, capture_output=True, text=True, check=True, env=env).stdout
    checkpoint = keeper.snapshot()
    keeper.hibernate()
    keeper.wake()
    with keeper.fork(), Sandbox.restore(checkpoint, client=client):
        text = CANARY.encode()
        assert processes_with(text, ("cmdline", "environ")) == []
        assert files_with(server.home, text) == []
        assert text not in (server.home.parent / "server.log").read_bytes()
        with closing(keeper.events()) as events:
            said = [told, keeper.logs(), repr(list(events)), repr(keeper.refresh()), repr(keeper.processes())]
        assert [one for one in said if CANARY in one] == []
    checkpoint.delete()
    for sandbox in Sandbox.iterate(client=client):
        if sandbox.info.secret_names == ("CANARY",):
            sandbox.delete()
