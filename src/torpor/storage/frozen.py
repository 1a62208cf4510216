"""A guest frozen to disk: what templates and snapshots have in common.

A folder with these files, immutable from the moment it is published:

manifest.json    the record, size and time of every part, and a checksum of all that
memory           the guest's memory, as large as it is; pages of zeros are holes
state            the machine's state: processors and devices
disk.qcow2       what the guest had written to its root disk
memory.sums      a checksum for each page of memory, so that a freeze computes those of the pages that changed only
disk.sums        a checksum for each 64 KiB of disk.qcow2
memory.used      the ranges of memory that were in use before the freeze: what a restore will need first
volume0          of a snapshot whose sandbox had volumes: a copy of each, by bay; and volume0.sums, as disk.sums

Opening looks at every part's size and time, and reads in full only what these do not vouch for. `verify` reads all.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from torpor.errors import SnapshotCorrupt
from torpor.kit.extents import changed_runs
from torpor.kit.files import allocated_bytes, fsync_path, replaced_folder, sha256_of, write_new
from torpor.kit.runs import Run, Written
from torpor.kit.sums import first_difference, sums_of, updated
from torpor.model.snapshot import Snapshot
from torpor.model.template import Template
from torpor.model.volume import Attachment
from torpor.storage.manifest import Manifest, Part, parse_manifest, print_manifest
from torpor.storage.room import written

_log = structlog.get_logger(__name__)

MANIFEST, MEMORY, STATE, DISK = "manifest.json", "memory", "state", "disk.qcow2"
MEMORY_SUMS, DISK_SUMS, MEMORY_USED = "memory.sums", "disk.sums", "memory.used"
PARTS = (MANIFEST, MEMORY, STATE, DISK, MEMORY_SUMS, DISK_SUMS, MEMORY_USED)
_VOLUME = re.compile(r"volume[0-9]{1,2}")

# Large part -> its checksums, and how many bytes each of them covers. Those of volumes are like the disk's.
_SUMS = {MEMORY: (MEMORY_SUMS, 4096), DISK: (DISK_SUMS, 65536)}
_VOLUME_SUMS, _VOLUME_BLOCK = ".sums", 65536
_SMALL = (STATE, MEMORY_SUMS, DISK_SUMS, MEMORY_USED)
# Offset and length of one range in MEMORY_USED.
_RANGE = struct.Struct("<QQ")

_MEND_TEMPLATE = "run `torpor template build {name}`"
_MEND_SNAPSHOT = "go back to another snapshot; `torpor snapshots` lists them"


@dataclass(frozen=True, slots=True)
class Frozen:
    """A guest frozen to disk: a folder with the parts, and what its machine is made of.

    `title` names it in sentences ("the snapshot snp-..."), `mend` says what to do if it is damaged or does not fit.
    `snapshot` is None for a template's.
    """

    title: str
    mend: str
    folder: Path
    template: Template
    snapshot: Snapshot | None
    parts: Mapping[str, Part]

    @property
    def has_processes(self) -> bool:
        """Whether the user's processes are in it, which stand still until they are let go."""
        return self.snapshot is not None or self.template.lives

    @property
    def volumes(self) -> tuple[Attachment, ...]:
        """What its sandbox had of volumes, a copy of each of which is the part of its number."""
        return () if self.snapshot is None else self.snapshot.volumes


def volume_part(bay: int) -> str:
    """Return the name of the copy of what was in a bay."""
    return f"volume{bay}"


def _large(names: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Return the large ones among some parts, each with the name of its checksums and what one of these covers."""
    volumes = sorted(name for name in names if _VOLUME.fullmatch(name))
    return _SUMS | {name: (f"{name}{_VOLUME_SUMS}", _VOLUME_BLOCK) for name in volumes}


def _small(large: Mapping[str, tuple[str, int]]) -> tuple[str, ...]:
    return (*_SMALL, *(sums for name, (sums, _) in large.items() if name not in _SUMS))


@dataclass(frozen=True, slots=True)
class Changes:
    """What a draft differs in from the frozen guest `base`, of whose memory it has a changed copy.

    `shares`: that copy was made by sharing blocks.
    """

    base: Frozen
    memory: Written
    shares: bool = True


@dataclass(frozen=True, slots=True)
class Sealed:
    """The parts of a draft, durable. `size_bytes`: what they take up on disk beyond what they share with their base."""

    parts: Mapping[str, Part]
    size_bytes: int


def seal(draft: Path, changes: Changes | None = None) -> Sealed:
    """Add the checksums to a draft that has memory, state and disk, and make all of it durable.

    With `changes` only the checksums of what changed are computed. Blocks; meant for a thread. Raises OutOfSpace where
    the host's disk is full, FreezeFailed.
    """
    large = _large(path.name for path in draft.iterdir())
    with written(draft, "the snapshot could not be written"), ThreadPoolExecutor(max_workers=len(_SUMS) + 2) as threads:
        for part in (STATE, *large):
            (draft / part).chmod(0o400)
        # The kernel writes the memory out while its checksums are computed.
        durable = [threads.submit(fsync_path, draft / part) for part in (MEMORY, STATE)]
        durable.append(threads.submit(_add_used, draft, changes.memory.used if changes else ()))
        sizes = [threads.submit(_add_sums, draft, part, changes) for part in large]
        for each in durable:
            each.result()
        small = _small(large)
        fresh = sum(each.result() for each in sizes) + sum(allocated_bytes(draft / part) for part in small)
        return Sealed({part: _stamp(draft / part, part in small) for part in (*large, *small)}, fresh)


def _add_used(draft: Path, used: Iterable[Run]) -> None:
    write_new(draft / MEMORY_USED, b"".join(_RANGE.pack(*run) for run in used), mode=0o400)


def _add_sums(draft: Path, part: str, changes: Changes | None) -> int:
    """Write a part's checksums, and return how many of its bytes on disk it does not share with its base."""
    path, (sums_name, block) = draft / part, _large([part])[part]
    if changes is not None and part not in changes.base.parts:
        changes = None  # a volume, and this is the first snapshot since it was attached
    old = _trusted_sums(changes.base, sums_name) if changes else None
    changed = _changed(path, part, changes)
    new = sums_of(path, block) if old is None or changed is None else updated(old, path, block, changed)
    write_new(draft / sums_name, new, mode=0o400)
    taken = allocated_bytes(path)
    shares = changes is not None and changes.shares
    return min(taken, sum(length for _, length in changed)) if shares and changed is not None else taken


def _changed(path: Path, part: str, changes: Changes | None) -> Sequence[Run] | None:
    """Return what of a part differs from its base, None where that cannot be told."""
    if part != MEMORY:
        fsync_path(path)  # what of it is shared is known once it is on disk
        return changed_runs(path, changes.base.folder / part) if changes else None
    return changes.memory.runs if changes else None


def _trusted_sums(base: Frozen, name: str) -> bytes | None:
    """Return checksums of the base, or None where they are not what its manifest says: then all are computed anew."""
    folder = str(base.folder)
    try:
        sums = (base.folder / name).read_bytes()
        if hashlib.sha256(sums).hexdigest() == base.parts[name].sha256:
            return sums
        _log.warning("checksums are damaged, so all are computed", folder=folder, part=name)
    except OSError as error:
        _log.warning("checksums cannot be read, so all are computed", folder=folder, part=name, error=str(error))
    return None


def _stamp(path: Path, small: bool) -> Part:
    status = path.stat()
    return Part(status.st_size, status.st_mtime_ns, sha256_of(path) if small else None)


def write_record(draft: Path, record: Template | Snapshot, sealed: Sealed) -> None:
    """Write the manifest of a sealed draft, and make the draft durable. Raises OutOfSpace, FreezeFailed."""
    with written(draft, "the snapshot could not be written"):
        write_new(draft / MANIFEST, print_manifest(Manifest(record, sealed.parts)).encode(), mode=0o400)
        fsync_path(draft)


def read(folder: Path, title: str = "", mend: str = "") -> Frozen:
    """Return what is frozen in a folder, by its manifest alone.

    `title` and `mend` are for the sentence about a manifest that cannot be read. Raises SnapshotCorrupt, or Unsupported
    for another format, by name.
    """
    title, mend = title or f"the frozen guest in {folder}", mend or _MEND_SNAPSHOT
    try:
        text = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise SnapshotCorrupt(f"{title} lacks its manifest: {error.strerror}", hint=mend) from error
    manifest = parse_manifest(text, title, mend)
    record = manifest.record
    if isinstance(record, Template):
        title, mend = f"the template {record.name!r}", _MEND_TEMPLATE.format(name=record.name)
        return Frozen(title, mend, folder, record, None, manifest.parts)
    return Frozen(f"the snapshot {record.id}", _MEND_SNAPSHOT, folder, record.template, record, manifest.parts)


def read_ahead(frozen: Frozen) -> None:
    """Have the kernel begin to read the memory that a restore will need first. Blocks for the orders only.

    Only for speed: what cannot be read is left to whoever needs it.
    """
    with suppress(OSError), (frozen.folder / MEMORY).open("rb") as memory:
        used = (frozen.folder / MEMORY_USED).read_bytes()
        for offset, length in _RANGE.iter_unpack(used[: len(used) // _RANGE.size * _RANGE.size]):
            os.posix_fadvise(memory.fileno(), offset, length, os.POSIX_FADV_WILLNEED)


def check(frozen: Frozen) -> None:
    """See to it that every part is there and is what was sealed, as far as sizes and times can tell.

    The machine's state is always read. So is a part whose time is another: it was touched, or copied without times; if
    its bytes are right it gets its time back, so this is paid for once. Raises SnapshotCorrupt.
    """
    large = _large(frozen.parts)
    touched = [part for part in (*_small(large), *large) if not _vouched(frozen, part)]
    for part in touched:
        if part in large and large[part][0] not in touched:
            _verify_part(frozen, large[part][0])  # before it vouches for the whole part
        _verify_part(frozen, part)
    if STATE not in touched:
        _verify_part(frozen, STATE)
    for part in touched:
        with suppress(PermissionError):  # not ours to change: it is read again next time
            os.utime(frozen.folder / part, ns=(frozen.parts[part].mtime_ns,) * 2)


def _vouched(frozen: Frozen, part: str) -> bool:
    """Tell whether a part's time is as it was sealed. Raises SnapshotCorrupt if it is not there or of another size."""
    known = frozen.parts.get(part)
    if known is None:
        raise _damaged(frozen, f"its manifest does not name {part!r}")
    try:
        status = (frozen.folder / part).stat()
    except OSError as error:
        raise SnapshotCorrupt(f"{frozen.title} lacks its file {part!r}", hint=frozen.mend) from error
    if status.st_size != known.size:
        raise _damaged(frozen, f"its file {part!r} has {status.st_size} bytes, not {known.size}")
    return status.st_mtime_ns == known.mtime_ns


def verify(frozen: Frozen) -> int:
    """Compare every byte with its checksum and return how many that were. Blocks; meant for a thread.

    Raises SnapshotCorrupt, naming the file and where it differs.
    """
    large = _large(frozen.parts)
    for part in (*_small(large), *large):  # checksums first, as they vouch for the rest
        _vouched(frozen, part)
        _verify_part(frozen, part)
    return sum(part.size for part in frozen.parts.values())


def _verify_part(frozen: Frozen, part: str) -> None:
    path, large = frozen.folder / part, _large(frozen.parts)
    try:
        if part not in large:
            if sha256_of(path) != frozen.parts[part].sha256:
                raise _damaged(frozen, f"its file {part!r} has other bytes than it was sealed with")
            return
        name, block = large[part]
        offset = first_difference(path, block, (frozen.folder / name).read_bytes())
    except OSError as error:
        raise _damaged(frozen, f"its file {part!r} cannot be read: {error.strerror}") from error
    if offset is not None:
        raise _damaged(frozen, f"its file {part!r} has other bytes than it was sealed with, from byte {offset} on")


def _damaged(frozen: Frozen, how: str) -> SnapshotCorrupt:
    return SnapshotCorrupt(f"{frozen.title} is damaged: {how}", hint=frozen.mend)


def link_parts(source: Path, folder: Path) -> None:
    """Make `folder` a folder of hard links to all parts in `source`; one that is there is replaced in one step.

    Not made durable: what links would protect is removed later on the same file system, whose journal keeps the order.
    Raises OSError.
    """
    with replaced_folder(folder) as draft:
        large = _large(path.name for path in source.iterdir())
        for part in (MANIFEST, *_small(large), *large):
            os.link(source / part, draft / part)
