"""Unix stream sockets at paths of any length.

A socket's address holds 107 bytes of path; one reached through /proc/self/fd/N/ of its open folder always fits.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Of connections that the listener has not accepted yet there may be so many, those that were closed again included.
_BACKLOG = 16


def listen_at(path: Path) -> socket.socket:
    """Return a listening socket at `path`, which must not exist, reachable for the owner only."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as address:
            sock.bind(address)
        path.chmod(0o600)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def connect_to(path: Path) -> socket.socket:
    """Return a socket connected to the listener at `path`. Never waits.

    Raises OSError if nobody listens there, and of these BlockingIOError if too many wait for the listener already.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)  # else one that accepts nobody would stop whoever wants to speak to it
        with _short(path) as address:
            sock.connect(address)
        sock.setblocking(True)
    except BaseException:
        sock.close()
        raise
    return sock


@contextmanager
def _short(path: Path) -> Iterator[str]:
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
