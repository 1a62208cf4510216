"""Checkpoints, forks and rollbacks of real guests: complete, apart from each other, and never half good."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from disk_check import faults_of_disk
from guests import clock_error_s, machines_of, random_of
from running_server import RunningServer
from torpor import Client, Sandbox, Snapshot
from torpor.errors import Conflict, NotFound, OutcomeUnknown, RestoreFailed, SandboxLost, SnapshotCorrupt, Unsupported
from torpor.model.snapshot import Snapshot as TakenSnapshot
from torpor.storage.frozen import DISK, MEMORY, STATE
from torpor.storage.manifest import parse_manifest, print_manifest
from wheels import a_wheel, pip_as_zip


@contextmanager
def deleted_after(*things: Sandbox | Snapshot) -> Iterator[None]:
    try:
        yield
    finally:
        for thing in things:
            thing.delete()


def at_once(work: Callable[[Sandbox], str], sandboxes: Sequence[Sandbox]) -> list[str]:
    """Ask several sandboxes side by side."""
    with ThreadPoolExecutor(len(sandboxes)) as pool:
        return list(pool.map(work, sandboxes))


def test_clocks_are_right_after_a_restore_and_a_fork(client: Client, fresh_sandbox: Sandbox) -> None:
    checkpoint = fresh_sandbox.snapshot()
    time.sleep(4)  # what is tested is that this time has passed for the guest too
    restored = Sandbox.restore(checkpoint, client=client)
    child = fresh_sandbox.fork()
    with deleted_after(restored, child, checkpoint):
        for sandbox in (restored, child, fresh_sandbox):
            assert abs(clock_error_s(sandbox)) <= 1


def test_eight_forks_draw_different_random_numbers_and_have_names_of_their_own(fresh_sandbox: Sandbox) -> None:
    children = fresh_sandbox.fork(8)
    with deleted_after(*children):
        drawn = "\n".join(at_once(random_of, [*children, fresh_sandbox])).split("\n")
        lines = [line for line in drawn if line]
        assert len(lines) == len(set(lines)) == 18
        names = at_once(lambda each: each.exec("hostname; cat /etc/machine-id").stdout, children)
        assert len({line for name in names for line in name.split()}) == 16
        assert [name.split()[0] for name in names] == [child.id for child in children]
        assert {child.info.parent_id for child in children} == {fresh_sandbox.id}


def test_a_snapshot_restored_twice_gives_two_sandboxes_that_draw_differently(
    client: Client, fresh_sandbox: Sandbox
) -> None:
    checkpoint = fresh_sandbox.snapshot(name="ready")
    twins = [Sandbox.restore(checkpoint.id, client=client), Sandbox.restore(checkpoint, client=client)]
    with deleted_after(*twins, checkpoint):
        assert len({random_of(each) for each in twins}) == 2
        assert {each.info.from_snapshot for each in twins} == {checkpoint.id}
        assert str(checkpoint) == checkpoint.id


def test_a_guest_that_cannot_take_its_identity_makes_no_child(client: Client, fresh_sandbox: Sandbox) -> None:
    # The agent's own limit on files is taken away, so it cannot write who it is, as it could not reseed.
    fresh_sandbox.exec("prlimit --pid 1 --fsize=0", check=True)
    before = {each.id for each in Sandbox.iterate(client=client)}
    with pytest.raises(RestoreFailed, match="identity"):
        fresh_sandbox.fork(2)
    fresh_sandbox.exec("prlimit --pid 1 --fsize=unlimited", check=True)
    assert {each.id for each in Sandbox.iterate(client=client)} == before
    assert fresh_sandbox.exec("echo here").stdout == "here\n"
    child = fresh_sandbox.fork()
    with deleted_after(child):
        assert child.exec("echo here").stdout == "here\n"


def test_a_package_installed_right_before_a_fork_and_a_snapshot_is_in_all_of_them(
    client: Client, fresh_sandbox: Sandbox, tmp_path: Path
) -> None:
    fresh_sandbox.filesystem.upload(pip_as_zip(tmp_path), "/root/pip.zip")
    wheel = a_wheel(tmp_path, files=200)
    fresh_sandbox.filesystem.upload(wheel, f"/root/{wheel.name}")
    install = f"python3 -m pip install --quiet --no-index --break-system-packages /root/{wheel.name}"
    fresh_sandbox.exec(f"PYTHONPATH=/root/pip.zip {install}", check=True, timeout_seconds=600)
    with ThreadPoolExecutor(2) as pool:
        taking, forking = pool.submit(fresh_sandbox.snapshot), pool.submit(fresh_sandbox.fork, 2)
    checkpoint, children = taking.result(), forking.result()
    children.append(Sandbox.restore(checkpoint, client=client))
    count = "python3 -c 'import many; print(sum(len(many.text(number)) for number in range(200)))'"
    with deleted_after(*children, checkpoint):
        expected = fresh_sandbox.exec(count, check=True).stdout
        assert at_once(lambda each: each.exec(count, check=True).stdout, children) == [expected] * 3


def test_forks_write_to_the_same_place_each_on_its_own_disk(
    server: RunningServer, client: Client, fresh_sandbox: Sandbox, tmp_path: Path
) -> None:
    fresh_sandbox.exec("head -c 5000000 /dev/urandom > /root/data && sync", check=True)
    digest = "sync; echo 3 > /proc/sys/vm/drop_caches; sha256sum < /root/data"
    before = fresh_sandbox.exec(digest).stdout
    children = fresh_sandbox.fork(4)
    write = "head -c 5000000 /dev/urandom > /root/data; sha256sum < /root/data"
    with deleted_after(*children):
        written = at_once(lambda each: each.exec(write).stdout, children)
        assert len({*written, before}) == 5
        assert at_once(lambda each: each.exec(digest).stdout, children) == written
        assert fresh_sandbox.exec(digest).stdout == before
        checkpoints = [after_sync(each) for each in (children[0], fresh_sandbox)]
        with deleted_after(*checkpoints):
            for checkpoint in checkpoints:
                assert faults_of_disk(server.data / "snapshots" / checkpoint.id, server.home, tmp_path) == ""


def after_sync(sandbox: Sandbox) -> Snapshot:
    sandbox.exec("sync", check=True)
    return sandbox.snapshot()


def test_files_and_disk_are_whole_after_a_wake(server: RunningServer, fresh_sandbox: Sandbox, tmp_path: Path) -> None:
    read_all = "find /etc /root -xdev -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum"
    fresh_sandbox.exec("cp -r /usr/lib/python3.11 /root/copy", check=True, timeout_seconds=400)
    before = fresh_sandbox.exec(read_all, check=True, timeout_seconds=400).stdout
    fresh_sandbox.hibernate()
    fresh_sandbox.wake()
    fresh_sandbox.exec("echo 3 > /proc/sys/vm/drop_caches", check=True)
    assert fresh_sandbox.exec(read_all, check=True, timeout_seconds=400).stdout == before
    checkpoint = after_sync(fresh_sandbox)
    with deleted_after(checkpoint):
        assert faults_of_disk(server.data / "snapshots" / checkpoint.id, server.home, tmp_path) == ""


def test_a_sandbox_is_snapshotted_as_soon_as_it_is_made_and_restored(client: Client) -> None:
    with Sandbox.create(client=client, ttl_seconds=600) as sandbox:
        checkpoint = sandbox.snapshot()
        with deleted_after(checkpoint), Sandbox.restore(checkpoint, client=client) as restored:
            assert restored.exec("echo here").stdout == "here\n"


def test_a_full_disk_is_told_of_before_anything_is_called_done_and_is_as_full_in_a_snapshot(
    client: Client, fresh_sandbox: Sandbox
) -> None:
    reserve = "n=0; while fallocate -l 64M /root/reserved$n 2>/dev/null; do n=$((n+1)); done"
    filled = fresh_sandbox.exec(f"{reserve}; dd if=/dev/zero of=/root/fill bs=1M count=6000", timeout_seconds=300)
    assert filled.exit_code != 0
    assert "No space left" in filled.stderr
    checkpoint = fresh_sandbox.snapshot()
    with deleted_after(checkpoint), Sandbox.restore(checkpoint, client=client) as restored:
        assert restored.exec("echo more > /root/more").exit_code != 0
        restored.exec("rm /root/fill /root/reserved*; sync", check=True)
        assert restored.exec("echo more > /root/more").exit_code == 0


def test_a_rollback_undoes_everything_since_and_the_sandbox_keeps_its_id(fresh_sandbox: Sandbox) -> None:
    fresh_sandbox.filesystem.write("/work/state", "good")
    checkpoint = fresh_sandbox.snapshot()
    with deleted_after(checkpoint):
        fresh_sandbox.exec("rm -rf /work /usr/bin; sync")
        fresh_sandbox.rollback(checkpoint)
        assert fresh_sandbox.exec("cat /work/state; hostname").stdout == f"good{fresh_sandbox.id}\n"
        fresh_sandbox.hibernate()
        fresh_sandbox.rollback(checkpoint)
        assert fresh_sandbox.exec("cat /work/state").stdout == "good"


def test_a_lost_sandbox_names_its_last_snapshot_and_can_be_rolled_back_or_restored(
    client: Client, fresh_sandbox: Sandbox
) -> None:
    fresh_sandbox.filesystem.write("/work/state", "good")
    fresh_sandbox.hibernate()
    fresh_sandbox.wake()
    with pytest.raises((SandboxLost, OutcomeUnknown)):
        fresh_sandbox.exec("echo b > /proc/sysrq-trigger; sleep 600")
    with pytest.raises(SandboxLost) as caught:
        fresh_sandbox.exec("true")
    assert caught.value.last_snapshot is not None
    with Sandbox.restore(caught.value.last_snapshot, client=client) as restored:
        assert restored.filesystem.read_text("/work/state") == "good"
    fresh_sandbox.rollback(caught.value.last_snapshot)
    assert fresh_sandbox.filesystem.read_text("/work/state") == "good"


def test_a_hibernated_and_a_paused_sandbox_are_forked_and_stay_as_they_are(fresh_sandbox: Sandbox) -> None:
    fresh_sandbox.filesystem.write("/work/state", "good")
    for rest, state in ((fresh_sandbox.pause, "paused"), (fresh_sandbox.hibernate, "hibernated")):
        rest()
        children = fresh_sandbox.fork(2)
        with deleted_after(*children):
            assert [child.filesystem.read_text("/work/state") for child in children] == ["good", "good"]
            assert fresh_sandbox.refresh().state == state
        if state == "paused":
            fresh_sandbox.resume()


def test_thirty_checkpoints_in_a_row_are_each_complete(client: Client, fresh_sandbox: Sandbox) -> None:
    checkpoints = []
    for number in range(30):
        fresh_sandbox.filesystem.write("/work/number", str(number))
        checkpoints.append(fresh_sandbox.snapshot(name=f"step {number}"))
    with deleted_after(*checkpoints):
        for deleted in checkpoints[1:29]:
            deleted.delete()
        for number in (0, 29):
            with Sandbox.restore(checkpoints[number], client=client) as restored:
                assert restored.filesystem.read_text("/work/number") == str(number)
            checkpoints[number].verify()


def test_deleting_what_others_came_from_breaks_none_of_them(client: Client, fresh_sandbox: Sandbox) -> None:
    fresh_sandbox.filesystem.write("/work/state", "good")
    checkpoint = fresh_sandbox.snapshot()
    restored = Sandbox.restore(checkpoint, client=client)
    fresh_sandbox.hibernate()
    with deleted_after(restored):
        for each in fresh_sandbox.snapshots():
            each.delete()
        assert fresh_sandbox.snapshots() == []
        restored.exec("find /usr/lib/python3 /etc -xdev -type f -print0 | xargs -0 cat | sha256sum", check=True)
        assert fresh_sandbox.exec("cat /work/state").stdout == "good"
        again = restored.snapshot()
        with deleted_after(again), Sandbox.restore(again, client=client) as other:
            assert other.filesystem.read_text("/work/state") == "good"


@pytest.mark.parametrize("part", [MEMORY, STATE, DISK])
def test_a_flipped_byte_is_refused_and_the_sandbox_is_as_before(
    server: RunningServer, client: Client, fresh_sandbox: Sandbox, part: str
) -> None:
    checkpoint = fresh_sandbox.snapshot()
    folder = server.data / "snapshots" / checkpoint.id
    apart = folder.with_name("apart")  # else it would be a link to what the sandbox itself stands on
    shutil.copytree(folder, apart, copy_function=shutil.copy2)
    shutil.rmtree(folder)
    apart.rename(folder)
    with deleted_after(checkpoint):
        checkpoint.verify()
        flip(folder / part)
        for use in (checkpoint.verify, lambda: Sandbox.restore(checkpoint, client=client)):
            with pytest.raises(SnapshotCorrupt, match=part):
                use()
        with pytest.raises(SnapshotCorrupt):
            fresh_sandbox.rollback(checkpoint)
        assert fresh_sandbox.exec("echo here").stdout == "here\n"


def flip(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(8192)
        byte = opened.read(1)
        opened.seek(8192)
        opened.write(bytes([byte[0] ^ 1]))


def test_a_snapshot_of_another_processor_is_refused_in_clear_words_before_anything_starts(
    server: RunningServer, client: Client, fresh_sandbox: Sandbox
) -> None:

    checkpoint = fresh_sandbox.snapshot()
    manifest = server.data / "snapshots" / checkpoint.id / "manifest.json"
    with deleted_after(checkpoint):
        read = parse_manifest(manifest.read_bytes(), "it", "")
        record = read.record
        assert isinstance(record, TakenSnapshot)
        other = dataclasses.replace(record.template.fingerprint, cpu_model="another")
        record = dataclasses.replace(record, template=dataclasses.replace(record.template, fingerprint=other))
        manifest.unlink()
        manifest.write_text(print_manifest(dataclasses.replace(read, record=record)))
        with pytest.raises(Unsupported, match="cpu_model 'another'"):
            Sandbox.restore(checkpoint, client=client)


def test_a_snapshot_that_is_unknown_or_deleted_is_not_found(client: Client, fresh_sandbox: Sandbox) -> None:
    checkpoint = fresh_sandbox.snapshot()
    checkpoint.delete()
    checkpoint.delete()
    for snapshot in (checkpoint.id, "snp-0000000000000000", "nonsense"):
        with pytest.raises(NotFound):
            Sandbox.restore(snapshot, client=client)
        with pytest.raises(NotFound):
            fresh_sandbox.rollback(snapshot)
    with pytest.raises(NotFound):
        checkpoint.verify()


def test_verbs_that_meet_on_one_sandbox_wait_for_each_other(fresh_sandbox: Sandbox) -> None:
    fresh_sandbox.filesystem.write("/work/state", "good")
    verbs: list[Callable[[], object]] = [fresh_sandbox.hibernate, fresh_sandbox.snapshot, fresh_sandbox.wake]
    verbs += [*verbs, fresh_sandbox.pause, fresh_sandbox.pause]
    verbs += [fresh_sandbox.resume, fresh_sandbox.fork, fresh_sandbox.hibernate, fresh_sandbox.wake]
    with ThreadPoolExecutor(len(verbs)) as pool:
        asked = [pool.submit(verb) for verb in verbs]
    made = []
    for each in asked:
        if each.exception() is None:
            made.append(each.result())
        else:
            assert isinstance(each.exception(), Conflict), each.exception()
    with deleted_after(*(each for each in made if isinstance(each, Sandbox | Snapshot))):
        if fresh_sandbox.refresh().state == "paused":
            fresh_sandbox.resume()
        assert fresh_sandbox.filesystem.read_text("/work/state") == "good"


def test_a_child_costs_the_disk_and_the_memory_that_it_changed(server: RunningServer, fresh_sandbox: Sandbox) -> None:
    child = fresh_sandbox.fork()
    with deleted_after(child):
        (machine,) = machines_of(child)
        private = sum(
            int(line.split()[1])
            for line in Path(f"/proc/{machine}/smaps_rollup").read_text().splitlines()
            if line.startswith("Anonymous:")
        )
        assert private < 200 * 1024, "in KiB; the guest alone has 256 MiB"
