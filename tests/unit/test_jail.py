"""The jail's command line, the files that are gathered for it, and whose they are."""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from torpor.errors import Unsupported
from torpor.kit.proc import ProgramFailed, run
from torpor.vmm.driver import Disk, Hardware
from torpor.vmm.qemu.argv import kvm, tcg
from torpor.vmm.qemu.files import Files
from torpor.vmm.qemu.jail import USERS, Bound, Cell, Jail, build, within
from torpor.vmm.qemu.tree import gather, keep_only

BASE = 1_700_000_000
JAIL = Jail(Path("/data/jail/0123"), BASE)
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def words(jail: Jail = JAIL, cell: Cell | None = None) -> list[str]:
    cell = cell or Cell(BASE + 7, (), lasting=True)
    return jail.argv(cell, ["/usr/bin/qemu", "-S"], told=8, held=9)


def options(argv: list[str], name: str) -> list[str]:
    return [value for word, value in pairwise(argv) if word == name]


def test_a_machine_has_its_own_of_everything_the_kernel_tells_apart() -> None:
    before = words()[: words().index("--")]
    assert {f"--unshare-{each}" for each in ("pid", "ipc", "uts", "net")} <= set(before)
    assert "--unshare-user" not in before
    assert "--clearenv" in before
    assert options(before, "--ro-bind") == ["/data/jail/0123"]
    assert options(before, "--remount-ro") == ["/"]
    assert not {"--bind", "--proc", "--dev", "--tmpfs", "--share-net"} & set(before)


def test_it_becomes_its_user_and_gives_every_right_away_before_it_begins() -> None:
    argv = words()
    assert options(argv, "--cap-drop") == ["ALL"]
    assert options(argv, "--cap-add") == ["CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"]
    entry = argv[argv.index("--") + 1 :]
    assert entry[0] == "/usr/bin/setpriv"
    assert [options(entry, name)[0] for name in ("--reuid", "--regid", "--groups")] == [
        str(BASE + 7),
        str(BASE + 7),
        str(BASE),
    ]
    assert {"--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"} <= set(entry)
    assert entry[-2:] == ["/usr/bin/qemu", "-S"]


def test_who_is_not_root_makes_users_of_its_own_and_needs_no_right_at_all() -> None:
    argv = words(Jail(Path("/data/jail/0123"), None), Cell(None, (), lasting=True))
    assert "--unshare-user" in argv
    assert options(argv, "--cap-add") == []
    assert argv[argv.index("--") + 1 :] == ["/usr/bin/qemu", "-S"]


def test_only_what_lasts_outlives_its_guard() -> None:
    assert "--die-with-parent" not in words()
    assert "--as-pid-1" in words()
    assert "--die-with-parent" in words(cell=Cell(BASE + 7, (), lasting=False))


def test_what_it_sees_is_shown_by_descriptor_and_mostly_to_be_read() -> None:
    files = (Bound(5, Path("/memory")), Bound(6, Path("/new"), writable=True))
    argv = words(cell=Cell(BASE + 7, files, lasting=True))
    assert argv[argv.index("--ro-bind-fd") :][:3] == ["--ro-bind-fd", "5", "/memory"]
    assert argv[argv.index("--bind-fd") :][:3] == ["--bind-fd", "6", "/new"]


def test_each_machine_gets_a_user_that_nobody_is() -> None:
    users = {JAIL.user() for _ in range(50)}
    assert len(users) > 45
    assert all(user is not None and BASE < user <= BASE + USERS for user in users)
    assert os.getuid() not in users
    assert Jail(Path("/data"), None).user() is None


@AS_ROOT
def test_a_file_that_machines_share_is_theirs_to_read_and_nobody_else_s(tmp_path: Path) -> None:
    (tmp_path / "memory").write_bytes(b"secret")
    (tmp_path / "memory").chmod(0o400)
    modified = (tmp_path / "memory").stat().st_mtime_ns
    with (tmp_path / "memory").open("rb") as file:
        JAIL.share(file.fileno())
        JAIL.share(file.fileno())
    status = (tmp_path / "memory").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, BASE, 0o440)
    assert status.st_mtime_ns == modified  # by which a snapshot knows that it was not touched


def hardware(folder: Path) -> Hardware:
    for name in ("root", "runtime", "overlay", "kernel", "initrd"):
        (folder / name).write_text(name)
    disks = (Disk(folder / "root", folder / "overlay"), Disk(folder / "runtime"))
    return Hardware(1, 256, folder / "kernel", folder / "initrd", "quiet", disks)


@AS_ROOT
def test_a_machine_gets_its_disks_opened_and_only_its_own_for_writing(tmp_path: Path) -> None:
    with ExitStack() as closing:
        files = Files(JAIL, BASE + 7, closing)
        seen = files.hardware(hardware(tmp_path), loading=True)
        assert [(disk.image, disk.overlay) for disk in seen.disks] == [
            (Path("/dev/fdset/2"), Path("/dev/fdset/1")),
            (Path("/dev/fdset/3"), None),
        ]
        opened = {os.readlink(f"/proc/self/fd/{number}"): number for number in files.passed}
        assert set(opened) == {str(tmp_path / name) for name in ("root", "runtime", "overlay")}
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(opened[str(tmp_path / "root")], b"x")
        assert files.words[:2] == ["-add-fd", f"fd={opened[str(tmp_path / 'overlay')]},set=1"]
        assert files.bound == []
    assert (tmp_path / "overlay").stat().st_uid == 0


@AS_ROOT
def test_a_machine_that_is_booted_sees_its_kernel_and_owns_its_memory_until_it_has_opened_it(tmp_path: Path) -> None:
    with ExitStack() as closing:
        files = Files(JAIL, BASE + 7, closing)
        seen = files.hardware(hardware(tmp_path), loading=False)
        assert (seen.kernel, seen.initrd) == (Path("/kernel"), Path("/initrd"))
        assert files.lent(tmp_path / "memory", "memory") == Path("/memory")
        assert (tmp_path / "memory").stat().st_uid == BASE + 7
        assert [each.name for each in files.bound if each.writable] == [Path("/memory")]
    status = (tmp_path / "memory").stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o600)


def test_without_a_jail_files_have_their_own_names_and_disks_are_opened_all_the_same(tmp_path: Path) -> None:
    with ExitStack() as closing:
        files = Files(None, None, closing)
        seen = files.hardware(hardware(tmp_path), loading=False)
        assert (seen.kernel, seen.disks[1].image) == (tmp_path / "kernel", Path("/dev/fdset/3"))
        assert files.lent(tmp_path / "memory", "memory") == tmp_path / "memory"


def test_the_processor_s_device_is_opened_for_it_too(tmp_path: Path) -> None:
    with ExitStack() as closing:
        files = Files(JAIL, BASE + 7, closing)
        assert files.accelerator(tcg(1)) == tcg(1)
        if Path("/dev/kvm").exists() and os.access("/dev/kvm", os.R_OK | os.W_OK):
            assert files.accelerator(kvm()).option == "kvm,device=/dev/fdset/1"


async def test_what_a_program_needs_is_gathered_once_and_runs_from_there(tmp_path: Path) -> None:
    tree = await gather("sleep", tmp_path / "jail")
    assert {entry.name for entry in (tree / "bin").iterdir()} == {"sleep", "setpriv"}
    assert any(entry.name.startswith("libc.so") for entry in tree.rglob("*"))
    assert any(entry.name == "bios-microvm.bin" for entry in tree.rglob("*"))
    assert all(entry.stat().st_mode & 0o555 == 0o555 for entry in tree.rglob("*") if entry.is_dir())
    made = tree.stat().st_ino
    assert await gather("sleep", tmp_path / "jail") == tree
    assert tree.stat().st_ino == made
    other = await gather("cat", tmp_path / "jail")
    assert set((tmp_path / "jail").iterdir()) == {tree, other}
    keep_only(other)
    assert list((tmp_path / "jail").iterdir()) == [other]


async def test_what_is_gathered_are_copies_so_that_nobody_changes_the_system_s_files_by_them(tmp_path: Path) -> None:
    tree = await gather("sleep", tmp_path / "jail")
    assert {entry.stat().st_nlink for entry in tree.rglob("*") if entry.is_file()} == {1}


async def test_a_program_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="no-such-program is not installed"):
        await gather("no-such-program", tmp_path)


@AS_ROOT
async def test_root_without_bubblewrap_is_told_and_gets_no_machine_without_a_jail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("ldd", "setpriv", "sleep", "bash"):
        (tmp_path / "bin" / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(Unsupported, match="bwrap is not installed") as caught:
        await build("sleep", tmp_path / "jail", BASE)
    assert "bubblewrap" in str(caught.value.hint)
    assert "TORPOR_JAIL=off" in str(caught.value.hint)


@AS_ROOT
async def test_in_its_cell_a_program_is_nobody_and_sees_nothing(tmp_path: Path) -> None:
    walls = await build("ls", tmp_path / "jail", BASE)
    assert walls.jail is not None
    user = walls.jail.user()
    argv = walls.jail.argv(Cell(user, (), lasting=True), [within("ls"), "/", "/usr", "/dev"], told=2, held=0)
    said = await run(argv)
    assert said.rpartition("}\n")[2].split("\n\n") == [
        "/:\ndev\nlib\nlib64\nusr",
        "/dev:\nnull",
        "/usr:\nbin\nlib\nlib64\nshare\n",
    ]


AS_SOMEBODY = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups", "--"]


@AS_ROOT
async def test_who_is_not_root_has_the_same_cell_without_any_right(tmp_path: Path) -> None:
    try:
        await run([*AS_SOMEBODY, "unshare", "--user", "--map-root-user", "true"])
    except ProgramFailed:
        pytest.skip("only root may make user namespaces here")
    jail = Jail(Path("/usr"), None)  # which everybody may read
    said = await run([*AS_SOMEBODY, *jail.argv(Cell(None, (), True), ["/usr/bin/setpriv", "--dump"], told=2, held=0)])
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in said.splitlines())}
    assert (told["uid"], told["no_new_privs"]) == ("12345", "1")
    names = ("Inheritable capabilities", "Ambient capabilities", "Capability bounding set")
    assert {told[name] for name in names} == {"[none]"}
