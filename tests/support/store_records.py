"""Both stores, and records to put into them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from torpor.control.store.contract import SnapshotRecord, Store
from torpor.control.store.sql import open_store
from torpor.model.ids import SandboxId, SnapshotId, TemplateName, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.model.snapshot import Kind
from torpor.testing.store import MemoryStore

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HERE = WorkspaceId("default")


def made(number: int, **changes: object) -> Sandbox:
    sandbox = Sandbox(
        id=SandboxId(f"sbx-{number:016d}"),
        workspace=HERE,
        template=TemplateName("base"),
        state=State.CREATING,
        created_at=NOON + timedelta(seconds=number, microseconds=number),
        cpu=1,
        memory_mb=512,
        disk_gb=8,
    )
    return replace(sandbox, **changes)  # type: ignore[arg-type]  # the tests name fields


def shot(number: int, sandbox: int = 1, **changes: object) -> SnapshotRecord:
    record = SnapshotRecord(
        id=SnapshotId(f"snp-{number:016d}"),
        workspace=HERE,
        sandbox=made(sandbox).id,
        kind=Kind.CHECKPOINT,
        template=TemplateName("base"),
        created_at=NOON + timedelta(seconds=number, microseconds=number),
        cpu=1,
        memory_mb=512,
        disk_gb=8,
    )
    return replace(record, **changes)  # type: ignore[arg-type]  # the tests name fields


@asynccontextmanager
async def opened(kind: Literal["sql", "memory"], folder: Path) -> AsyncIterator[Store]:
    """Yield a store: one on a database in the folder, or one in memory."""
    store: Store = await open_store(folder / "torpor.db") if kind == "sql" else MemoryStore()
    yield store
    await store.aclose()
