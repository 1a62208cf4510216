"""What a guest that breaks out of QEMU would find, read from the VMM's /proc while a real guest runs in it."""

from __future__ import annotations

import os
import stat
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from guests import machines_of, open_files, read
from running_server import RunningServer
from torpor import Sandbox
from torpor.errors import OutcomeUnknown, SandboxLost
from torpor.host.containment import ContainmentConfig
from torpor.kit.cgroups import Group, group_of
from torpor.model.capacity import OVERHEAD_BYTES
from torpor.vmm.qemu.jail import USERS

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives machines users of their own")

BASE = ContainmentConfig().uid_base
# What every VMM sees, beside the libraries and the firmware below /usr.
ROOT = {"dev", "lib", "lib64", "memory", "usr"}
NAMESPACES = ("mnt", "pid", "ipc", "uts", "net")
MEMORY_LIMITS = ("memory.limit_in_bytes", "memory.max")
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def machine_of(sandbox: Sandbox) -> int:
    (pid,) = machines_of(sandbox)
    return pid


@pytest.fixture
def vmm(sandbox: Sandbox) -> int:
    return machine_of(sandbox)


def status_of(pid: int) -> dict[str, str]:
    lines = read(f"/proc/{pid}/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_it_is_a_user_of_its_own_in_no_group_but_that_of_all_machines(vmm: int) -> None:
    status = status_of(vmm)
    (user,) = set(status["Uid"].split())
    assert BASE < int(user) <= BASE + USERS
    assert set(status["Gid"].split()) == {user}
    assert status["Groups"].split() == [str(BASE)]


def test_it_has_no_right_and_gains_none(vmm: int) -> None:
    status = status_of(vmm)
    assert {name: int(status[name], 16) for name in CAPABILITIES} == dict.fromkeys(CAPABILITIES, 0)
    assert status["NoNewPrivs"] == "1"


def test_it_can_call_only_what_its_filter_lets_through(vmm: int) -> None:
    assert status_of(vmm)["Seccomp"] == "2"
    threads = [read(f"/proc/{vmm}/task/{thread}/status") for thread in os.listdir(f"/proc/{vmm}/task")]
    assert {"Seccomp:\t2\n" in status for status in threads} == {True}


def test_it_leaves_no_dump_of_a_guest_s_memory_and_has_few_files(vmm: int) -> None:
    limits = {line[:26].strip(): line[26:].split()[:2] for line in read(f"/proc/{vmm}/limits").splitlines()}
    assert limits["Max core file size"] == ["0", "0"]
    assert limits["Max open files"] == ["1024", "1024"]
    assert limits["Max processes"] == ["512", "512"]


def test_it_shares_nothing_the_kernel_tells_apart_with_the_server_or_another_sandbox(
    vmm: int, server: RunningServer, fresh_sandbox: Sandbox
) -> None:
    for other in (server.process.pid, machine_of(fresh_sandbox)):
        for name in NAMESPACES:
            assert os.readlink(f"/proc/{vmm}/ns/{name}") != os.readlink(f"/proc/{other}/ns/{name}"), name
    assert status_of(vmm)["NSpid"].split()[1:] == ["1"]  # so it is the first in there, and nobody else is


def test_it_sees_its_program_its_memory_image_and_nothing_else(vmm: int) -> None:
    root = Path(f"/proc/{vmm}/root")
    assert set(os.listdir(root)) == ROOT
    assert os.listdir(root / "dev") == ["null"]
    assert set(os.listdir(root / "usr")) == {"bin", "lib", "lib64", "share"}
    assert set(os.listdir(root / "usr/bin")) == {"qemu-system-x86_64", "setpriv"}
    files = [path for path in (root / "usr").rglob("*") if path.is_file()]
    others = {path.name for path in files if ".so" not in path.name and path.parent.name != "bin"}
    assert others == {"bios-microvm.bin", "linuxboot_dma.bin"}
    assert not [path for path in files if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)]


def test_all_of_that_is_mounted_to_be_read_only(vmm: int) -> None:
    mounts = [line.split() for line in read(f"/proc/{vmm}/mountinfo").splitlines()]
    options = {fields[4]: set(fields[5].split(",")) for fields in mounts}
    assert set(options) == {"/", "/usr", "/dev/null", "/memory"}
    assert all("ro" in options[place] for place in ("/", "/usr", "/memory"))
    assert all({"nosuid"} <= each for each in options.values())


def test_it_has_no_way_out_but_what_it_was_given(vmm: int, sandbox: Sandbox) -> None:
    interfaces = [line.split(":")[0].strip() for line in read(f"/proc/{vmm}/net/dev").splitlines()[2:]]
    assert interfaces == ["lo"]
    named = [name for name in open_files(vmm) if name.startswith("/") and name not in ("/dev/null", "/memory")]
    own = [name for name in named if f"/{sandbox.id}/" in name]
    others = [name for name in named if name not in own and name != "/dev/net/tun"]
    assert {Path(name).name for name in own} == {"disk.qcow2", "vmm.fifo"}
    assert {Path(name).name for name in others} == {"root.img", "runtime.img"}
    assert not [name for name in named if Path(name).is_dir()]  # from a folder one could climb to all others


def test_what_it_did_not_get_for_writing_it_cannot_write(vmm: int) -> None:
    for number in os.listdir(f"/proc/{vmm}/fd"):
        if Path(os.readlink(f"/proc/{vmm}/fd/{number}")).name in ("root.img", "runtime.img", "memory"):
            flags = int(read(f"/proc/{vmm}/fdinfo/{number}").split("flags:")[1].split()[0], 8)
            assert flags & os.O_ACCMODE == os.O_RDONLY


def test_it_was_told_nothing_of_the_server_s_environment(vmm: int) -> None:
    environment = Path(f"/proc/{vmm}/environ").read_bytes().split(b"\0")
    assert {word.partition(b"=")[0] for word in environment if word} <= {b"PWD"}


def test_it_is_held_to_its_share_of_the_host(vmm: int, sandbox: Sandbox) -> None:
    group = group_of(vmm)
    if group is None:
        pytest.skip("this host lets nobody make control groups")
    guest = sandbox.info.memory_mb << 20
    assert guest + OVERHEAD_BYTES <= limit_of(group, *MEMORY_LIMITS) <= guest + guest // 8 + OVERHEAD_BYTES
    assert limit_of(group, "pids.max") == 512
    assert limit_of(group, "cpu.cfs_quota_us", "cpu.max") == (2 * sandbox.info.cpu + 1) * 50_000


def limit_of(group: Group, *names: str) -> int:
    """Return the first number in the one file of a group that has one of these names."""
    (file,) = [folder / name for folder in group.folders for name in names if (folder / name).exists()]
    return int(file.read_text().split()[0])


def test_no_other_user_of_this_host_reads_a_file_of_the_data_directory(sandbox: Sandbox, server: RunningServer) -> None:
    files = [path for path in server.home.rglob("*") if "jail" not in path.relative_to(server.home).parts]
    assert any(path.name == "memory" for path in files)
    open_to_others = [path for path in files if not path.is_symlink() and path.stat().st_mode & 0o007]
    assert open_to_others == []
    shared = {path.name for path in files if path.is_file() and path.stat().st_mode & 0o070}
    assert shared <= {"memory", "vmlinuz", "initrd"}
    assert all(path.stat().st_gid in (0, BASE) for path in files if not path.is_symlink())
    memory = next(path for path in files if path.name == "memory")
    disk = next(path for path in files if path.parts[-2:] == (sandbox.id, "disk.qcow2"))
    for user in (12345, BASE + 1):
        for path in (memory, disk):
            words = ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups", "cat", str(path)]
            assert subprocess.run(words, capture_output=True, check=False).returncode != 0


def test_a_sandbox_whose_machine_needs_more_memory_than_it_may_have_fails_and_says_so(
    fresh_sandbox: Sandbox, sandbox: Sandbox
) -> None:
    group = group_of(machine_of(fresh_sandbox))
    if group is None:
        pytest.skip("this host lets nobody make control groups")
    limits = [folder / name for folder in group.folders for name in MEMORY_LIMITS if (folder / name).exists()]
    for mebibytes in range(200, 20, -5):
        with suppress(OSError):  # the kernel could not take so much back, and keeps the limit before
            limits[0].write_text(f"{mebibytes << 20}\n")
    with pytest.raises((SandboxLost, OutcomeUnknown)):
        fresh_sandbox.exec("head -c 100M /dev/zero >/dev/shm/much; sleep 600")
    with pytest.raises(SandboxLost):
        fresh_sandbox.exec("true")
    info = fresh_sandbox.refresh()
    assert info.state == "failed"
    assert "needed more memory than its machine may have" in str(info.reason)
    assert sandbox.exec("echo lives").stdout == "lives\n"
