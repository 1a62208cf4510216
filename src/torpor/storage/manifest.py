"""The manifest of what is frozen: its record, its parts, and a checksum of all that, as JSON.

Templates and snapshots are numbered apart. Older numbers are read, as what they lack has a meaning; one that is not
known here is refused by name. A text that does not match its own checksum is damaged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from torpor.errors import SnapshotCorrupt, Unsupported
from torpor.model.snapshot import SNAPSHOT_FORMAT, Snapshot
from torpor.model.template import MANIFEST_FORMAT, Template

_FORMATS = {"template": MANIFEST_FORMAT, "snapshot": SNAPSHOT_FORMAT}
_OLDEST = {"template": 2, "snapshot": 1}


@dataclass(frozen=True, slots=True)
class Part:
    """One file of what is frozen: its size in bytes, when it was last changed (in nanoseconds, as `stat` has it), and
    the SHA-256 of the small ones, in hex.
    """

    size: int
    mtime_ns: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says: either a template's record or a snapshot's, and the parts."""

    record: Template | Snapshot
    parts: Mapping[str, Part]


_template = TypeAdapter(Template)
_snapshot = TypeAdapter(Snapshot)
_parts = TypeAdapter(dict[str, Part])


def print_manifest(manifest: Manifest) -> str:
    """Return the text of a manifest."""
    record = manifest.record
    what, written = (
        ("template", _template.dump_python(record, mode="json"))
        if isinstance(record, Template)
        else ("snapshot", _snapshot.dump_python(record, mode="json"))
    )
    parts = _parts.dump_python(dict(manifest.parts), mode="json")
    said: dict[str, Any] = {"what": what, "format": _FORMATS[what], "record": written, "parts": parts}
    return json.dumps({**said, "checksum": _checksum(said)}, indent=2) + "\n"


def parse_manifest(text: bytes, title: str, mend: str) -> Manifest:
    """Read a manifest. `title` and `mend` say whose it is, and what to do if it cannot be read.

    Raises SnapshotCorrupt, or Unsupported for another format, by name.
    """
    try:
        said: dict[str, Any] = json.loads(text)
        what, number = said.get("what", "template"), int(said["format"])  # the first format did not say what it is
        readable = _FORMATS[what]
        manifest = _checked(said, what) if _OLDEST[what] <= number <= readable else None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SnapshotCorrupt(f"the manifest of {title} is damaged", hint=mend) from error
    if manifest is None:
        raise Unsupported(f"{title} is in format {number}, and this version reads up to {readable}", hint=mend)
    return manifest


def _checked(said: dict[str, Any], what: str) -> Manifest:
    """Return what a manifest of a known format says. Raises ValueError, TypeError or KeyError where it is damaged."""
    if said.pop("checksum") != _checksum(said):
        raise ValueError("the checksum differs")
    adapter: TypeAdapter[Template] | TypeAdapter[Snapshot] = _template if what == "template" else _snapshot
    return Manifest(adapter.validate_python(said["record"]), _parts.validate_python(said["parts"]))


def _checksum(said: Mapping[str, Any]) -> str:
    canonical = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
