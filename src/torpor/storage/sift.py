"""Archives of strangers, read and written anew: what comes out has no surprise left in it.

A program of its own, run in a jail, that needs the standard library only:

    sift.py layers LAYOUT OUT BYTES ENTRIES     an OCI layout with one image in it, as skopeo leaves it
    sift.py rootfs ARCHIVE OUT BYTES ENTRIES    one archive: plain, or compressed with gzip, bzip2, xz or zstd

Each layer is read as a stream, whatever it is compressed with, each entry is checked, and a new archive is written of
those that may be there. OUT becomes an OCI layout of these, with the tag `image`, and what was found is written to its
`found.json`. What may not be is said in one line, and the program ends with 1.

No name is absolute or has `..` in it, and no link leads above the root. Devices and pipes are left out, as the guest
has its own. Numbers are within bounds, of extended attributes only users' and file capabilities are kept, and what a
blob is called by, and what the image says of it, is what it is.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import resource
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

_MIB = 1024 * 1024
_MEMORY = 1024 * _MIB
_PIECE = _MIB
# Headers that hold names and attributes; a real one has a few hundred bytes.
_LONGEST_HEADER = _MIB
# What one entry takes in an archive beside its content, on average: headers, names, attributes.
_BESIDE_ENTRY = 4096
_LARGEST_JSON = 8 * _MIB
_MOST_LAYERS = 512
_LAST_ID = (1 << 32) - 2
_LAST_SECOND = 1 << 33
_HEADERS = {
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
}
_KEPT_ATTRIBUTES = ("SCHILY.xattr.user.", "SCHILY.xattr.security.capability")
_MAGIC = {b"BZh": "bzip2", b"\x1f\x8b": "gzip", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_PLATFORM = ("linux", "amd64")


class Unfit(Exception):
    """What was found cannot be used; the text says what and why."""


class _Member(tarfile.TarInfo):
    """An entry whose header is checked before anything of what it announces is read into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        found = super().frombuf(buf, encoding, errors)
        if found.type in _HEADERS and not 0 <= found.size <= _LONGEST_HEADER:
            raise Unfit(f"a header of {found.size} bytes is in it, where {_LONGEST_HEADER} are allowed")
        if found.type == tarfile.GNUTYPE_SPARSE:
            raise Unfit(f"{found.name!r} is stored as a sparse file; make the archive without --sparse")
        if found.size < 0:
            raise Unfit(f"{found.name!r} says that it has {found.size} bytes")
        return found


@dataclass
class Bounds:
    """How many bytes of files and how many entries may still come; what was left out is counted."""

    bytes: int
    entries: int
    left_out: int = 0
    total: int = field(init=False)
    unread: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.bytes
        self.unread = self.bytes + self.entries * _BESIDE_ENTRY

    def read(self, count: int) -> None:
        """Count decompressed bytes, also behind an archive's end and of what is left out. Raises Unfit."""
        self.unread -= count
        if self.unread < 0:
            raise Unfit(f"it has far more in it than its files, which may take {self.total // _MIB} MiB")

    def take(self, member: tarfile.TarInfo) -> None:
        """Count an entry. Raises Unfit."""
        self.entries -= 1
        if self.entries < 0:
            raise Unfit("it has more files than a disk of this size has room for")
        self.bytes -= -(-member.size // 4096) * 4096 if member.isreg() else 0
        if self.bytes < 0:
            raise Unfit(f"its files take more than {self.total // _MIB} MiB, which is the most")


def sift(source: BinaryIO, target: BinaryIO, bounds: Bounds) -> None:
    """Copy an archive, entry by entry, checked. Raises Unfit, TarError, OSError."""
    options: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape"}
    with (
        tarfile.open(fileobj=source, mode="r|", tarinfo=_Member, **options) as old,
        tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT, **options) as new,
    ):
        kept: tuple[Any, Any] = (old, new)
        for member in old:
            for archive in kept:
                archive.members = []  # it would keep all of them
            checked = check(member)
            if checked is None:
                bounds.left_out += 1
                continue
            bounds.take(checked)
            content = old.extractfile(member) if checked.isreg() else None
            new.addfile(checked, content)


def check(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return an entry as it may be, None for one that is left out. Raises Unfit."""
    name = _inner_path(member.name, "a file")
    if member.isdev():  # pipes are counted as such
        return None
    if any(key.startswith("GNU.sparse.") for key in member.pax_headers):
        raise Unfit(f"{member.name!r} is stored as a sparse file; make the archive without --sparse")
    found = tarfile.TarInfo(name)
    if member.isreg():
        found.type, found.size = tarfile.REGTYPE, member.size
    elif member.isdir():
        found.type = tarfile.DIRTYPE
    elif member.issym():
        found.type, found.linkname = tarfile.SYMTYPE, _link(name, member.linkname)
    elif member.islnk():
        found.type, found.linkname = tarfile.LNKTYPE, _inner_path(member.linkname, f"the link {member.name!r}")
    else:
        raise Unfit(f"{member.name!r} is of a kind that no disk has ({member.type!r})")
    found.mode = member.mode & 0o7777
    found.uid, found.gid = _id(member, member.uid), _id(member, member.gid)
    found.mtime = min(max(0, int(member.mtime)), _LAST_SECOND)
    found.pax_headers = {key: value for key, value in member.pax_headers.items() if key.startswith(_KEPT_ATTRIBUTES)}
    return found


def _inner_path(path: str, what: str) -> str:
    """Return a path below the root, without needless parts."""
    if path.startswith("/"):
        raise Unfit(f"{what} has the absolute path {path[:300]!r}")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise Unfit(f"{what} has the path {path[:300]!r}, which leads out of its folder")
    return "/".join(parts) or "."


def _link(name: str, target: str) -> str:
    """Return where a symbolic link leads, as it is: nothing follows it but in the guest, below its own root."""
    if not target or "\0" in target:
        raise Unfit(f"the link {name!r} leads nowhere")
    depth = name.count("/")
    for part in target.split("/") if not target.startswith("/") else ():
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if depth < 0:
            raise Unfit(f"the link {name[:300]!r} leads above the root folder, to {target[:300]!r}")
    return target


def _id(member: tarfile.TarInfo, number: int) -> int:
    if not 0 <= number <= _LAST_ID:
        raise Unfit(f"{member.name[:300]!r} belongs to the user or group {number}, whom no system has")
    return number


class _Hashed(io.RawIOBase):
    """Bytes that are hashed as they are read or written."""

    def __init__(self, inner: BinaryIO, bounds: Bounds | None = None) -> None:
        self.digest, self._inner, self._bounds = hashlib.sha256(), inner, bounds
        self.count = 0

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read(len(buffer))
        if self._bounds is not None:
            self._bounds.read(len(data))
        buffer[: len(data)] = data
        self.digest.update(data)
        return len(data)

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.count += len(data)
        self._inner.write(data)
        return len(data)

    def drain(self) -> None:
        """Read to the end."""
        while self.read(_PIECE):
            pass


@contextmanager
def plain(source: BinaryIO) -> Iterator[BinaryIO]:
    """Yield the bytes behind a compression, which is known by how the source begins. Raises Unfit for another one."""
    buffered = io.BufferedReader(cast("io.RawIOBase", source), _PIECE)
    kind = next((kind for magic, kind in _MAGIC.items() if buffered.peek(8).startswith(magic)), "plain")
    if kind == "zstd":
        with _unzstd(buffered) as inner:
            yield inner
    elif kind == "gzip":
        with gzip.open(buffered) as unzipped:
            yield cast("BinaryIO", unzipped)
    elif kind == "bzip2":
        with bz2.open(buffered) as unzipped:
            yield cast("BinaryIO", unzipped)
    elif kind == "xz":
        with lzma.LZMAFile(buffered) as unpacked:
            yield cast("BinaryIO", unpacked)
    else:
        yield cast("BinaryIO", buffered)


@contextmanager
def _unzstd(source: Any) -> Iterator[BinaryIO]:
    argv = ["zstd", "--decompress", "--stdout", "--quiet", "--memory=128MB"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        feeder = threading.Thread(target=_feed, args=(source, process.stdin), daemon=True)
        feeder.start()
        yield cast("BinaryIO", process.stdout)
        while cast("BinaryIO", process.stdout).read(_PIECE):
            pass
        feeder.join()
        if process.wait() != 0:
            raise Unfit("it is compressed with zstd, and broken")


def _feed(source: Any, target: Any) -> None:
    try:
        while data := source.read(_PIECE):
            target.write(data)
        target.close()
    except BrokenPipeError:
        return  # its exit code tells


def sift_layer(blob: Path, out: Path, bounds: Bounds, *, digest: str | None, diff_id: str | None) -> dict[str, Any]:
    """Write one layer anew as a blob of the layout `out`, and return its descriptor."""
    draft = out / "layer"
    with blob.open("rb") as file, draft.open("wb") as target:
        raw, written = _Hashed(file), _Hashed(target)
        with plain(cast("BinaryIO", raw)) as inner:
            content = _Hashed(inner, bounds)
            sift(cast("BinaryIO", content), cast("BinaryIO", written), bounds)
            content.drain()
        raw.drain()
    _same(raw.digest.hexdigest(), digest, f"the layer {blob.name[:16]}")
    _same(content.digest.hexdigest(), diff_id, f"what is in the layer {blob.name[:16]}")
    return _enter(out, draft, written, "application/vnd.oci.image.layer.v1.tar")


def _same(found: str, said: str | None, what: str) -> None:
    if said is not None and said != f"sha256:{found}":
        raise Unfit(f"{what} is not what the image says: its SHA-256 is {found}")


def _enter(out: Path, draft: Path, written: _Hashed, media_type: str) -> dict[str, Any]:
    name = written.digest.hexdigest()
    draft.replace(out / "blobs" / "sha256" / name)
    return {"mediaType": media_type, "digest": f"sha256:{name}", "size": written.count}


def _put(out: Path, said: Any, media_type: str) -> dict[str, Any]:
    draft = out / "json"
    with draft.open("wb") as file:
        written = _Hashed(file)
        written.write(json.dumps(said).encode())
    return _enter(out, draft, written, media_type)


def write_layout(out: Path, layers: list[dict[str, Any]]) -> None:
    """Complete an OCI layout of these layers, one image with the tag `image`."""
    config = {
        "architecture": _PLATFORM[1],
        "os": _PLATFORM[0],
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
        "config": {},
    }
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _put(out, config, "application/vnd.oci.image.config.v1+json"),
        "layers": layers,
    }
    named = _put(out, manifest, manifest["mediaType"])
    named["annotations"] = {"org.opencontainers.image.ref.name": "image"}
    (out / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [named]}))
    (out / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))


def sift_layout(layout: Path, out: Path, bounds: Bounds) -> dict[str, Any]:
    """Write the one image of an OCI layout anew, and return its settings. Raises Unfit, TarError, OSError."""
    manifest = _blob_of(layout, _one_image(_json(layout / "index.json")))
    config = _blob_of(layout, _object(manifest.get("config"), "its config"))
    _check_platform(config)
    layers, diff_ids = manifest.get("layers"), _object(config.get("rootfs"), "its rootfs").get("diff_ids")
    if not isinstance(layers, list) or not isinstance(diff_ids, list) or len(layers) != len(diff_ids):
        raise Unfit("its manifest and its configuration name different layers")
    if len(layers) > _MOST_LAYERS:
        raise Unfit(f"it has {len(layers)} layers, where {_MOST_LAYERS} are allowed")
    done = []
    for layer, diff_id in zip(layers, diff_ids, strict=True):
        blob = _path_of(layout, _object(layer, "a layer"))
        done.append(sift_layer(blob, out, bounds, digest=f"sha256:{blob.name}", diff_id=str(diff_id)))
    write_layout(out, done)
    return _object(config.get("config") or {}, "its config")


def _one_image(index: dict[str, Any]) -> dict[str, Any]:
    manifests = index.get("manifests")
    if not isinstance(manifests, list) or len(manifests) != 1:
        raise Unfit("there is not exactly one image in it")
    return _object(manifests[0], "its manifest")


def _check_platform(config: dict[str, Any]) -> None:
    found = (str(config.get("os") or "linux"), str(config.get("architecture") or "unknown"))
    if found != _PLATFORM:
        raise Unfit(f"it is made for {'/'.join(found)[:100]}, and guests here are {'/'.join(_PLATFORM)}")


def _blob_of(layout: Path, descriptor: dict[str, Any]) -> dict[str, Any]:
    path = _path_of(layout, descriptor)
    found = _json(path)
    _same(hashlib.sha256(path.read_bytes()).hexdigest(), f"sha256:{path.name}", f"the blob {path.name[:16]}")
    return found


def _path_of(layout: Path, descriptor: dict[str, Any]) -> Path:
    kind, _, name = str(descriptor.get("digest")).partition(":")
    if kind != "sha256" or len(name) != 64 or not set(name) <= set("0123456789abcdef"):
        raise Unfit(f"a blob has the digest {descriptor.get('digest')!r}; SHA-256 is known here")
    path = layout / "blobs" / "sha256" / name
    if path.is_symlink() or not path.is_file():
        raise Unfit(f"the blob {name[:16]} is missing")
    return path


def _json(path: Path) -> dict[str, Any]:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _LARGEST_JSON:
        raise Unfit(f"{path.name[:16]} is missing, or too large")
    try:
        return _object(json.loads(path.read_bytes()), path.name[:16])
    except (ValueError, RecursionError) as error:
        raise Unfit(f"{path.name[:16]} is no JSON") from error


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unfit(f"{what} is no object")
    return value


def main(argv: list[str]) -> None:
    """Do what the module says."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    how, source, out = argv[0], Path(argv[1]), Path(argv[2])
    bounds = Bounds(int(argv[3]), int(argv[4]))
    try:
        (out / "blobs" / "sha256").mkdir(parents=True)
        found: dict[str, Any] = {}
        if how == "layers":
            found = sift_layout(source, out, bounds)
        else:
            write_layout(out, [sift_layer(source, out, bounds, digest=None, diff_id=None)])
    except Unfit as error:
        sys.exit(str(error))
    except (tarfile.TarError, EOFError, lzma.LZMAError, gzip.BadGzipFile, OSError, ValueError) as error:
        sys.exit(f"it cannot be read: {str(error)[:300] or type(error).__name__}")
    except MemoryError:
        sys.exit("it takes more memory to read than it is allowed")
    (out / "found.json").write_text(json.dumps({"settings": found, "left_out": bounds.left_out}))


if __name__ == "__main__":
    main(sys.argv[1:])
