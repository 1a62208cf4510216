"""Which snapshots nobody needs any more, and which are in use."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from torpor.control.service.shelf import Shelf, superfluous
from torpor.control.store.contract import SnapshotRecord
from torpor.model.ids import SandboxId, SnapshotId, TemplateName, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.sandbox import Care, Sandbox
from torpor.model.snapshot import Kind

ONE = SnapshotId("snp-1111111111111111")
OWNER = Sandbox(
    id=SandboxId("sbx-1"),
    workspace=WorkspaceId("default"),
    template=TemplateName("base"),
    state=State.RUNNING,
    created_at=datetime(2030, 1, 1, tzinfo=UTC),
    cpu=1,
    memory_mb=512,
    disk_gb=8,
    care=Care(checkpoint_keep=2),
)


def shot(number: int, kind: Kind) -> SnapshotRecord:
    return SnapshotRecord(
        id=SnapshotId(f"snp-{number}"),
        workspace=WorkspaceId("default"),
        sandbox=SandboxId("sbx-1"),
        kind=kind,
        template=TemplateName("base"),
        created_at=datetime(2030, 1, 1, tzinfo=UTC),
        cpu=1,
        memory_mb=512,
        disk_gb=8,
    )


@pytest.mark.parametrize(
    ("kinds", "living", "spare"),
    [
        ("", True, []),
        ("c", True, []),
        ("ccc", True, []),
        ("ccc", False, []),
        ("h", True, []),
        ("h", False, [0]),
        ("hhh", True, [1, 2]),
        ("chfchf", True, [4, 5]),
        ("chfchf", False, [1, 2, 4, 5]),
        ("aaca", True, [3]),
        ("aaca", False, [0, 1, 3]),
    ],
)
def test_of_each_kind_that_comes_by_itself_the_newest_are_kept_as_long_as_their_sandbox(
    kinds: str, living: bool, spare: list[int]
) -> None:
    of = {"c": Kind.CHECKPOINT, "h": Kind.HIBERNATION, "f": Kind.FORK, "a": Kind.AUTOMATIC}
    kept = [shot(number, of[letter]) for number, letter in enumerate(kinds)]
    assert superfluous(kept, OWNER if living else None) == [kept[number] for number in spare]


def test_a_snapshot_is_in_use_until_its_last_user_is_done() -> None:
    shelf = Shelf()
    with shelf.using(ONE):
        with shelf.using(ONE), shelf.using(None):
            assert shelf.is_used(ONE)
        assert shelf.is_used(ONE)
    assert not shelf.is_used(ONE)


def test_a_stray_is_news_once() -> None:
    shelf = Shelf()
    assert [shelf.is_news(name) for name in ("a", "a", "b")] == [True, False, True]
