"""The volume of a data directory: made, shared, grown, left mounted by a crash, refused where it does not fit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from frozen_parts import publish_snapshot, publish_template
from reflinks import reflink_volume
from torpor.errors import Conflict, Failed, InvalidRequest, OutOfSpace
from torpor.kit.files import allocated_bytes, can_reflink
from torpor.kit.mounts import mount_at, unmount_below
from torpor.storage import loop, room
from torpor.storage.layout import Layout
from torpor.storage.snapshots import Snapshots
from torpor.storage.volume import VolumeConfig, ensure_room, mounted_layout, survey, use_volume

SMALL = VolumeConfig(limit_gib=1)
GROWING = VolumeConfig(limit_gib=3, first_gib=1)


def _why_no_mounts(folder: Path) -> str:
    if os.geteuid() != 0:
        return "only root can mount a volume"
    if can_reflink(folder):
        return "the file system of the tests has reflinks, so no volume is made"
    return loop.lacking(lambda name: subprocess.run(["which", name], capture_output=True, check=False).returncode == 0)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A data directory in which a volume can be made. Whatever a test leaves mounted is unmounted."""
    if why := _why_no_mounts(tmp_path):
        pytest.skip(why)
    yield tmp_path / "home"
    unmount_below(tmp_path)


def loops_of(home: Path) -> list[str]:
    """Return the loop devices on a data directory's volume."""
    argv = ["losetup", "--associated", str(home / "volume.xfs"), "--noheadings", "--output", "NAME"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def is_mounted(home: Path) -> bool:
    return mount_at(home / "volume") is not None


def test_a_data_directory_without_reflinks_gets_a_volume_that_has_them(home: Path) -> None:
    with use_volume(home, SMALL) as layout:
        assert layout.home == home
        assert layout.snapshots == home / "volume" / "snapshots"
        assert can_reflink(layout.snapshots)
        assert layout.data.stat().st_mode & 0o777 == 0o700
        assert (home / "volume.xfs").stat().st_mode & 0o777 == 0o600
        publish_snapshot(layout)
    assert not is_mounted(home)
    assert loops_of(home) == []
    with use_volume(home, SMALL) as layout:
        assert len(Snapshots(layout).all()) == 1


def test_it_is_sparse_and_what_is_deleted_in_it_is_free_below_it(home: Path) -> None:
    with use_volume(home, SMALL) as layout:
        empty = allocated_bytes(layout.volume_image)
        assert empty < layout.volume_image.stat().st_size // 4
        snapshot = publish_snapshot(layout)
        with (Snapshots(layout).path(snapshot.id) / "more").open("wb") as more:
            more.write(os.urandom(64 * room.MIB))
            os.fsync(more.fileno())
        assert allocated_bytes(layout.volume_image) > empty + 60 * room.MIB
        Snapshots(layout).remove(snapshot.id)
    # Unmounted, so that nothing is left to be given back later.
    assert allocated_bytes(home / "volume.xfs") < empty + 8 * room.MIB


def test_the_last_user_unmounts_it_whoever_that_is(home: Path) -> None:
    with ExitStack() as server, ExitStack() as bake:
        server.enter_context(use_volume(home, SMALL))
        bake.enter_context(use_volume(home, SMALL))
        assert len(loops_of(home)) == 1
        server.close()
        assert is_mounted(home)
    assert not is_mounted(home)
    assert loops_of(home) == []


def test_a_user_that_was_killed_leaves_it_mounted_and_the_next_one_uses_it_so(home: Path) -> None:
    script = (
        "import pathlib, sys; from torpor.storage.volume import VolumeConfig, use_volume\n"
        "with use_volume(pathlib.Path(sys.argv[1]), VolumeConfig(limit_gib=1)) as layout:\n"
        "    (layout.data / 'kept').write_text('kept'); print('ready', flush=True); sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", script, str(home)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        while (line := user.stdout.readline()) not in (b"ready\n", b""):
            pass
        assert line
        user.send_signal(signal.SIGKILL)
    assert is_mounted(home)
    with use_volume(home, SMALL) as layout:
        assert (layout.data / "kept").read_text() == "kept"
        assert len(loops_of(home)) == 1
    assert not is_mounted(home)


def test_a_crash_between_attaching_and_mounting_leaves_a_device_that_is_used(home: Path) -> None:
    with use_volume(home, SMALL):
        pass
    subprocess.run(["losetup", "--find", str(home / "volume.xfs")], check=True)
    with use_volume(home, SMALL):
        assert len(loops_of(home)) == 1
    assert loops_of(home) == []


def test_a_mount_namespace_that_still_has_it_does_no_harm(home: Path) -> None:
    # As another bake's programs have one: it holds what was mounted when it was made.
    argv = ["unshare", "--mount", "--", "sh", "-c", "echo ready; read line"]
    with ExitStack() as undo:
        with use_volume(home, SMALL) as layout:
            other = undo.enter_context(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert other.stdout is not None
            assert other.stdout.readline() == b"ready\n"
            (layout.data / "kept").write_text("kept")
        assert not is_mounted(home)
        assert len(loops_of(home)) == 1
        with use_volume(home, SMALL) as layout:
            assert len(loops_of(home)) == 1
            assert (layout.data / "kept").read_text() == "kept"
    assert loops_of(home) == []


def test_what_is_in_use_stays_mounted_and_is_no_error(home: Path) -> None:
    with use_volume(home, SMALL) as layout:
        open_file = (layout.data / "file").open("wb")
    with open_file:
        assert is_mounted(home)
    with use_volume(home, SMALL):
        pass
    assert not is_mounted(home)


def test_something_else_in_its_place_is_refused_and_left_alone(home: Path) -> None:
    with use_volume(home, SMALL):
        pass
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(home / "volume")], check=True)
    with pytest.raises(Conflict, match="something else") as caught, use_volume(home, SMALL):
        pass
    assert caught.value.hint == f"unmount it: umount {home / 'volume'}"
    assert is_mounted(home)


def test_an_image_that_replaced_the_mounted_one_is_not_taken_for_it(home: Path) -> None:
    with use_volume(home, SMALL):
        image = home / "volume.xfs"
        image.rename(home / "old")
        loop.make_image(image, 512 * room.MIB)
        with pytest.raises(Conflict, match="something else"):
            mounted_layout(home)


def test_a_damaged_image_is_refused_with_what_mends_it_and_is_left_as_it_is(home: Path) -> None:
    with use_volume(home, SMALL):
        pass
    with (home / "volume.xfs").open("r+b") as image:
        image.write(bytes(room.MIB))
    with pytest.raises(Failed, match="could not be mounted") as caught, use_volume(home, SMALL):
        pass
    assert "xfs_repair" in (caught.value.hint or "")
    assert (home / "volume.xfs").exists()
    assert loops_of(home) == []


def test_it_grows_while_it_is_in_use_up_to_its_limit(home: Path) -> None:
    with use_volume(home, GROWING) as layout:
        size = layout.volume_image.stat
        ensure_room(layout, 0)
        assert size().st_size == room.GIB
        ensure_room(layout, 900 * room.MIB)
        assert size().st_size == 2 * room.GIB
        assert room.free_and_total(layout.data)[1] > 1900 * room.MIB
        ensure_room(layout, 2000 * room.MIB)
        assert size().st_size == 3 * room.GIB
        with pytest.raises(OutOfSpace, match=r"the host's disk is full: \d+ of \d+ MiB are free at .*volume; 2900 MiB"):
            ensure_room(layout, 2900 * room.MIB)
    with use_volume(home, GROWING) as layout:
        assert layout.volume_image.stat().st_size == 3 * room.GIB


def test_a_growth_that_was_cut_short_is_finished_by_the_next_user(home: Path) -> None:
    with use_volume(home, GROWING):
        os.truncate(home / "volume.xfs", 2 * room.GIB)
    with use_volume(home, GROWING) as layout:
        assert room.free_and_total(layout.data)[1] > 1900 * room.MIB


def test_without_room_below_it_nothing_is_begun(home: Path) -> None:
    with use_volume(home, SMALL) as layout:
        free, _ = room.free_and_total(home)
        with pytest.raises(OutOfSpace, match=f"are free at {home}; "):
            ensure_room(layout, free)


def test_a_volume_that_is_switched_off_but_there_is_refused(home: Path) -> None:
    with use_volume(home, SMALL):
        pass
    with pytest.raises(InvalidRequest, match="TORPOR_VOLUME is off, but"), use_volume(home, VolumeConfig("off")):
        pass


def test_a_volume_that_cannot_be_mounted_at_all_is_done_without(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = home.with_name("bin")
    programs.mkdir()
    (programs / "mount").write_text("#!/bin/sh\necho unknown filesystem type xfs >&2; exit 32\n")
    (programs / "mount").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with use_volume(home, SMALL) as layout:
        assert layout == Layout(home)
        assert layout.snapshots.is_dir()
    assert not (home / "volume.xfs").exists()
    assert loops_of(home) == []


def test_what_was_frozen_before_there_was_a_volume_is_not_hidden_by_one(home: Path) -> None:
    with use_volume(home, VolumeConfig("off")) as layout:
        publish_template(layout)
    with use_volume(home, SMALL) as layout:
        assert layout == Layout(home)
    ground = survey(Layout(home), SMALL, lambda _: True, is_root=True)
    assert ground.kind == "plain"
    assert str(home / "templates" / "base") in ground.why


def test_a_template_that_an_older_version_baked_does_not_stand_in_the_way(home: Path) -> None:
    old = home / "templates" / "base"
    old.mkdir(parents=True)
    (old / "manifest.json").write_text('{"format": 1, "name": "base"}')
    assert survey(Layout(home), SMALL, lambda _: True, is_root=True).kind == "bare"


def test_where_files_share_blocks_already_no_volume_is_made(tmp_path: Path) -> None:
    with reflink_volume(tmp_path) as native, use_volume(native / "home") as layout:
        assert layout == Layout(native / "home")
        assert survey(layout, VolumeConfig(), lambda _: True, is_root=True).kind == "native"


@pytest.mark.parametrize(
    ("config", "is_root", "programs", "why"),
    [
        (VolumeConfig("off"), True, True, "TORPOR_VOLUME is off"),
        (VolumeConfig(), False, True, "only root can mount a volume"),
        (VolumeConfig(), True, False, "mkfs.xfs is not installed (package xfsprogs)"),
    ],
)
def test_why_there_is_no_volume_is_said(
    home: Path, config: VolumeConfig, is_root: bool, programs: bool, why: str
) -> None:
    home.mkdir()
    ground = survey(Layout(home), config, lambda _: programs, is_root=is_root)
    assert (ground.kind, ground.why) == ("plain", why)


def test_looking_mounts_nothing(home: Path) -> None:
    assert mounted_layout(home) == Layout(home)
    with use_volume(home, SMALL) as layout:
        seen = mounted_layout(home)
        assert seen is not None
        assert seen.data == layout.data
    assert mounted_layout(home) is None
    assert not is_mounted(home)


def test_without_a_volume_room_is_counted_where_the_data_is(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    ensure_room(layout, 0)
    free, _ = room.free_and_total(tmp_path)
    with pytest.raises(OutOfSpace, match="the host's disk is full"):
        ensure_room(layout, free)
