"""Memory of a process that maps an image as a machine does, saved from outside of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mounted import mounted
from torpor.errors import FreezeFailed, OutOfSpace, SandboxLost
from torpor.kit.files import allocated_bytes, clone
from torpor.testing.vmm import fake_driver
from torpor.vmm.driver import Hardware, Place, Saved
from torpor.vmm.fake import Dies
from torpor.vmm.pages import PAGE, Image, saving_memory_of
from torpor.vmm.qemu.memory import WRITTEN, GuestGone, NotItsImage, Ram, by_parsing, find_pages, read_ahead, save_ram

PAGES = 64
# Maps the file as QEMU maps RAM, writes each page that it is told to, and says when it has.
SCRIPT = """
import mmap, os, sys
name, *orders = sys.argv[1:]
file = os.open(name, os.O_RDONLY)
size = os.fstat(file).st_size
with mmap.mmap(file, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as memory:
    sum(memory[::4096])  # a page that was only read is the file's still
    print("mapped", flush=True)
    for line in sys.stdin:
        page, text = line.split()
        memory[int(page) * 4096 : (int(page) + 1) * 4096] = bytes.fromhex(text) * 4096
        print("written", flush=True)
"""

Poke = Callable[[int, int], None]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Half of it data, the other half a hole."""
    path = tmp_path / "memory"
    path.write_bytes(os.urandom(PAGES // 2 * PAGE))
    os.truncate(path, PAGES * PAGE)
    return path


@contextmanager
def mapped(image: Path) -> Iterator[tuple[Ram, subprocess.Popen[str], Poke]]:
    """A process that maps `image`, and a call that has it fill a page with a byte."""
    argv = [sys.executable, "-c", SCRIPT, str(image)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        commands, answers = process.stdin, process.stdout
        assert answers.readline() == "mapped\n"

        def poke(page: int, byte: int) -> None:
            commands.write(f"{page} {byte:02x}\n")
            commands.flush()
            assert answers.readline() == "written\n"

        try:
            stat = image.stat()
            yield Ram(process.pid, stat.st_ino, stat.st_size), process, poke
        finally:
            process.kill()


@pytest.fixture
def copy(image: Path) -> Path:
    path = image.with_name("copy")
    clone(image, path)
    return path


def with_pages(image: Path, pages: dict[int, int]) -> bytes:
    data = bytearray(image.read_bytes())
    for page, byte in pages.items():
        data[page * PAGE : (page + 1) * PAGE] = bytes([byte]) * PAGE
    return bytes(data)


def test_a_copy_becomes_what_memory_holds_and_only_written_pages_are_looked_at(image: Path, copy: Path) -> None:
    with mapped(image) as (ram, _, poke):
        for page in (3, 4, 5, 40, 63):
            poke(page, 7)
        saved = save_ram(ram, copy, image)
    assert copy.read_bytes() == with_pages(image, dict.fromkeys((3, 4, 5, 40, 63), 7))
    assert saved.dirty_bytes == 5 * PAGE
    assert saved.runs == ((3 * PAGE, 3 * PAGE), (40 * PAGE, PAGE), (63 * PAGE, PAGE))


def test_memory_that_was_only_read_is_not_written(image: Path, copy: Path) -> None:
    with mapped(image) as (ram, _, _poke):
        saved = save_ram(ram, copy, image)
    assert (saved.dirty_bytes, saved.runs) == (0, ())


def test_saving_again_writes_what_changed_since(image: Path, copy: Path) -> None:
    with mapped(image) as (ram, _, poke):
        poke(1, 1)
        poke(2, 2)
        save_ram(ram, copy, image)
        poke(2, 3)
        second = image.with_name("second")
        clone(copy, second)
        saved = save_ram(ram, second, copy)
    assert saved.dirty_bytes == 2 * PAGE
    assert saved.runs == ((2 * PAGE, PAGE),)
    assert second.read_bytes() == with_pages(image, {1: 1, 2: 3})


def test_a_page_that_holds_again_what_the_image_holds_is_not_written(image: Path) -> None:
    with image.open("r+b") as file:
        file.write(b"\x09" * PAGE)
    copy = image.with_name("copy")
    clone(image, copy)
    with mapped(image) as (ram, _, poke):
        poke(0, 1)
        poke(0, 9)
        saved = save_ram(ram, copy, image)
    assert (saved.dirty_bytes, saved.written_bytes) == (PAGE, 0)


def test_pages_of_zeros_give_their_space_back(image: Path, copy: Path) -> None:
    before = allocated_bytes(copy)
    with mapped(image) as (ram, _, poke):
        for page in range(8, 24):
            poke(page, 0)
        poke(50, 0)  # a hole already
        saved = save_ram(ram, copy, image)
    assert saved.runs == ((8 * PAGE, 16 * PAGE),)
    assert copy.read_bytes() == with_pages(image, dict.fromkeys(range(8, 24), 0))
    assert allocated_bytes(copy) == before - 16 * PAGE
    assert copy.stat().st_size == image.stat().st_size


def test_the_image_may_have_been_moved_or_removed(image: Path, copy: Path) -> None:
    expected = with_pages(image, {2: 5})
    with mapped(image) as (ram, _, poke):
        poke(2, 5)
        image.rename(image.with_name("elsewhere"))
        image.with_name("elsewhere").unlink()
        save_ram(ram, copy, copy)
    assert copy.read_bytes() == expected


def test_the_kernel_s_scan_and_the_page_map_itself_tell_the_same(image: Path) -> None:
    with mapped(image) as (ram, process, poke):
        for page in (0, 1, 9, 33, 34, 63):
            poke(page, 1)
        (line,) = [line for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines() if str(image) in line]
        start, end = (int(text, 16) for text in line.split()[0].split("-"))
        page_map = os.open(f"/proc/{ram.pid}/pagemap", os.O_RDONLY)
        try:
            parsed = tuple(by_parsing(WRITTEN, page_map, start, end))
            assert find_pages(WRITTEN, page_map, start, end) == parsed
        finally:
            os.close(page_map)
    pages = [(0, 2), (9, 1), (33, 2), (63, 1)]
    assert parsed == tuple((start + first * PAGE, number * PAGE) for first, number in pages)


def test_a_process_that_ended_is_told_from_one_that_has_no_such_memory(image: Path, copy: Path) -> None:
    with mapped(image) as (ram, process, _poke):
        with pytest.raises(NotItsImage, match="does not map"):
            save_ram(Ram(ram.pid, ram.inode + 1, ram.size), copy, copy)
        process.kill()
        process.wait()
        with pytest.raises(GuestGone):
            save_ram(ram, copy, image)
    assert copy.read_bytes() == image.read_bytes()


def test_reading_ahead_changes_nothing(image: Path, copy: Path) -> None:
    with mapped(image) as (ram, process, poke):
        poke(3, 3)
        read_ahead(ram, copy)
        assert copy.read_bytes() == image.read_bytes()
        save_ram(ram, copy, image)
        process.kill()
        process.wait()
        with pytest.raises(GuestGone):
            read_ahead(ram, copy)
    assert copy.read_bytes() == with_pages(image, {3: 3})


def test_a_copy_of_another_length_is_refused(image: Path, copy: Path) -> None:
    os.truncate(copy, PAGE)
    with mapped(image) as (ram, _, _poke), pytest.raises(NotItsImage, match="copy is no copy: it has 4096 bytes"):
        save_ram(ram, copy, image)


def test_scattered_pages_are_written_and_told_apart_from_zeros(tmp_path: Path) -> None:
    path = tmp_path / "image"
    old = b"".join(bytes([number]) * PAGE for number in range(1, 9))
    new = b"".join(
        bytes([byte]) * PAGE for byte in (1, 0, 0, 40, 50, 6, 0, 80)
    )  # same, hole, hole, new, new, same, hole, new
    path.write_bytes(old)
    with path.open("r+b", buffering=0) as file:
        runs = sorted(Image(file.fileno(), file.fileno()).update(0, memoryview(new)))
    assert path.read_bytes() == new
    assert runs == [(PAGE, 2 * PAGE), (3 * PAGE, 2 * PAGE), (6 * PAGE, PAGE), (7 * PAGE, PAGE)]
    assert allocated_bytes(path) == 5 * PAGE


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_from_other_trouble(number: int) -> None:
    with pytest.raises(OutOfSpace, match="the memory of sbx-1 was not saved: the host's disk is full"):
        _save_and_fail_with(number)
    with pytest.raises(FreezeFailed, match=r"the memory of sbx-1 was not saved: .*Input/output error"):
        _save_and_fail_with(errno.EIO)


def _save_and_fail_with(number: int) -> None:
    with saving_memory_of("sbx-1"):
        raise OSError(number, os.strerror(number))


def test_where_holes_cannot_be_made_zeros_are_written(tmp_path: Path) -> None:
    with mounted(tmp_path / "ram", "ramfs") as folder:
        if folder is None:
            pytest.skip("only root can mount a file system that makes no holes")
        path = folder / "image"
        path.write_bytes(b"x" * 4 * PAGE)
        with path.open("r+b", buffering=0) as file:
            runs = [*Image(file.fileno(), file.fileno()).update(PAGE, memoryview(bytes(2 * PAGE)))]
        assert runs == [(PAGE, 2 * PAGE)]
        assert path.read_bytes() == b"x" * PAGE + bytes(2 * PAGE) + b"x" * PAGE


async def test_a_machine_in_memory_fails_where_it_is_told_to_and_half_done(tmp_path: Path) -> None:
    driver, place, saved = fake_driver(), Place("one", tmp_path), Saved(tmp_path / "memory", tmp_path / "state")
    hardware = Hardware(1, 1, Path(__file__), Path(__file__), "", ())
    booted = await driver.boot(place, hardware, saved.memory)
    await booted.pause()
    await booted.save_state(saved.state)
    machine = await driver.load(place, hardware, saved)
    clone(saved.memory, tmp_path / "copy")
    driver.faults["save_memory"] = FreezeFailed("told to")
    with pytest.raises(FreezeFailed, match="told to"):
        await machine.save_memory(tmp_path / "copy")
    assert machine.alive
    driver.faults["save_state"] = Dies("in the middle")
    with pytest.raises(FreezeFailed, match="in the middle"):
        await machine.save_state(tmp_path / "state-2")
    assert not machine.alive
    with pytest.raises(SandboxLost, match="in the middle"):
        await machine.resume()
    await booted.aclose()
