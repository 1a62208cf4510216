"""A program that files are brought into a guest by: a tar archive from its input, unpacked below the root folder.

    python3 -I -S unpack.py [--chown USER[:GROUP]] [--into FOLDER]

Names in the archive are paths below FOLDER, in the guest. Folders that are there stay as they are, but for their
content; files are replaced. Links in the way of a path are followed, as the guest's own programs would.
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import stat
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, so the package is not found by itself

from torpor_guest.accounts import Account, Accounts
from torpor_guest.refusal import Refusal

_PIECE = 1024 * 1024


def main() -> None:
    """Unpack, and end with 1 and one line of words where that fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--chown", default=None)
    parser.add_argument("--into", default="/")
    options = parser.parse_args()
    os.umask(0)
    try:
        owner = None if options.chown is None else Accounts().of_image(options.chown)
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            unpack(archive, owner, options.into)
    except Refusal as error:
        sys.exit(f"unpack: {error}")
    except (OSError, tarfile.TarError) as error:
        sys.exit(f"unpack: {error}")


def unpack(archive: tarfile.TarFile, owner: Account | None, root: str = "/") -> None:
    """Unpack an archive below `root`; with `owner` all of it is his. Raises OSError, TarError."""
    folders: list[tuple[str, tarfile.TarInfo]] = []
    for member in archive:
        path = os.path.join(root, member.name.lstrip("/"))
        _make_parents(path, owner)
        if member.isdir():
            if not os.path.isdir(path):
                _clear(path)
                os.mkdir(path, 0o700)
                folders.append((path, member))
            continue
        _clear(path)
        if member.issym():
            os.symlink(member.linkname, path)
            _own(path, member, owner)
        elif member.islnk():
            os.link(os.path.join(root, member.linkname.lstrip("/")), path, follow_symlinks=False)
        elif member.isreg():
            _write(archive, member, path)
            _own(path, member, owner)
    for path, member in reversed(folders):  # last, so that they could be filled
        _own(path, member, owner)


def _make_parents(path: str, owner: Account | None) -> None:
    missing: list[str] = []
    folder = os.path.dirname(path)
    while folder != "/" and not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for each in reversed(missing):
        os.mkdir(each, 0o755)
        if owner is not None:
            os.chown(each, owner.uid, owner.gid)


def _clear(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "a folder is in the way of a file", path)
    os.unlink(path)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    source = archive.extractfile(member)
    if source is None:
        raise tarfile.ReadError(f"{member.name} has no content")
    with open(path, "xb") as file:
        shutil.copyfileobj(source, file, _PIECE)


def _own(path: str, member: tarfile.TarInfo, owner: Account | None) -> None:
    uid, gid = (member.uid, member.gid) if owner is None else (owner.uid, owner.gid)
    os.lchown(path, uid, gid)
    if not member.issym():
        os.chmod(path, member.mode & 0o7777)
    os.utime(path, (member.mtime, member.mtime), follow_symlinks=False)


if __name__ == "__main__":
    main()
