"""The requests of the sandbox calls, checked before they leave."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torpor.errors import InvalidRequest
from torpor.sdk.foreign import checked
from torpor.wire.public import DEFAULT_TTL_SECONDS, CreateSandbox, LifecycleChange

GuestPath = str | os.PathLike[str]


def creation(**fields: Any) -> bytes:
    """Return the body of a create. Without mention of a ttl, a persistent sandbox has none. Raises InvalidRequest."""
    if fields["persistent"] and fields["ttl_seconds"] == DEFAULT_TTL_SECONDS:
        fields["ttl_seconds"] = None
    if fields["persistent"] and fields["ttl_seconds"] is not None:
        raise InvalidRequest("a persistent sandbox has no ttl", hint="leave out either `persistent` or `ttl_seconds`")
    given = {name: value for name, value in fields.items() if value is not None}
    return checked(CreateSandbox, **given).model_dump_json(exclude_none=True).encode()


def new_ttl(seconds: int) -> bytes:
    """Return the body of a change of the ttl. Raises InvalidRequest."""
    return checked(LifecycleChange, ttl_seconds=seconds).model_dump_json(exclude_none=True).encode()


def filters(
    metadata: Mapping[str, str] | None = None,
    state: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> dict[str, str]:
    """Return the query of a listing."""
    query = {f"metadata.{key}": value for key, value in (metadata or {}).items()}
    if state is not None:
        query["status"] = state
    if limit is not None:
        query["limit"] = str(limit)
    if cursor is not None:
        query["cursor"] = cursor
    return query


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
