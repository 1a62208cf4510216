"""A host without room: who asks is told, who runs loses nothing, and all goes on when there is room again."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from running_server import RunningServer, home_sharing_templates, serving
from torpor import Sandbox
from torpor.errors import OutOfSpace
from torpor.kit.mounts import mount_at

MIB = 1024 * 1024


@pytest.fixture
def small(template_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    """A server whose data directory is a volume of one GiB."""
    monkeypatch.setenv("TORPOR_VOLUME_GIB", "1")
    with serving(home_sharing_templates(template_home, tmp_path / "home")) as running:
        if mount_at(running.home / "volume") is None:
            pytest.skip("the data directory has reflinks of its own, so no volume of a chosen size")
        yield running


def fill(volume: Path, left: int) -> Path:
    """Leave so many bytes of a volume free."""
    filler = volume / "filler"
    status = os.statvfs(volume)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize - left)
    return filler


def test_a_full_disk_refuses_what_is_new_stops_who_writes_and_all_goes_on_when_there_is_room(
    small: RunningServer,
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
        sandbox.hibernate()
        assert "OK" in sandbox.exec("sha256sum /root/large > /root/sum && sha256sum -c /root/sum", check=True).stdout
