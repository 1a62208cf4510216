"""Volumes: disks with a file system of their own, which outlive the guest that uses them.

A guest is baked with a few *bays*: block devices with hardly any content, known by their serial numbers. The host puts
a volume into one by letting it grow.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress

from torpor_guest.connection import SendsOnly, Stream
from torpor_guest.loop import Loop
from torpor_guest.refusal import Refusal, from_os_error, shown
from torpor_guest.requests import Request

MOST_BAYS = 16
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_RELATIME = 1, 2, 4, 1 << 21
# A new file system leaves tables of inodes to be filled with zeros: when they are used is soon enough.
_OPTIONS = b"errors=remount-ro,noinit_itable"
_BLOCKS = "/sys/block"
_SECTOR = 512
# The kernel is told by an interrupt that a device has grown, and sees to it a little later.
_LOOK_EVERY_S, _GROWS_WITHIN_S = 0.002, 10.0

_libc = ctypes.CDLL(None, use_errno=True)

Serve = Callable[[Stream, Request], None]


class Volumes:
    """Mounts volumes, and writes back what is to be in them."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._written: list[bytes] = []  # where those are mounted that can be written to

    def operations(self) -> dict[str, Serve]:
        """Return the operations by name."""
        return {"mount": self.mount}

    def mount(self, stream: Stream, request: Request) -> None:
        """`mount` {bay, path, bytes, read_only?}: RESULT {bytes} once the volume of so many bytes that the bay has, or
        gets, is mounted.

        The folder is made if there is none. Programs there cannot take on rights, and devices are none.
        """
        bay, size = request.whole("bay", 0, MOST_BAYS - 1), request.whole("bytes", 1, 2**62)
        path, read_only = request.path("path"), request.flag("read_only")
        device = _device_of(f"bay{bay}")

        def mounted() -> None:
            _mount(device, path, read_only=read_only)
            if not read_only:
                self._written.append(path)
            stream.result({"bytes": size})

        _Growth(self._loop, stream, (device, size), mounted).look()

    def sync(self) -> None:
        """Have all that was written to volumes be in them. Blocks; a volume that cannot be written is left as it is."""
        for path in self._written:
            with suppress(OSError):
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    _libc.syncfs(fd)
                finally:
                    os.close(fd)


def _device_of(serial: str) -> str:
    for name in os.listdir(_BLOCKS):
        with suppress(OSError), open(f"{_BLOCKS}/{name}/serial", encoding="ascii", errors="replace") as file:
            if file.read(64).strip("\0\n ") == serial:
                return name
    raise Refusal("unsupported", "this sandbox was not made for volumes", "build its template again")


def _mount(device: str, path: bytes, *, read_only: bool) -> None:
    flags = _MS_NOSUID | _MS_NODEV | _MS_RELATIME | (_MS_RDONLY if read_only else 0)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, path) from error
    words = (f"/dev/{device}".encode(), path, b"ext4", ctypes.c_ulong(flags), _OPTIONS)
    if _libc.mount(*words) != 0:
        reason = os.strerror(ctypes.get_errno()).lower()
        raise Refusal("failed", f"the volume could not be mounted at {shown(path)}: {reason}")


def _size_of(device: str) -> int:
    with open(f"{_BLOCKS}/{device}/size", encoding="ascii") as file:
        return int(file.read()) * _SECTOR


class _Growth(SendsOnly):
    """Waits until the kernel knows that a device has grown to a size."""

    def __init__(self, loop: Loop, stream: Stream, wanted: tuple[str, int], then: Callable[[], None]) -> None:
        self._loop, self._stream, self._then = loop, stream, then
        self._device, self._size = wanted
        self._left_s = _GROWS_WITHIN_S
        stream.operation = self

    def look(self) -> None:
        """Look whether it has, and again a little later if not."""
        if not self._stream.open:
            return
        self._left_s -= _LOOK_EVERY_S
        try:
            if _size_of(self._device) == self._size:
                self._then()
            elif self._left_s > 0:
                self._loop.after(_LOOK_EVERY_S, self.look)
            else:
                self._stream.refuse(Refusal("failed", f"the volume in {self._device} did not appear"))
        except (OSError, ValueError) as error:
            self._stream.refuse(Refusal("failed", f"the volume in {self._device} could not be looked at: {error}"))
        except Refusal as refusal:
            self._stream.refuse(refusal)

    def on_cancel(self) -> None:
        self._stream.refuse(Refusal("cancelled", "the host gave up"))

    def on_drop(self) -> None:
        """The next host asks again."""
