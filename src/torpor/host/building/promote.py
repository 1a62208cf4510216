"""A template of a snapshot: its sandboxes begin where the snapshot was taken, with what ran then."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from datetime import UTC, datetime

from torpor.errors import InvalidRequest
from torpor.host.building.workshop import Workshop
from torpor.kit.shielded import shielded
from torpor.model.ids import SnapshotId, TemplateName, is_snapshot_id
from torpor.model.template import Template
from torpor.storage.frozen import MANIFEST, PARTS, Frozen, Sealed, verify
from torpor.storage.images import digest_of
from torpor.storage.snapshots import Snapshots
from torpor.storage.templates import Templates, write_manifest
from torpor.wire.builds import BuildOrder, SnapshotSource


async def promote(shop: Workshop, order: BuildOrder, source: SnapshotSource) -> Template:
    """Publish a snapshot as a template. Its files are shared, so it takes no room; both can be removed on their own.

    Raises NotFound, SnapshotCorrupt, Unsupported, InvalidRequest for one of a sandbox with volumes.
    """
    if not is_snapshot_id(source.snapshot):
        raise InvalidRequest(f"snapshot: {source.snapshot!r} is no id of a snapshot")
    frozen = await asyncio.to_thread(Snapshots(shop.layout).open, SnapshotId(source.snapshot))
    if frozen.snapshot is not None and frozen.snapshot.volumes:
        raise InvalidRequest(
            f"the snapshot {source.snapshot} was taken with volumes in its sandbox, and a template has none",
            hint="take one of a sandbox without volumes",
        )
    with shop.step("snapshot", f"what is in {source.snapshot}"):
        return await shielded(asyncio.to_thread(_publish, shop, frozen, TemplateName(order.template), source.snapshot))


def _publish(shop: Workshop, frozen: Frozen, name: TemplateName, snapshot: str) -> Template:
    verify(frozen)  # once, for all that will come of it
    template = dataclasses.replace(
        frozen.template,
        name=name,
        digest=digest_of("snapshot", snapshot),
        created_at=datetime.now(UTC),
        snapshot=snapshot,
    )
    with Templates(shop.layout).publish(name) as draft:
        for part in PARTS:
            if part != MANIFEST:
                os.link(frozen.folder / part, draft / part)
        size = frozen.snapshot.size_bytes if frozen.snapshot is not None else 0
        return write_manifest(draft, template, Sealed(frozen.parts, size))
