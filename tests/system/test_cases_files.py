"""Files: modes and owners, large ones in bounded memory, full disks, replacement in one step."""

from __future__ import annotations

import filecmp
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from running_server import RunningServer
from torpor import Client, Sandbox
from torpor.errors import Forbidden, InvalidRequest, NotFound, OutOfSpace, TorporError

MIB = 1024 * 1024
TRANSFER_MIB = int(os.environ.get("TORPOR_TEST_TRANSFER_MIB", "256"))
GROWTH_ALLOWED = 64 * MIB


@pytest.fixture(scope="module")
def with_worker(client: Client) -> Iterator[Sandbox]:
    """A sandbox with an ordinary user `worker`."""
    with Sandbox.create(client=client, ttl_seconds=1800) as sandbox:
        sandbox.exec("useradd --create-home --shell /bin/bash worker", check=True)
        yield sandbox


def test_a_written_file_has_the_mode_and_the_owner_that_were_asked_for(with_worker: Sandbox) -> None:
    with_worker.filesystem.write("/home/worker/new/deep/file", b"x", mode=0o640, user="worker")
    entry = with_worker.filesystem.stat("/home/worker/new/deep/file")
    assert (entry.mode, entry.user, entry.size) == (0o640, "worker", 1)
    assert with_worker.filesystem.stat("/home/worker/new").user == "worker"
    assert with_worker.exec("stat -c '%a %U' /home/worker/new/deep/file").stdout == "640 worker\n"


def test_a_user_may_not_write_where_it_may_not(with_worker: Sandbox) -> None:
    for path in ("/root/x", "/etc/x"):
        with pytest.raises(Forbidden):
            with_worker.filesystem.write(path, b"x", user="worker")
        assert not with_worker.filesystem.exists(path)


def test_missing_relative_and_wrong_kinds_of_paths_are_typed_errors(sandbox: Sandbox) -> None:
    files = sandbox.filesystem
    with pytest.raises(NotFound):
        files.read("/tmp/not-there")
    with pytest.raises(InvalidRequest):
        files.read("relative")
    with pytest.raises(InvalidRequest):
        files.read("/tmp")
    with pytest.raises(InvalidRequest):
        files.list("/etc/hostname" if files.exists("/etc/hostname") else "/etc/passwd")
    with pytest.raises(InvalidRequest):
        files.write("/tmp", b"x")


def peak_memory(process: int) -> int:
    """Return the most memory a process has had resident since it was last reset, in bytes."""
    found = re.search(r"^VmHWM:\s*(\d+) kB", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def peak_memory_of_the_guest_agent(sandbox: Sandbox) -> int:
    return int(sandbox.exec("grep VmHWM /proc/1/status", check=True).stdout.split()[1]) * 1024


TRANSFER = """
import resource, sys
from torpor import Client, Sandbox
url, key, sandbox, action, local = sys.argv[1:]
with Client(url, key) as client:
    files = Sandbox.connect(sandbox, client=client).filesystem
    files.write("/tmp/warm", b"x")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    files.upload(local, "/tmp/large") if action == "upload" else files.download("/tmp/large", local)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def transfer(server: RunningServer, sandbox: Sandbox, action: str, local: Path) -> int:
    """Move the large file by a client process of its own and return by how many bytes that grew."""
    argv = [sys.executable, "-c", TRANSFER, server.url, server.key, sandbox.id, action, str(local)]
    return int(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


def test_a_large_file_goes_up_and_down_exact_and_no_process_grows_with_it(
    server: RunningServer, fresh_sandbox: Sandbox, tmp_path: Path
) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    with source.open("wb") as file:
        for _ in range(TRANSFER_MIB):
            file.write(os.urandom(MIB))
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # lets the peak begin at what is resident now
    server_before = peak_memory(server.process.pid)
    agent_before = peak_memory_of_the_guest_agent(fresh_sandbox)
    growth = {
        "client, upload": transfer(server, fresh_sandbox, "upload", source),
        "client, download": transfer(server, fresh_sandbox, "download", back),
        "server": peak_memory(server.process.pid) - server_before,
        "guest agent": peak_memory_of_the_guest_agent(fresh_sandbox) - agent_before,
    }
    assert filecmp.cmp(source, back, shallow=False)
    assert {who: by for who, by in growth.items() if by >= GROWTH_ALLOWED} == {}


def test_a_guest_that_fills_its_disk_is_told_so_and_nobody_else_notices(
    server: RunningServer, fresh_sandbox: Sandbox, sandbox: Sandbox
) -> None:
    most = "fallocate -l $(($(df --output=avail -B1 / | tail -1) - 67108864)) /tmp/most"
    fill = f"{most} && dd if=/dev/zero of=/tmp/rest bs=1M"
    result = fresh_sandbox.exec(fill, timeout_seconds=120)
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    with pytest.raises(OutOfSpace):
        fresh_sandbox.filesystem.write("/tmp/more", bytes(MIB))
    assert not fresh_sandbox.filesystem.exists("/tmp/more")

    folder = server.home / "sandboxes" / fresh_sandbox.id
    used = sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))
    assert used < fresh_sandbox.info.disk_gb * 1024 * MIB
    assert sandbox.exec("echo alive").stdout == "alive\n"
    fresh_sandbox.exec("rm /tmp/most /tmp/rest", check=True)
    assert fresh_sandbox.filesystem.write("/tmp/more", bytes(MIB)) == MIB


def test_a_command_in_a_folder_that_was_deleted_is_a_typed_error(sandbox: Sandbox) -> None:
    sandbox.exec("mkdir /tmp/gone", check=True)
    sandbox.exec("true", cwd="/tmp/gone", check=True)
    sandbox.exec("rmdir /tmp/gone", check=True)
    with pytest.raises(TorporError, match="/tmp/gone") as caught:
        sandbox.exec("true", cwd="/tmp/gone")
    assert caught.value.code in ("invalid_request", "not_found")


def test_a_reader_sees_one_upload_or_the_other_and_never_a_part(sandbox: Sandbox) -> None:
    path, size = "/tmp/contended", 700_001
    letters = (b"a", b"b")
    sandbox.filesystem.write(path, letters[0] * size)

    def write(letter: bytes) -> None:
        for _ in range(15):
            sandbox.filesystem.write(path, letter * size)

    seen = set()
    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, letter) for letter in letters]
        while not all(writer.done() for writer in writers):
            data = sandbox.filesystem.read(path)
            assert len(data) == size
            assert data in (letters[0] * size, letters[1] * size), "a mixture of two uploads was read"
            seen.add(data[:1])
        for writer in writers:
            writer.result()
    assert seen
    litter = [entry.name for entry in sandbox.filesystem.list("/tmp") if "contended" in entry.name]
    assert litter == ["contended"]


def test_files_are_listed_walked_renamed_appended_and_removed(fresh_sandbox: Sandbox) -> None:
    files = fresh_sandbox.filesystem
    files.write("/tree/b/two", "2")
    files.write("/tree/a", "1")
    files.append("/tree/a", "11")
    assert files.read_text("/tree/a") == "111"
    assert [(entry.name, entry.is_dir) for entry in files.list("/tree")] == [("a", False), ("b", True)]
    assert [entry.path for entry in files.walk("/tree")] == ["/tree/a", "/tree/b", "/tree/b/two"]
    files.rename("/tree/a", "/tree/b/two")
    assert files.read_text("/tree/b/two") == "111"
    with pytest.raises(TorporError):
        files.remove("/tree")
    files.remove("/tree", recursive=True)
    assert not files.exists("/tree")
