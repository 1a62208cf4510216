"""The files that a Dockerfile may bring into its image: what was sent for the build, below one folder."""

from __future__ import annotations

import os
import stat
import tarfile
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path

from torpor.kit.files import sha256_of
from torpor.model.dockerfile import refused
from torpor.model.patterns import Ignored, has_magic, matcher
from torpor.model.steps import CopyStep
from torpor.storage.images import digest_of
from torpor.wire.builds import MAX_CONTEXT_BYTES, MAX_CONTEXT_FILES

_IGNORE = ".dockerignore"
_LARGEST_IGNORE = 256 * 1024
# Of one step: the files of a context, and their folders.
_MOST_BROUGHT = 2 * MAX_CONTEXT_FILES
_ARCHIVES = (b"\x1f\x8b", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"BZh")


@dataclass(frozen=True, slots=True)
class Brought:
    """One file or folder, and its path in the guest. `unpacks`: it is an archive, whose content goes there."""

    source: Path
    target: str
    unpacks: bool = False


class Context:
    """A build context. Nothing outside of its folder is ever read: it has no links in it.

    Raises InvalidRequest (through its methods) for what is not there, or too much.
    """

    def __init__(self, folder: Path | None) -> None:
        """`folder`: None for none at all. Raises ValueError for a .dockerignore that makes no sense."""
        self._folder = folder or Path(os.devnull)
        self._paths = sorted(_below(self._folder)) if self._folder.is_dir() else []
        self._ignored = Ignored(_text_of(self._folder / _IGNORE))
        self._known: dict[str, bool] = {}  # whether a path is left out

    def brought(self, step: CopyStep) -> list[Brought]:
        """Return what a step brings, folders before what is in them. Raises InvalidRequest."""
        found: list[Brought] = []
        roots = [path for source in step.sources for path in self._named(step, source)]
        several = len(roots) > 1
        for path in roots:
            found += self._one(step, path, several=several)
            if len(found) > _MOST_BROUGHT:
                raise refused(step.line, f"more than {_MOST_BROUGHT} files and folders are too many")
        if sum(each.source.stat().st_size for each in found if each.source.is_file()) > MAX_CONTEXT_BYTES:
            raise refused(step.line, f"more than {MAX_CONTEXT_BYTES // (1024 * 1024)} MiB are too much")
        return found

    def _named(self, step: CopyStep, source: str) -> list[str]:
        """Return the paths that a source means; the whole context is ''."""
        path = os.path.normpath(source).lstrip("/")
        if path == "." and self._paths:
            return [""]
        if not has_magic(path):
            place = bisect_left(self._paths, path)
            names = self._paths[place : place + 1] if path in self._paths[place : place + 1] else []
        else:
            try:
                rule = matcher(path)
            except ValueError as error:
                raise refused(step.line, str(error)) from error
            names = [each for each in self._paths if rule.fullmatch(each)]
        names = [each for each in names if not self._left_out(each)]
        if not names:
            raise refused(step.line, f"{source[:200]!r} is not in the context, or a .dockerignore leaves it out")
        return names

    def _left_out(self, path: str) -> bool:
        if not self._ignores(path):
            return False
        if not self._ignored.keeps_some:
            return True
        inside = bisect_left(self._paths, f"{path}/")
        below = takewhile(lambda each: each.startswith(f"{path}/"), islice(self._paths, inside, None))
        return all(self._ignores(each) for each in below)

    def _ignores(self, path: str) -> bool:
        if path not in self._known:
            self._known[path] = self._ignored.ignores(path)
        return self._known[path]

    def _one(self, step: CopyStep, path: str, *, several: bool) -> Iterator[Brought]:
        source = self._folder / path
        into = step.target if step.target.endswith("/") else f"{step.target}/"
        if source.is_dir():
            yield Brought(source, into)
            prefix = f"{path}/" if path else ""
            for each in self._paths:
                if each.startswith(prefix) and not self._left_out(each):
                    yield Brought(self._folder / each, into + each.removeprefix(prefix))
        elif step.unpacks and _is_archive(source):
            yield Brought(source, into, unpacks=True)
        else:
            named = into + source.name if several or step.target.endswith("/") else step.target
            yield Brought(source, named)

    def digest(self, step: CopyStep) -> str:
        """Return a digest of all that a step brings, by name, mode and content. Raises InvalidRequest."""
        return digest_of(*(_identity(each) for each in self.brought(step)))


def _text_of(ignore: Path) -> str:
    """Return what a .dockerignore says, nothing where there is none. Raises ValueError for one that is too long."""
    if not ignore.is_file():
        return ""
    if ignore.stat().st_size > _LARGEST_IGNORE:
        raise ValueError(f"the .dockerignore has more than {_LARGEST_IGNORE} bytes")
    return ignore.read_text(errors="replace")


def _below(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if not path.is_symlink() and (path.is_file() or path.is_dir()):
            yield path.relative_to(folder).as_posix()


def _identity(brought: Brought) -> tuple[object, ...]:
    source = brought.source
    content = sha256_of(source) if source.is_file() else ""
    return brought.target, brought.unpacks, stat.S_IMODE(source.stat().st_mode), content


def _is_archive(path: Path) -> bool:
    """Tell whether a file is a tar archive, also a compressed one, by how it begins."""
    with path.open("rb") as file:
        start = file.read(512)
    return start[257:262] == b"ustar" or start.startswith(_ARCHIVES)


def pack(brought: list[Brought], mode: int | None, target: Path) -> None:
    """Write what is brought, but for archives, as one tar archive, all of it root's. Blocks. Raises OSError."""
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for each in brought:
            if each.unpacks:
                continue
            status = each.source.stat()
            entry = tarfile.TarInfo(each.target.strip("/") or ".")
            entry.mode = stat.S_IMODE(status.st_mode) if mode is None else mode
            entry.mtime = int(status.st_mtime)
            if each.source.is_dir():
                entry.type = tarfile.DIRTYPE
                entry.mode = 0o755 if mode is None else mode | (mode & 0o444) >> 2  # who can read it can enter it
                archive.addfile(entry)
                continue
            entry.size = status.st_size
            with each.source.open("rb") as content:
                archive.addfile(entry, content)
