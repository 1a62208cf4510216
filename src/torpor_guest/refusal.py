"""Errors as they are told to the host: a code of the protocol and one plain sentence.

Codes: invalid_request, not_found, forbidden, conflict, out_of_space, busy, unsupported, port_closed, failed, cancelled.
"""

from __future__ import annotations

import errno
import os

from torpor_guest import names

_CODES = {
    errno.ENOENT: "not_found",
    errno.EACCES: "forbidden",
    errno.EPERM: "forbidden",
    errno.EROFS: "forbidden",
    errno.ENOSPC: "out_of_space",
    errno.EDQUOT: "out_of_space",
    errno.EFBIG: "out_of_space",
    errno.ENOTEMPTY: "conflict",
    errno.EEXIST: "conflict",
    errno.EBUSY: "conflict",
    errno.ETXTBSY: "conflict",
    errno.EISDIR: "invalid_request",
    errno.ENOTDIR: "invalid_request",
    errno.ENAMETOOLONG: "invalid_request",
    errno.ELOOP: "invalid_request",
    errno.EINVAL: "invalid_request",
    errno.EAGAIN: "invalid_request",
    errno.EXDEV: "unsupported",
    errno.EOPNOTSUPP: "unsupported",
    errno.EMFILE: "busy",
    errno.ENFILE: "busy",
    errno.ENOMEM: "busy",
}

_SENTENCES = {
    errno.ENOENT: "there is no {}",
    errno.EACCES: "no permission for {}",
    errno.EPERM: "it is not permitted to change {}",
    errno.EROFS: "{} is on a read-only file system",
    errno.ENOSPC: "the sandbox's disk is full, so {} could not be written",
    errno.EDQUOT: "the disk quota is used up, so {} could not be written",
    errno.EFBIG: "{} would be larger than a file may be here",
    errno.ENOTEMPTY: "the folder {} is not empty",
    errno.EEXIST: "{} exists already",
    errno.EBUSY: "{} is in use by the system",
    errno.EISDIR: "{} is a folder",
    errno.ENOTDIR: "a part of {} is a file, not a folder",
    errno.ENAMETOOLONG: "the path {} is too long, or a name in it is",
    errno.ELOOP: "the symbolic links of {} lead in a circle",
    errno.EAGAIN: "reading {} would wait for something to happen",
    errno.EXDEV: "{} lies on another file system",
}


class Refusal(Exception):
    """Ends a call with an ERROR."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint

    def body(self) -> dict[str, str | None]:
        """Return the ERROR frame's object."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


def invalid(message: str, hint: str | None = None) -> Refusal:
    """Return the refusal of a request that makes no sense."""
    return Refusal("invalid_request", message, hint)


def no_room(error: OSError) -> Refusal:
    """Return the refusal of a command for which there is no descriptor, process or control group to be had."""
    return Refusal("busy", f"the sandbox has no room for another command: {os.strerror(error.errno or 0).lower()}")


def from_os_error(error: OSError, path: bytes) -> Refusal:
    """Return how a failed system call on `path` is told."""
    number = error.errno or 0
    sentence = _SENTENCES.get(number)
    name = shown(path)
    text = sentence.format(name) if sentence else f"{name}: {os.strerror(number).lower()}"
    return Refusal(_CODES.get(number, "failed"), text)


def shown(path: bytes) -> str:
    """Return a path for a sentence, cut where it is very long."""
    text = names.to_text(path)
    return text if len(text) <= 300 else text[:300] + "..."
