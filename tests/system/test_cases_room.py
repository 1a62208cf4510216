"""A host without room: who asks is told, who runs loses nothing, and all goes on when there is room again."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from disk_check import faults_of_disk
from running_server import RunningServer, home_sharing_templates, serving
from torpor import Client, Retry, Sandbox
from torpor.errors import OutOfSpace, Unavailable
from torpor.kit.mounts import mount_at
from torpor.storage.room import GIB, MIB, free_and_total
from torpor.storage.volume import VolumeConfig


@pytest.fixture
def small(template_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    """A server whose data directory is a volume of one GiB."""
    monkeypatch.setenv("TORPOR_VOLUME_GIB", "1")
    with serving(home_sharing_templates(template_home, tmp_path / "home")) as running:
        if mount_at(running.home / "volume") is None:
            pytest.skip("the data directory has reflinks of its own, so no volume of a chosen size")
        yield running


@pytest.fixture
def confined(template_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    """A server whose data directory is a volume of two GiB on a disk of three."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk of a chosen size")
    monkeypatch.setenv("TORPOR_VOLUME_GIB", "2")
    image, disk = tmp_path / "disk.ext4", tmp_path / "disk"
    with image.open("xb") as file:
        file.truncate(3 * GIB)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    disk.mkdir()
    subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=True)
    try:
        with serving(home_sharing_templates(template_home, disk / "home", VolumeConfig(limit_gib=2))) as running:
            yield running
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fill(volume: Path, left: int) -> Path:
    """Leave so many bytes of a volume free."""
    filler = volume / "filler"
    status = os.statvfs(volume)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize - left)
    return filler


def test_a_full_disk_refuses_what_is_new_stops_who_writes_and_all_goes_on_when_there_is_room(
    small: RunningServer, tmp_path: Path
) -> None:
    with small.client() as client, Sandbox.create(client=client, ttl_seconds=600) as sandbox:
        filler = fill(small.data, 8 * MIB)
        for refused in (sandbox.snapshot, sandbox.hibernate, sandbox.fork, lambda: Sandbox.create(client=client)):
            with pytest.raises(OutOfSpace, match="full"):
                refused()
        assert sandbox.snapshots() == []
        codes: list[int] = []
        write = "dd if=/dev/urandom of=/root/large bs=1M count=24 && sync && sha256sum /root/large"
        writing = threading.Thread(target=lambda: codes.append(sandbox.exec(write, timeout_seconds=120).exit_code))
        writing.start()
        writing.join(8)
        assert writing.is_alive(), "it found room that was not there"
        filler.unlink()
        writing.join(60)
        assert codes == [0]
        slept = sandbox.hibernate().last_snapshot_id
        assert slept is not None
        assert faults_of_disk(small.data / "snapshots" / slept, small.home, tmp_path) == ""
        assert "OK" in sandbox.exec("sha256sum /root/large > /root/sum && sha256sum -c /root/sum", check=True).stdout


def wait_stopped(client: Client, expected: list[str]) -> None:
    """Return when just these sandboxes stand still for want of room."""
    until = time.monotonic() + 60
    while client.capacity().stopped != expected:
        assert time.monotonic() < until, client.capacity()


def test_below_a_volume_the_disk_gets_nearly_full_and_guests_stand_still_before_anything_is_lost(
    confined: RunningServer, tmp_path: Path
) -> None:
    with confined.client(retry=Retry(attempts=1)) as client, Sandbox.create(client=client, ttl_seconds=600) as sandbox:
        written: list[str] = []
        begun = threading.Event()
        one = "dd if=/dev/urandom of=/root/$i bs=1M count=4 2>/dev/null && sync"
        write = f"echo begun; for i in $(seq 60); do {one}; done; echo done"

        def run() -> None:
            written.append(sandbox.exec(write, timeout_seconds=300, on_stdout=lambda _: begun.set()).stdout)

        writing = threading.Thread(target=run)
        writing.start()
        assert begun.wait(60)
        filler = fill(confined.home, 200 * MIB)
        wait_stopped(client, [sandbox.id])
        with pytest.raises(Unavailable, match="nearly full"):
            sandbox.exec("true")
        with pytest.raises(OutOfSpace, match="MiB stay free"):
            Sandbox.create(client=client)
        sandbox.set_ttl(700)  # which is written down
        assert free_and_total(confined.home)[0] > 0
        assert writing.is_alive()
        filler.unlink()
        wait_stopped(client, [])
        writing.join(120)
        assert written == ["begun\ndone\n"]
        sandbox.exec("sync && sha256sum /root/[0-9]* > /root/sums", check=True)
        slept = sandbox.hibernate().last_snapshot_id
        assert slept is not None
        assert faults_of_disk(confined.data / "snapshots" / slept, confined.home, tmp_path) == ""
        assert sandbox.exec("sha256sum --quiet -c /root/sums", check=True).stdout == ""
