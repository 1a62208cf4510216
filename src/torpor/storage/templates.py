"""Baked templates on disk: published whole, opened with a check, listed, removed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from torpor.errors import NotFound, SnapshotCorrupt, Unsupported
from torpor.kit.files import DRAFT_PREFIX, TRASH_PREFIX, allocated_bytes, draft_folder, remove_tree
from torpor.model.ids import TemplateName, is_template_name
from torpor.model.template import MANIFEST_FORMAT, Fingerprint, Template
from torpor.storage.layout import Layout

_log = structlog.get_logger(__name__)

MANIFEST, MEMORY, STATE, DISK = "manifest.json", "memory", "state", "disk.qcow2"


class Templates:
    """The folder of templates. What `open` returns stays valid while the template is not removed."""

    def __init__(self, layout: Layout) -> None:
        self._folder = layout.templates

    def path(self, name: TemplateName) -> Path:
        """Return the folder of a template's snapshot."""
        return self._folder / name

    def open(self, name: TemplateName) -> Template:
        """Return a template.

        Raises NotFound, SnapshotCorrupt (damaged), Unsupported (a format this version cannot read).
        """
        if not is_template_name(name):
            raise NotFound(f"there is no template {name!r}")
        try:
            text = (self.path(name) / MANIFEST).read_text()
        except FileNotFoundError as error:
            there = ", ".join(self.names()) or "none"
            raise NotFound(
                f"there is no template {name!r} (there is: {there})", hint=f"run `torpor template build {name}`"
            ) from error
        template = parse_manifest(text, name)
        missing = [part for part in (MEMORY, STATE, DISK) if not (self.path(name) / part).exists()]
        if missing:
            raise SnapshotCorrupt(
                f"the template {name!r} lacks its file {missing[0]!r}",
                hint=f"run `torpor template build {name}`",
            )
        return template

    def names(self) -> list[TemplateName]:
        """Return the names of all templates, sorted."""
        hidden = (DRAFT_PREFIX, TRASH_PREFIX)
        entries = (entry.name for entry in self._folder.iterdir() if (entry / MANIFEST).exists())
        return sorted(TemplateName(name) for name in entries if not name.startswith(hidden))

    def all(self) -> list[Template]:
        """Return every template that can be opened, by name; the log tells of one that cannot."""
        found: list[Template] = []
        for name in self.names():
            try:
                found.append(self.open(name))
            except (SnapshotCorrupt, Unsupported) as error:
                _log.warning("a template cannot be opened", template=name, error=error.message, hint=error.hint)
        return found

    @contextmanager
    def publish(self, name: TemplateName) -> Iterator[Path]:
        """Yield a draft folder that becomes the template when the block ends well; an older one is replaced."""
        with draft_folder(self.path(name)) as draft:
            yield draft
            for part in (MEMORY, STATE, DISK):
                (draft / part).chmod(0o400)

    def remove(self, name: TemplateName) -> None:
        """Remove a template, also a damaged one; sandboxes made from it run on. Raises NotFound."""
        if name not in self.names():
            raise NotFound(f"there is no template {name!r}")
        remove_tree(self.path(name))


def write_manifest(folder: Path, template: Template) -> Template:
    """Write the manifest of a draft and return the template with its size filled in."""
    sized = dataclasses.replace(template, size_bytes=allocated_bytes(folder))
    record = {"format": MANIFEST_FORMAT, **dataclasses.asdict(sized), "created_at": sized.created_at.isoformat()}
    (folder / MANIFEST).write_text(json.dumps(record, indent=2) + "\n")
    return sized


def parse_manifest(text: str, name: TemplateName) -> Template:
    """Read a manifest. Raises SnapshotCorrupt, or Unsupported for another format, by name."""
    mend = f"run `torpor template build {name}`"
    try:
        record: dict[str, Any] = json.loads(text)
        if record.pop("format") != MANIFEST_FORMAT:
            raise Unsupported(f"the template {name!r} is in a format that this version does not read", hint=mend)
        record["created_at"] = datetime.fromisoformat(record["created_at"])
        record["fingerprint"] = Fingerprint(**record["fingerprint"])
        return Template(**record)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SnapshotCorrupt(f"the manifest of the template {name!r} is damaged", hint=mend) from error
