"""Snapshots by descent: which was taken after which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Generic, Protocol, TypeVar


class Descended(Protocol):
    """What is known of a snapshot here."""

    @property
    def id(self) -> str: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def size_bytes(self) -> int: ...


S = TypeVar("S", bound=Descended)


@dataclass
class Branch(Generic[S]):
    """A snapshot, and what was taken after it, the earliest first."""

    snapshot: S
    branches: list[Branch[S]] = field(default_factory=list)


class Snapshots(list[S]):
    """The snapshots of a sandbox, newest first. `tree` has them by descent, and `print` draws that."""

    def tree(self) -> list[Branch[S]]:
        """Return those whose parent is not among them, earliest first, each with what was taken after it."""
        branches = {one.id: Branch(one) for one in sorted(self, key=lambda one: one.created_at)}
        roots = []
        for branch in branches.values():
            above = branches.get(branch.snapshot.parent_id or "")
            # A parent is older, so that nothing can hang below itself.
            if above is None or above.snapshot.created_at > branch.snapshot.created_at or above is branch:
                roots.append(branch)
            else:
                above.branches.append(branch)
        return roots

    def __str__(self) -> str:
        return "\n".join(_drawn(self.tree(), datetime.now(UTC))) or "no snapshots"


def _drawn(branches: Iterable[Branch[S]], now: datetime, indent: str = "") -> Iterator[str]:
    branches = list(branches)
    for branch in branches:
        is_last = branch is branches[-1]
        yield indent + ("└── " if is_last else "├── ") + _described(branch.snapshot, now)
        yield from _drawn(branch.branches, now, indent + ("    " if is_last else "│   "))


def _described(one: Descended, now: datetime) -> str:
    age_s = max(0, round((now - one.created_at).total_seconds()))
    age = f"{age_s} s" if age_s < 120 else f"{age_s // 60} min" if age_s < 7200 else f"{age_s // 3600} h"
    name = f"{one.name!r}, " if one.name else ""
    return f"{one.id}  {name}{one.kind}, {one.size_bytes / 2**20:.1f} MiB, {age} ago"
