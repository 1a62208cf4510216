"""Volumes on a host with a fake VMM: whose file is where, each step failing in turn, and hosts that are killed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from frozen_rig import order
from host_rig import BASE, HostRig
from torpor.errors import NotFound, OutOfSpace, RestoreFailed, SandboxLost, TorporError, Unsupported
from torpor.host.flow.create import Source, create
from torpor.host.flow.delete import delete
from torpor.host.flow.hibernate import hibernate
from torpor.host.flow.rollback import Changes, rollback
from torpor.host.flow.snapshot import snapshot
from torpor.host.flow.wake import wake
from torpor.host.volume_notes import volume_file
from torpor.kit import faultpoints
from torpor.model.capacity import GIB, MIB, Limits
from torpor.model.ids import SandboxId, VolumeId, new_sandbox_id, new_volume_id
from torpor.model.snapshot import Kind
from torpor.model.volume import Attachment
from torpor.testing.fake_guest import FakeGuest
from torpor.vmm.fake import Dies

OLD, NEW = b"old", b"new"


class Scene:
    """A volume, and a sandbox that writes to it."""

    def __init__(self, rig: HostRig, volume: VolumeId) -> None:
        self.rig, self.volume, self.one = rig, volume, new_sandbox_id()

    def has(self, *, read_only: bool = False) -> tuple[Attachment, ...]:
        return (Attachment(self.volume, "data", "/data", 16, read_only),)

    async def create(self, *, read_only: bool = False) -> None:
        await create(self.rig.host, self.one, Source(template=BASE, volumes=self.has(read_only=read_only)))

    def mine(self, sandbox: SandboxId | None = None) -> Path:
        """The file that a sandbox's machine has."""
        return volume_file(self.rig.layout.sandboxes / (sandbox or self.one), 0)

    def kept(self) -> bytes:
        """What the volume begins with."""
        return begin_of(self.rig.host.volumes.path(self.volume))


def begin_of(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(3)


def write(file: Path, data: bytes) -> None:
    """Write as the guest does: in place."""
    with file.open("r+b") as opened:
        opened.write(data)


@pytest.fixture
async def scene(rig: HostRig) -> Scene:
    volume = new_volume_id()
    await rig.host.volumes.make(volume, 16)
    return Scene(rig, volume)


async def test_who_writes_has_the_file_itself_and_who_reads_a_copy(scene: Scene) -> None:
    await scene.create()
    assert scene.mine().samefile(scene.rig.host.volumes.path(scene.volume))
    assert scene.rig.driver.running[-1].bays[0] == scene.mine()
    assert [each.mounts for each in map(_guest, scene.rig.driver.running)] == [
        [{"op": "mount", "bay": 0, "path": "/data", "bytes": 16 * MIB, "read_only": False}]
    ]
    write(scene.mine(), NEW)
    await delete(scene.rig.host, scene.one)
    assert scene.kept() == NEW
    await scene.create(read_only=True)
    assert not scene.mine().samefile(scene.rig.host.volumes.path(scene.volume))
    write(scene.mine(), OLD)
    assert scene.kept() == NEW


def _guest(machine: object) -> FakeGuest:
    guest = machine.guest  # type: ignore[attr-defined]
    assert isinstance(guest, FakeGuest)
    return guest


async def test_a_guest_writes_back_before_it_is_deleted(scene: Scene) -> None:
    await scene.create()
    guest = _guest(scene.rig.driver.running[-1])
    await delete(scene.rig.host, scene.one)
    assert guest.frozen


@pytest.mark.parametrize("how", ["silent", "refuses"])
async def test_a_guest_that_does_not_write_back_is_deleted_all_the_same(
    scene: Scene, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.host.flow.delete.QUIESCE_S", -1.5)
    scene.rig.guests.append(
        FakeGuest(silent_quiesce=how == "silent", refuse_quiesce="no" if how == "refuses" else None)
    )
    await scene.create()
    await delete(scene.rig.host, scene.one)
    assert scene.rig.left == []
    assert [each.id for each in scene.rig.host.volumes.all()] == [scene.volume]


async def test_sleep_and_wake_keep_the_volume_and_a_failed_wake_changes_nothing_of_it(scene: Scene) -> None:
    await scene.create()
    write(scene.mine(), OLD)
    await hibernate(scene.rig.host, scene.one, order(Kind.HIBERNATION))
    assert (scene.kept(), scene.mine().exists()) == (OLD, False)
    scene.rig.driver.faults["resume"] = Dies()
    with pytest.raises(TorporError):
        await wake(scene.rig.host, scene.one)
    assert scene.kept() == OLD
    await wake(scene.rig.host, scene.one)
    assert scene.mine().samefile(scene.rig.host.volumes.path(scene.volume))
    assert begin_of(scene.mine()) == OLD


async def test_a_snapshot_has_a_copy_and_what_comes_from_it_too(scene: Scene) -> None:
    await scene.create()
    write(scene.mine(), OLD)
    taken = await snapshot(scene.rig.host, scene.one, order())
    write(scene.mine(), NEW)
    child = new_sandbox_id()
    incarnation = await create(scene.rig.host, child, Source(snapshot=taken.id))
    assert [each.is_copy for each in incarnation.volumes] == [True]
    assert (begin_of(scene.mine(child)), scene.kept()) == (OLD, NEW)
    write(scene.mine(child), b"own")
    again = await snapshot(scene.rig.host, child, order())
    assert scene.rig.host.snapshots.verify(again.id) > 2 * 16 * MIB
    assert begin_of(scene.rig.host.snapshots.path(again.id) / "volume0") == b"own"
    await delete(scene.rig.host, child)
    assert scene.kept() == NEW


async def test_a_damaged_copy_in_a_snapshot_is_found(scene: Scene) -> None:
    await scene.create()
    taken = await snapshot(scene.rig.host, scene.one, order())
    part = scene.rig.host.snapshots.path(taken.id) / "volume0"
    part.chmod(0o600)
    write(part, NEW)
    with pytest.raises(TorporError, match="volume0"):
        scene.rig.host.snapshots.verify(taken.id)
    with pytest.raises(TorporError, match="volume0"):
        await create(scene.rig.host, new_sandbox_id(), Source(snapshot=taken.id))


@pytest.mark.parametrize("sleeps", [False, True])
@pytest.mark.parametrize("own", [True, False])
async def test_a_rollback_brings_the_volume_back_where_it_is_the_sandbox_s_own(
    scene: Scene, own: bool, sleeps: bool
) -> None:
    await scene.create()
    write(scene.mine(), OLD)
    taken = await snapshot(scene.rig.host, scene.one, order())
    write(scene.mine(), NEW)
    if sleeps:
        await hibernate(scene.rig.host, scene.one, order(Kind.HIBERNATION))
    changes = Changes(volumes=frozenset({scene.volume} if own else ()))
    incarnation = await rollback(scene.rig.host, scene.one, taken.id, changes)
    assert begin_of(scene.mine()) == OLD
    assert scene.kept() == (OLD if own else NEW)
    assert [each.is_copy for each in incarnation.volumes] == [not own]


async def test_a_rollback_that_fails_leaves_the_volume_as_it_was(scene: Scene) -> None:
    await scene.create()
    write(scene.mine(), OLD)
    taken = await snapshot(scene.rig.host, scene.one, order())
    write(scene.mine(), NEW)
    scene.rig.guests.append(FakeGuest(refuse_adopt="no"))
    with pytest.raises(RestoreFailed):
        await rollback(scene.rig.host, scene.one, taken.id, Changes(volumes=frozenset({scene.volume})))
    assert (scene.kept(), scene.rig.state_of(scene.one)) == (NEW, "running")
    assert scene.mine().samefile(scene.rig.host.volumes.path(scene.volume))


@pytest.mark.parametrize("trouble", ["attach", "mount", "missing", "bays", "old"])
async def test_a_create_that_fails_leaves_nothing_but_the_volume(scene: Scene, trouble: str) -> None:
    volumes = scene.has()
    if trouble == "attach":
        scene.rig.driver.faults["attach"] = Dies()
    elif trouble == "mount":
        scene.rig.guests.append(FakeGuest(refuse_mount="it is no file system"))
    elif trouble == "missing":
        volumes = (Attachment(new_volume_id(), "gone", "/gone", 16),)
    elif trouble == "bays":
        volumes = tuple(Attachment(scene.volume, "data", f"/{number}", 16) for number in range(3))
    else:
        _forget_bays(scene.rig)
    expected = {"attach": SandboxLost, "mount": RestoreFailed, "missing": NotFound}.get(trouble, Unsupported)
    with pytest.raises(expected):
        await create(scene.rig.host, scene.one, Source(template=BASE, volumes=volumes))
    assert scene.rig.left == []
    assert [each.id for each in scene.rig.host.volumes.all()] == [scene.volume]


def _forget_bays(rig: HostRig) -> None:
    """Let the template be one that an older version baked."""
    manifest = rig.layout.templates / BASE / "manifest.json"
    said = json.loads(manifest.read_text())
    del said["record"]["bays"], said["checksum"]
    said["format"] = 2
    checksum = hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    manifest.chmod(0o600)
    manifest.write_text(json.dumps({**said, "checksum": checksum}))


async def test_volumes_and_copies_are_promised_room(rig: HostRig) -> None:
    rig.limits = Limits(disk_bytes=4 * GIB + 48 * MIB)
    await rig.recover()
    scene = Scene(rig, new_volume_id())
    with rig.host.admission.room_for_volume(16 * MIB):
        await rig.host.volumes.make(scene.volume, 16)
    with pytest.raises(OutOfSpace, match="4129 MiB more"), rig.host.admission.room_for_volume(4 * GIB + 33 * MIB):
        pass
    await scene.create()
    assert rig.host.admission.promised().disk_bytes == 4 * GIB + 16 * MIB
    await delete(rig.host, scene.one)
    await scene.create(read_only=True)
    assert rig.host.admission.promised().disk_bytes == 4 * GIB + 32 * MIB


@pytest.mark.parametrize("machines_die", [False, True])
async def test_the_next_host_agent_finds_volumes_where_they_are(scene: Scene, machines_die: bool) -> None:
    await scene.create()
    write(scene.mine(), NEW)
    draft = scene.rig.layout.named_volumes / ".draft-vol-0"
    draft.touch()
    again = await scene.rig.killed(machines_die=machines_die)
    assert not draft.exists()
    assert begin_of(again.host.volumes.path(scene.volume)) == NEW
    if not machines_die:
        incarnation = again.host.live.get(scene.one)
        assert incarnation.volumes == scene.has()
        await delete(again.host, scene.one)
        assert begin_of(again.host.volumes.path(scene.volume)) == NEW


@pytest.mark.parametrize("point", ["rollback.aside", "volume.placed", "rollback.replaced"])
async def test_a_rollback_that_is_cut_off_leaves_the_volume_as_the_sandbox_has_it(
    scene: Scene, tmp_path: Path, point: str
) -> None:
    await scene.create()
    write(scene.mine(), OLD)
    taken = await snapshot(scene.rig.host, scene.one, order())
    write(scene.mine(), NEW)
    images: list[HostRig] = []

    def cut(reached: str) -> None:
        if reached == point:
            images.append(scene.rig.image(tmp_path / "image"))

    faultpoints.watch(cut)
    await rollback(scene.rig.host, scene.one, taken.id, Changes(volumes=frozenset({scene.volume})))
    faultpoints.watch(None)
    (image,) = images
    await image.recover()
    assert image.state_of(scene.one) == "running"
    mine = volume_file(image.layout.sandboxes / scene.one, 0)
    assert mine.samefile(image.host.volumes.path(scene.volume))
    assert begin_of(mine) in (OLD, NEW)
    for incarnation in image.host.live.all():
        await incarnation.aclose()
