"""Secrets: their values go to the host, and nothing but their names is known here.

A snapshot holds the values, in its memory image. So a sandbox that was given secrets of its own when it was made does
not get back those of the sandbox it was made from: going back to where it came from leaves it without any.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import SecretStr

from torpor.control.store.contract import SnapshotRecord
from torpor.model.sandbox import Sandbox
from torpor.wire.reach import opened

# As requests have them: None keeps what is in the memory that comes to life.
Given = Mapping[str, SecretStr] | None


def values_of(given: Given) -> dict[str, str] | None:
    """Return secrets as the host is told them."""
    return None if given is None else opened(given)


def names_of(given: Given, kept: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names of the secrets that a sandbox will hold, in order, where it would keep `kept`."""
    return kept if given is None else tuple(sorted(given))


def told_of(given: Given) -> list[str] | None:
    """Return what a request says of secrets but for their values, as a JSON value."""
    return None if given is None else sorted(given)


def on_rollback(sandbox: Sandbox, record: SnapshotRecord) -> dict[str, str] | None:
    """Return what takes the place of the secrets in a snapshot when a sandbox goes back to it (None: they stay)."""
    return {} if sandbox.has_own_secrets and record.sandbox != sandbox.id else None


def names_after(sandbox: Sandbox, record: SnapshotRecord) -> tuple[str, ...]:
    """Return the names of the secrets that a sandbox holds after it went back to a snapshot."""
    return record.secret_names if on_rollback(sandbox, record) is None else ()
