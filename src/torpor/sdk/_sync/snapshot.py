"""Snapshots: durable checkpoints of a sandbox, in memory and on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Unpack

from torpor.errors import NotFound
from torpor.sdk._sync.client import Client
from torpor.sdk.http import FREEZE_SILENCE_S, Call
from torpor.sdk.making import Making
from torpor.sdk.orders import Identified, snapshot_filters, snapshot_id
from torpor.sdk.results import Page, Reach, Template, Verified, reach_of
from torpor.sdk.shared import shared_client
from torpor.wire.public import SnapshotPage, SnapshotView


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A checkpoint of one sandbox. It never changes, and outlives the sandbox; printed, it is its id.

        before = sbx.snapshot()
        sbx.exec("make risky-change")
        sbx.rollback(before)                      # the same sandbox, as it was
        other = Sandbox.restore(before)      # another one, from the same moment

    `kind`: `checkpoint` (asked for; kept until it is deleted), `hibernation` or `fork` (of each a sandbox keeps the
    newest). `size_bytes`: what it takes up on disk beyond what it shares with `parent_id`, the snapshot before it.
    `pause_ms`: how long the guest stood still for it, `took_ms`: until it was durable, both in milliseconds.
    `dirty_bytes`: memory the guest had written; `written_bytes`: how much of that was new. `network` and
    `secret_names`: what the sandbox might reach, and which secrets it held; the snapshot holds their values.
    """

    id: str
    sandbox_id: str
    kind: str
    name: str | None
    template: str
    created_at: datetime
    cpu: int
    memory_mb: int
    disk_gb: int
    size_bytes: int
    parent_id: str | None
    pause_ms: float
    took_ms: float
    dirty_bytes: int
    written_bytes: int
    network: Reach
    secret_names: tuple[str, ...]
    _client: Client = field(repr=False)

    @classmethod
    def of(cls, view: SnapshotView, client: Client) -> Snapshot:
        """Return the value of what came over the wire."""
        fields = dict(view) | {"network": reach_of(view.network), "secret_names": tuple(view.secret_names)}
        return cls(**fields, _client=client)

    @classmethod
    def get(cls, id: str, *, client: Client | None = None) -> Snapshot:
        """Return the snapshot with this id. Raises NotFound."""
        call = Call("GET", f"/snapshots/{snapshot_id(id)}")
        client = client or shared_client()
        return cls.of(client.fetch_as(SnapshotView, call), client)

    @classmethod
    def list(
        cls,
        sandbox: Identified | str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        *,
        client: Client | None = None,
    ) -> Page[Snapshot]:
        """Return one page of snapshots, newest first: those of a sandbox (or its id), or all; at most `limit`.

        The page is a list; its `next_cursor`, given as `cursor`, asks for the next one and is None on the last.
        """
        call = Call("GET", "/snapshots", params=snapshot_filters(sandbox, limit, cursor))
        client = client or shared_client()
        page = client.fetch_as(SnapshotPage, call)
        return Page([cls.of(view, client) for view in page.items], page.next_cursor)

    @classmethod
    def iterate(cls, sandbox: Identified | str | None = None, *, client: Client | None = None) -> Iterator[Snapshot]:
        """Yield all snapshots of a sandbox (or its id), or all there are, newest first, asking for page after page."""
        cursor: str | None = None
        while True:
            page = cls.list(sandbox, cursor=cursor, client=client)
            yield from page
            cursor = page.next_cursor
            if cursor is None:
                return

    def verify(self) -> Verified:
        """Let the server read all of it and compare every byte with what was written.

        Raises SnapshotCorrupt if one differs, NotFound if it was deleted.
        """
        call = Call("POST", f"/snapshots/{self.id}/verify", repeatable=True, silence_s=FREEZE_SILENCE_S)
        return self._client.fetch_as(Verified, call)

    def to_template(self, name: str, **making: Unpack[Making]) -> Template:
        """Make a template of it, whose sandboxes begin where it was taken, and return that.

        Raises Conflict if it holds secrets, BuildFailed, and what `client.templates.build` raises.
        """
        making["snapshot"] = self.id
        return self._client.templates.build(name, **making)

    def delete(self) -> None:
        """Remove it and give its space back. What was made from it lives on. Deleting it again does nothing."""
        # Where nobody knows it any more, what was asked for holds.
        with contextlib.suppress(NotFound):
            self._client.fetch(Call("DELETE", f"/snapshots/{self.id}"))

    def __str__(self) -> str:
        return self.id

    def __format__(self, spec: str) -> str:
        return format(self.id, spec)

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, Snapshot) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)
