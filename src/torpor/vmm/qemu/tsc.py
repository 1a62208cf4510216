"""The rate of this host's time-stamp counter, which emulated guests read too."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
from pathlib import Path

from torpor.errors import Unsupported

_PERF_EVENT_OPEN = 298  # x86-64 system call number
_PERF_TYPE_SOFTWARE, _PERF_COUNT_SW_DUMMY = 1, 9
_ATTR_SIZE = 112
# linux/perf_event.h, struct perf_event_mmap_page: where the capability bits and (time_shift, time_mult) stand.
_CAPABILITIES, _SHIFT_AND_FACTOR = 40, 50
_CAP_USER_TIME = 1 << 3


def tsc_khz() -> int:
    """Return the counter's rate in kHz. Raises Unsupported where neither the kernel nor /proc/cpuinfo tells it."""
    rate = _from_perf() or _from_cpuinfo(Path("/proc/cpuinfo").read_text())
    if rate is None:
        raise Unsupported("this host does not tell the rate of its time-stamp counter", hint="use an x86-64 Linux host")
    return rate


def _from_perf() -> int | None:
    """The kernel's own factors from counter to nanoseconds: exact, but the system call may be forbidden."""
    attributes = bytearray(_ATTR_SIZE)
    struct.pack_into("=IIQ", attributes, 0, _PERF_TYPE_SOFTWARE, _ATTR_SIZE, _PERF_COUNT_SW_DUMMY)
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = (ctypes.c_char * _ATTR_SIZE).from_buffer(attributes)
    descriptor = libc.syscall(_PERF_EVENT_OPEN, buffer, 0, -1, -1, 8)
    if descriptor < 0:
        return None
    try:
        with mmap.mmap(descriptor, mmap.PAGESIZE, prot=mmap.PROT_READ) as page:
            (capabilities,) = struct.unpack_from("=Q", page, _CAPABILITIES)
            shift, factor = struct.unpack_from("=HI", page, _SHIFT_AND_FACTOR)
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
    if not capabilities & _CAP_USER_TIME or factor == 0:
        return None
    return round((1_000_000 << int(shift)) / int(factor))


def _from_cpuinfo(text: str) -> int | None:
    found = re.search(r"^cpu MHz\s*:\s*([0-9.]+)$", text, re.MULTILINE)
    return round(float(found[1]) * 1000) if found else None
