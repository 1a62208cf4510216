"""A running QEMU's guest memory, read from outside of it: which pages the guest has written, and what they hold.

RAM is a private mapping of a memory image. A page of it that was never written is the file's; the first write gives the
process a page of its own, which Linux calls anonymous. So what a guest has changed since it came to life is what its
page map shows as there, or swapped out, and not the file's.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from torpor.kit.runs import Run, Written, merged
from torpor.vmm.pages import PAGE, STEP, Image, page_buffer

# linux/fs.h: _IOWR('f', 16, struct pm_scan_arg), Linux 6.7 and newer. The struct's members: size, flags, start, end,
# walk_end, vec, vec_len, max_pages, category_inverted, category_mask, category_anyof_mask, return_mask.
_PAGEMAP_SCAN = 0xC0606610
_SCAN = struct.Struct("=12Q")
_WALK_END = 4
_IS_FILE, _IS_PRESENT, _IS_SWAPPED = 1 << 2, 1 << 3, 1 << 4
_REGIONS = 4096

# /proc/<pid>/pagemap has eight bytes a page. Of the highest byte, bit 7 is present, bit 6 swapped, bit 5 file's page.
_SOME = re.compile(rb"\x01+")


@dataclass(frozen=True, slots=True)
class Pages:
    """Which pages to look for: `scan` are the masks for the kernel (inverted, all of, any of, returned), `table` says
    it of each highest byte of a page map's entry.
    """

    scan: tuple[int, int, int, int]
    table: bytes


# The process's own: those the guest has written.
WRITTEN = Pages(
    (_IS_FILE, _IS_FILE, _IS_PRESENT | _IS_SWAPPED, 0),  # the first is inverted: not the file's
    bytes(1 if flags & 0b1100_0000 and not flags & 0b0010_0000 else 0 for flags in range(256)),
)
# Those that were read or written, with some that the kernel mapped around them.
IN_USE = Pages(
    (0, 0, _IS_PRESENT | _IS_SWAPPED, 0),
    bytes(1 if flags & 0b1100_0000 else 0 for flags in range(256)),
)


class GuestGone(Exception):
    """The process ended before all of its memory was read."""


class NotItsImage(Exception):
    """The process does not map the image as expected, or the copy is none of it. Says what is wrong."""


@dataclass(frozen=True, slots=True)
class Ram:
    """The memory of a guest: the process that maps it, and the inode and length of the image that is mapped.

    The inode, because the image may have another name by now, or none.
    """

    pid: int
    inode: int
    size: int


def save_ram(ram: Ram, image: Path, like: Path) -> Written:
    """Write to `image` what of the guest's memory differs from it, pages of zeros as holes. Blocks.

    `like` holds the same bytes as `image`, or is it. Only pages that the guest has written since it was loaded are
    looked at; the process stands still. Raises GuestGone, NotItsImage and OSError, and then part of it may have been
    written.
    """
    with ExitStack() as closing:
        target, source = _opened(image, os.O_RDWR, closing), _opened(like, os.O_RDONLY, closing)
        for size in (os.fstat(target).st_size, os.fstat(source).st_size):
            if size != ram.size:
                raise NotItsImage(f"{image.name} is no copy: it has {size} bytes and the guest's memory {ram.size}")
        memory = _open_of(ram, "mem", closing)
        dirty = _pages_of(ram, WRITTEN)
        copying = _Copying(memory, Image(target, source))
        differing = [run for address, offset, length in dirty for run in copying.copy(address, offset, length)]
    used = merged((offset, length) for _, offset, length in _pages_of(ram, IN_USE))
    return Written(sum(length for _, _, length in dirty), merged(differing), used)


def read_ahead(ram: Ram, like: Path) -> None:
    """Have the kernel begin to read of `like` what the guest has written over so far. Blocks for the orders only.

    Raises GuestGone, NotItsImage and OSError.
    """
    with ExitStack() as closing:
        source = _opened(like, os.O_RDONLY, closing)
        for _, offset, length in _pages_of(ram, WRITTEN):
            os.posix_fadvise(source, offset, length, os.POSIX_FADV_WILLNEED)


def _pages_of(ram: Ram, wanted: Pages) -> list[tuple[int, int, int]]:
    """Return pages of the guest's memory: their address, their offset in the image, their length."""
    with ExitStack() as closing:
        page_map = _open_of(ram, "pagemap", closing)
        return [
            (address, each.offset + address - each.start, length)
            for each in _mappings(ram, _read_of(ram, "maps"))
            for address, length in find_pages(wanted, page_map, each.start, each.end)
        ]


def _opened(path: Path, flags: int, closing: ExitStack) -> int:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    closing.callback(os.close, descriptor)
    return descriptor


def _open_of(ram: Ram, name: str, closing: ExitStack) -> int:
    try:
        return _opened(Path(f"/proc/{ram.pid}/{name}"), os.O_RDONLY, closing)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise GuestGone(f"process {ram.pid} is gone") from error


def _read_of(ram: Ram, name: str) -> str:
    try:
        return Path(f"/proc/{ram.pid}/{name}").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise GuestGone(f"process {ram.pid} is gone") from error


@dataclass(frozen=True, slots=True)
class _Mapping:
    """A range of addresses, and the offset in the mapped file where it begins."""

    start: int
    end: int
    offset: int


def _mappings(ram: Ram, maps: str) -> list[_Mapping]:
    """Return where the image is mapped. Together they are the whole of it: else something else was found."""
    if not maps:
        raise GuestGone(f"process {ram.pid} has no memory any more")
    # The device stands here too, but not on every file system as stat tells it. So a file of another device that has
    # the same inode, such as a library, is told apart by its length.
    found: dict[str, list[_Mapping]] = {}
    for line in maps.splitlines():
        addresses, rights, offset, device, inode, *_ = line.split(maxsplit=5)
        if int(inode) == ram.inode and rights[3] == "p":
            start, end = (int(text, 16) for text in addresses.split("-"))
            found.setdefault(device, []).append(_Mapping(start, end, int(offset, 16)))
    for mappings in found.values():
        if merged((each.offset, each.end - each.start) for each in mappings) == ((0, ram.size),):
            return mappings
    raise NotItsImage(f"process {ram.pid} does not map the image it was loaded from as a whole")


def find_pages(wanted: Pages, page_map: int, start: int, end: int) -> tuple[Run, ...]:
    """Return the addresses and lengths of pages in a range, by the process's opened page map."""
    try:
        return merged(_by_scan(wanted, page_map, start, end))  # where there are many runs, the kernel tells some twice
    except OSError as error:
        if error.errno not in (errno.ENOTTY, errno.EINVAL):
            raise
        return tuple(by_parsing(wanted, page_map, start, end))


def _by_scan(wanted: Pages, page_map: int, start: int, end: int) -> Iterator[Run]:
    """Have the kernel look. Raises OSError: ENOTTY where it cannot."""
    regions = (ctypes.c_uint64 * (3 * _REGIONS))()
    while start < end:
        where = (_SCAN.size, 0, start, end, 0, ctypes.addressof(regions), _REGIONS, 0)
        order = bytearray(_SCAN.pack(*where, *wanted.scan))
        count = fcntl.ioctl(page_map, _PAGEMAP_SCAN, order)
        for at in range(0, 3 * count, 3):
            yield regions[at], regions[at + 1] - regions[at]
        start = _SCAN.unpack(order)[_WALK_END]


def by_parsing(wanted: Pages, page_map: int, start: int, end: int) -> Iterator[Run]:
    """Look through the page map itself, for kernels that do not scan."""
    entries = os.pread(page_map, (end - start) // PAGE * 8, start // PAGE * 8)
    if len(entries) != (end - start) // PAGE * 8:
        raise GuestGone("the process ended while its page map was read")
    for found in _SOME.finditer(entries[7::8].translate(wanted.table)):
        yield start + found.start() * PAGE, (found.end() - found.start()) * PAGE


class _Copying:
    """Copies memory of a process to an image, through one buffer."""

    def __init__(self, memory: int, image: Image) -> None:
        self._memory, self._image, self._buffer = memory, image, page_buffer()

    def copy(self, address: int, offset: int, length: int) -> Iterator[Run]:
        """Copy one run of pages and yield what differed of it."""
        for done in range(0, length, STEP):
            pages = self._buffer[: min(STEP, length - done)]
            if os.preadv(self._memory, [pages], address + done) != len(pages):
                raise GuestGone("the process ended while its memory was read")
            yield from self._image.update(offset + done, pages)
