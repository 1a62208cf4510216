"""Volumes of real guests: what is in them outlives sandboxes, is nobody else's meanwhile, and is never torn."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from guests import machines_of
from running_server import RunningServer, home_sharing_templates, serving
from torpor import Client, Conflict, InvalidRequest, NotFound, Sandbox, SandboxLost, Snapshot, Unsupported, Volume

DATA = "/data"


@pytest.fixture(scope="module")
def volume(client: Client) -> Iterator[Volume]:
    """A volume that the tests of this file use one after another; none leaves a sandbox that has it."""
    made = client.volumes.create("shared", 64)
    yield made
    client.volumes.delete(made.name)


@contextmanager
def having(client: Client, volume: Volume, *, read_only: bool = False) -> Iterator[Sandbox]:
    """A sandbox that has the volume at /data."""
    wish = {"name": volume.name, "path": DATA, "read_only": read_only}
    with Sandbox.create(client=client, ttl_seconds=900, volumes=[wish]) as sandbox:
        yield sandbox


def put(sandbox: Sandbox, text: str) -> None:
    """Write a note to the volume, as a program does that does not wait for any disk."""
    sandbox.exec(["sh", "-c", 'printf %s "$1" >/data/note', "sh", text], check=True)


def note(sandbox: Sandbox) -> str:
    return sandbox.exec(["cat", "/data/note"], check=True).stdout


def fault_of(server: RunningServer, volume: Volume, tmp_path: Path) -> str:
    """Return what is wrong with the file system in a volume, looked at from outside; empty if nothing is."""
    copy = tmp_path / "looked-at.img"
    shutil.copyfile(server.data / "volumes" / f"{volume.id}.img", copy)
    # The first look writes back what is in the journal, as the next guest does; after it nothing may be left to mend.
    subprocess.run(["e2fsck", "-p", str(copy)], check=False, capture_output=True)
    found = subprocess.run(["e2fsck", "-f", "-n", str(copy)], check=False, capture_output=True, text=True)
    copy.unlink()
    return "" if found.returncode == 0 else found.stdout


def test_what_a_sandbox_wrote_is_there_for_the_next_one(
    server: RunningServer, client: Client, volume: Volume, tmp_path: Path
) -> None:
    with having(client, volume) as sandbox:
        assert {each.path for each in sandbox.info.volumes} == {DATA}
        put(sandbox, "first")
    assert fault_of(server, volume, tmp_path) == ""
    with having(client, volume) as sandbox:
        assert note(sandbox) == "first"
        sandbox.exec("rm /data/note; df -m /data", check=True)
    with having(client, volume) as sandbox:
        assert sandbox.exec("ls /data").stdout.split() == ["lost+found"]


def test_one_writes_or_many_read(client: Client, volume: Volume) -> None:
    with having(client, volume) as writer:
        put(writer, "for readers")
        for read_only in (False, True):
            with pytest.raises(Conflict, match=writer.id), having(client, volume, read_only=read_only):
                pass
        with pytest.raises(Conflict, match=writer.id):
            client.volumes.delete(volume.name)
        writer.hibernate()
        with pytest.raises(Conflict, match="hibernated"):
            client.volumes.delete(volume.name)
    with having(client, volume, read_only=True) as one, having(client, volume, read_only=True) as other:
        assert note(one) == note(other) == "for readers"
        assert "Read-only file system" in one.exec("touch /data/x").stderr
        assert {each.sandbox_id for each in client.volumes.get(volume.name).attached_to} == {one.id, other.id}
        with pytest.raises(Conflict, match="read-only"), having(client, volume):
            pass
        # What stands behind a mount that is only read is a copy, so that not even root can change the volume.
        one.exec("mount -o remount,rw /data && echo changed >/data/note && sync", check=True)
        assert note(other) == "for readers"
    with having(client, volume, read_only=True) as sandbox:
        assert note(sandbox) == "for readers"


def test_a_sandbox_sleeps_and_wakes_with_its_volume(
    server: RunningServer, client: Client, volume: Volume, tmp_path: Path
) -> None:
    with having(client, volume) as sandbox:
        put(sandbox, "before the sleep")
        sandbox.exec("sh -c 'exec 3>>/data/log; while sleep 0.1; do date +%s%N >&3; done' >/dev/null 2>&1 &")
        sandbox.exec("sleep 1; test -s /data/log", check=True)
        sandbox.hibernate()
        sandbox.wake()
        assert note(sandbox) == "before the sleep"
        count = int(sandbox.exec("wc -l </data/log", check=True).stdout)
        sandbox.exec("sleep 1", check=True)
        assert int(sandbox.exec("wc -l </data/log", check=True).stdout) > count, "the program has lost its file"
        put(sandbox, "after it")
        sandbox.hibernate()
    assert fault_of(server, volume, tmp_path) == ""
    with having(client, volume, read_only=True) as sandbox:
        assert note(sandbox) == "after it"


def test_a_snapshot_holds_a_copy_and_a_rollback_brings_the_volume_back(
    server: RunningServer, client: Client, volume: Volume, tmp_path: Path
) -> None:
    with having(client, volume) as sandbox:
        put(sandbox, "old")
        checkpoint = sandbox.snapshot()
        put(sandbox, "new")
        sandbox.exec("head -c 20000000 /dev/urandom >/data/big; sync", check=True)
        with Sandbox.restore(checkpoint, client=client) as restored, sandbox.fork() as child:
            assert (note(restored), note(child), note(sandbox)) == ("old", "new", "new")
            assert [each.is_copy for each in (*restored.info.volumes, *child.info.volumes)] == [True, True]
            put(restored, "only the copy")
            put(child, "only the child's")
            assert (note(restored), note(child), note(sandbox)) == ("only the copy", "only the child's", "new")
        sandbox.rollback(checkpoint)
        assert note(sandbox) == "old"
        assert "big" not in sandbox.exec("ls /data").stdout.split()
        put(sandbox, "after the rollback")
    checkpoint.verify()
    assert fault_of(server, volume, tmp_path) == ""
    with having(client, volume) as sandbox:
        assert note(sandbox) == "after the rollback"
    _outlives_its_volume(client, checkpoint)


def _outlives_its_volume(client: Client, checkpoint: Snapshot) -> None:
    with Sandbox.restore(checkpoint, client=client) as sandbox:
        assert note(sandbox) == "old"
    checkpoint.delete()


def test_a_sandbox_can_have_several_and_no_more_than_its_template_has_room_for(client: Client) -> None:
    made = [client.volumes.create(f"many-{number}", 16) for number in range(5)]
    try:
        paths = {each.name: f"/srv/{each.name}" for each in made[:4]}
        with Sandbox.create(client=client, volumes=paths) as sandbox:
            sandbox.exec("for each in /srv/*; do echo $each >$each/name; done", check=True)
            snapshot = sandbox.snapshot()
            with Sandbox.restore(snapshot, client=client) as restored:
                told = restored.exec("cat /srv/*/name; mount | grep -c /srv/", check=True).stdout.split()
            assert told == [*sorted(paths.values()), "4"]
            snapshot.delete()
        with pytest.raises(Unsupported, match="at most 4"):
            Sandbox.create(client=client, volumes=[each.name for each in made])
        with pytest.raises(InvalidRequest, match="beside each other"):
            Sandbox.create(client=client, volumes={"many-0": "/srv", "many-1": "/srv/x"})
    finally:
        for each in made:
            client.volumes.delete(each.name)
    with pytest.raises(NotFound):
        client.volumes.get("many-0")


def test_a_volume_outlives_kills_of_its_server_and_of_its_machine(template_home: Path, tmp_path: Path) -> None:
    home = home_sharing_templates(template_home, tmp_path / "home")
    with serving(home) as server, server.client() as client:
        volume = client.volumes.create("lasting", 64)
        sandbox = Sandbox.create(client=client, volumes={"lasting": DATA})
        put(sandbox, "before the kill")
        server.kill()
    with serving(home) as server, server.client() as client:
        sandbox = Sandbox.connect(sandbox.id, client=client)
        assert note(sandbox) == "before the kill"
        checkpoint = sandbox.snapshot()
        put(sandbox, "after the kill")
        sandbox.rollback(checkpoint)
        put(sandbox, "back again")
        sandbox.exec("sync", check=True)
        for pid in machines_of(sandbox):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(SandboxLost):
            note(sandbox)
        sandbox.delete()
        checkpoint.delete()
        assert fault_of(server, volume, tmp_path) == ""
        with having(client, volume) as another:
            assert note(another) == "back again"
        client.volumes.delete(volume.name)
        assert list((server.data / "volumes").iterdir()) == []
