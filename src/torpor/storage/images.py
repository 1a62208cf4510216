"""Immutable images by the digest of what they are made from: made once, shared, never changed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from torpor.kit.files import draft_folder, remove_tree
from torpor.storage.layout import Layout


def digest_of(*inputs: object) -> str:
    """Return a short digest of JSON values or records: 16 hex characters of SHA-256 over their canonical JSON."""
    text = json.dumps(inputs, sort_keys=True, default=_fields)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _fields(record: object) -> dict[str, object]:
    """Return a record's fields, so that no class's name is part of a digest."""
    if not dataclasses.is_dataclass(record) or isinstance(record, type):
        raise TypeError(f"{type(record).__name__} has no digest")
    return dataclasses.asdict(record)


def digest_of_folder(folder: Path) -> str:
    """Return a digest of all the source files below a folder, by name and content."""
    files = sorted(path for path in folder.rglob("*.py") if path.is_file())
    return digest_of(*((str(path.relative_to(folder)), path.read_text()) for path in files))


class Images:
    """The folder of images."""

    def __init__(self, layout: Layout) -> None:
        self._folder = layout.images

    def path(self, name: str) -> Path:
        """Return the folder of an image by its name, `<kind>-<digest>`."""
        return self._folder / name

    async def ensure(self, name: str, make: Callable[[Path], Awaitable[None]], *, again: bool = False) -> bool:
        """See to it that the image is there, by `make` filling a draft folder; return whether it had to be made.

        With `again` it is made even if it is there, and replaces it; whoever has the old files open keeps them.
        """
        target = self.path(name)
        if target.exists() and not again:
            return False
        with draft_folder(target) as draft:
            await make(draft)
            for entry in draft.iterdir():
                entry.chmod(0o400)
        return True

    def collect(self, used: Collection[str]) -> list[str]:
        """Remove the images that are not among `used` and return their names."""
        unused = [
            entry for entry in self._folder.iterdir() if entry.name not in used and not entry.name.startswith(".")
        ]
        for entry in unused:
            remove_tree(entry)
        return sorted(entry.name for entry in unused)
