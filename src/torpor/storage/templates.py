"""Baked templates on disk: published whole, opened with a check, listed, removed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from torpor.errors import NotFound, SnapshotCorrupt, Unsupported
from torpor.kit.files import DRAFT_PREFIX, TRASH_PREFIX, draft_folder, remove_tree
from torpor.model.ids import TemplateName, is_template_name
from torpor.model.template import Template
from torpor.storage import frozen
from torpor.storage.frozen import MANIFEST, Frozen, Sealed
from torpor.storage.layout import Layout

_log = structlog.get_logger(__name__)


def write_manifest(draft: Path, template: Template, sealed: Sealed) -> Template:
    """Write the manifest of a sealed draft, which is durable then; return the template with its size filled in.

    Raises OutOfSpace where the host's disk is full, FreezeFailed.
    """
    sized = dataclasses.replace(template, size_bytes=sealed.size_bytes)
    frozen.write_record(draft, sized, sealed)
    return sized


class Templates:
    """The folder of templates. What `open` returns stays valid while the template is not removed."""

    def __init__(self, layout: Layout) -> None:
        self._folder = layout.templates

    def path(self, name: TemplateName) -> Path:
        """Return the folder of a template."""
        return self._folder / name

    def get(self, name: TemplateName) -> Template:
        """Return a template by its manifest alone. Raises NotFound, SnapshotCorrupt, Unsupported."""
        return self._read(name).template

    def open(self, name: TemplateName) -> Frozen:
        """Return a template to be restored, its parts checked as `frozen.check` does.

        Raises NotFound, SnapshotCorrupt (damaged), Unsupported (a format this version cannot read).
        """
        found = self._read(name)
        frozen.check(found)
        return found

    def _read(self, name: TemplateName) -> Frozen:
        build = f"run `torpor template build {name}`"
        if not is_template_name(name) or not (self.path(name) / MANIFEST).exists():
            there = ", ".join(self.names()) or "none"
            hint = build if is_template_name(name) else None
            raise NotFound(f"there is no template {name!r} (there is: {there})", hint=hint)
        title = f"the template {name!r}"
        found = frozen.read(self.path(name), title, build)
        if found.snapshot is not None or found.template.name != name:
            raise SnapshotCorrupt(f"{title} holds {found.title}", hint=build)
        return found

    def names(self) -> list[TemplateName]:
        """Return the names of all templates, sorted."""
        hidden = (DRAFT_PREFIX, TRASH_PREFIX)
        entries = (entry.name for entry in self._folder.iterdir() if (entry / MANIFEST).exists())
        return sorted(TemplateName(name) for name in entries if not name.startswith(hidden))

    def all(self) -> list[Template]:
        """Return every template whose manifest can be read, by name; the log tells of one that cannot."""
        found: list[Template] = []
        for name in self.names():
            try:
                found.append(self.get(name))
            except (SnapshotCorrupt, Unsupported) as error:
                _log.warning("a template cannot be read", template=name, error=error.message, hint=error.hint)
        return found

    @contextmanager
    def publish(self, name: TemplateName) -> Iterator[Path]:
        """Yield a draft folder that becomes the template when the block ends well; an older one is replaced."""
        with draft_folder(self.path(name)) as draft:
            yield draft

    def remove(self, name: TemplateName) -> None:
        """Remove a template, also a damaged one; sandboxes made from it run on. Raises NotFound."""
        if name not in self.names():
            raise NotFound(f"there is no template {name!r}")
        remove_tree(self.path(name))
