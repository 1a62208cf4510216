"""The requests of the sandbox calls, checked before they leave."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

from torpor.errors import InvalidRequest
from torpor.model.ids import is_sandbox_id, is_snapshot_id
from torpor.sdk.foreign import checked, checked_id
from torpor.wire.public import (
    DEFAULT_TTL_SECONDS,
    CreateFromSnapshot,
    ForkSandbox,
    LifecycleChange,
    RollBack,
    TakeSnapshot,
    WakeUp,
)

GuestPath = str | os.PathLike[str]


class Identified(Protocol):
    """A sandbox or a snapshot: what its id can stand for."""

    @property
    def id(self) -> str: ...


def creation(**fields: Any) -> bytes:
    """Return the body of a create or restore. Without mention of a ttl, a persistent sandbox has none.

    Raises InvalidRequest.
    """
    if fields["persistent"] and fields["ttl_seconds"] == DEFAULT_TTL_SECONDS:
        fields["ttl_seconds"] = None
    _refuse_ttl_of_persistent(fields["ttl_seconds"], fields["persistent"])
    given = {name: value for name, value in fields.items() if value is not None}
    unread = {"template"} if "from_snapshot" in given else set()
    return checked(CreateFromSnapshot, **given).model_dump_json(exclude_none=True, exclude=unread).encode()


def forking(count: int | None, metadata: Mapping[str, str] | None, ttl_seconds: int | None, persistent: bool) -> bytes:
    """Return the body of a fork. Raises InvalidRequest."""
    _refuse_ttl_of_persistent(ttl_seconds, persistent)
    order = checked(
        ForkSandbox, count=count, metadata=dict(metadata or {}), ttl_seconds=ttl_seconds, persistent=persistent
    )
    return order.model_dump_json(exclude_none=True).encode()


def taking(name: str | None) -> bytes:
    """Return the body of a snapshot. Raises InvalidRequest."""
    return checked(TakeSnapshot, name=name).model_dump_json(exclude_none=True).encode()


def waking(ttl_seconds: int) -> bytes:
    """Return the body of a wake that gives a new ttl. Raises InvalidRequest."""
    return checked(WakeUp, ttl_seconds=ttl_seconds).model_dump_json(exclude_none=True).encode()


def rolling_back(snapshot: Identified | str) -> bytes:
    """Return the body of a rollback. Raises InvalidRequest."""
    return checked(RollBack, snapshot=snapshot_id(snapshot)).model_dump_json().encode()


def snapshot_id(snapshot: Identified | str) -> str:
    """Return the id of a snapshot. Raises InvalidRequest for what is none, and says so of a sandbox."""
    id = checked_id(_id_of(snapshot), "snapshot")
    if is_sandbox_id(id):
        raise InvalidRequest(f"{id} is a sandbox, and a snapshot is needed", hint="`torpor snapshots` shows the ids")
    return id


def sandbox_id(sandbox: Identified | str) -> str:
    """Return the id of a sandbox. Raises InvalidRequest for what is none, and says so of a snapshot."""
    id = checked_id(_id_of(sandbox))
    if is_snapshot_id(id):
        raise InvalidRequest(f"{id} is a snapshot, and a sandbox is needed", hint="`torpor list` shows the ids")
    return id


def _id_of(thing: Identified | str) -> str:
    # What has no id goes on as it is, and is refused by its look.
    return getattr(thing, "id", thing)  # type: ignore[arg-type]


def _refuse_ttl_of_persistent(ttl_seconds: int | None, persistent: bool) -> None:
    if persistent and ttl_seconds is not None:
        raise InvalidRequest("a persistent sandbox has no ttl", hint="leave out either `persistent` or `ttl_seconds`")


def new_ttl(seconds: int) -> bytes:
    """Return the body of a change of the ttl. Raises InvalidRequest."""
    return checked(LifecycleChange, ttl_seconds=seconds).model_dump_json(exclude_none=True).encode()


def filters(
    metadata: Mapping[str, str] | None = None,
    state: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> dict[str, str]:
    """Return the query of a listing of sandboxes."""
    query = {f"metadata.{key}": value for key, value in (metadata or {}).items()}
    return query | _given(status=state, limit=limit, cursor=cursor)


def snapshot_filters(sandbox: Identified | str | None, limit: int | None, cursor: str | None) -> dict[str, str]:
    """Return the query of a listing of snapshots. Raises InvalidRequest."""
    return _given(sandbox_id=None if sandbox is None else sandbox_id(sandbox), limit=limit, cursor=cursor)


def _given(**values: object) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def guest_path(path: GuestPath) -> str:
    """Return a path of the guest as text. Raises InvalidRequest unless it is absolute and free of NUL."""
    text = os.fspath(path)
    if not isinstance(text, str) or not text.startswith("/") or "\0" in text:
        raise InvalidRequest(f"{text!r} is not an absolute path in the sandbox", hint="paths start with /")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{text!r} is not valid Unicode, and cannot be sent") from error
    return text


def file_query(path: GuestPath, *, mode: int | None = None, user: str | None = None, **more: bool) -> dict[str, str]:
    """Return the query of a file call. `mode` is sent in octal digits."""
    query = {"path": guest_path(path)}
    if mode is not None:
        if not isinstance(mode, int) or not 0 <= mode <= 0o7777:
            raise InvalidRequest(f"mode has to be permission bits such as 0o644, not {mode!r}")
        query["mode"] = f"{mode:o}"
    if user is not None:
        query["user"] = user
    query.update({name: "true" for name, value in more.items() if value})
    return query
