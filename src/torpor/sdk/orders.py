"""The requests of the sandbox calls, checked before they leave."""

from __future__ import annotations

import base64
import json
import os
import signal as signals
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol, TypedDict

from torpor.errors import InvalidRequest
from torpor.model.ids import is_sandbox_id, is_snapshot_id
from torpor.sdk.foreign import checked, checked_id
from torpor.sdk.http import Query
from torpor.sdk.volumes import wishes_of
from torpor.wire.processes import MAX_INPUT_BYTES, StartProcess, TerminalSize
from torpor.wire.public import (
    DEFAULT_TTL_SECONDS,
    MAX_STDIN_BYTES,
    CreateFromSnapshot,
    ExecCommand,
    ForkSandbox,
    Hibernate,
    LifecycleChange,
    RollBack,
    TakeSnapshot,
    WakeUp,
)
from torpor.wire.reach import NetworkChange, opened
from torpor.wire.trees import ForkTree, Promote

# What a sandbox may reach: "internet", "none", or a list of host names and IPv4 networks.
Reachable = str | Sequence[str]
GuestPath = str | os.PathLike[str]


class Identified(Protocol):
    """A sandbox or a snapshot: what its id can stand for."""

    @property
    def id(self) -> str: ...


class Care(TypedDict, total=False):
    """What the server is to do for a sandbox of its own accord; each is a keyword of `create` and `restore`.

    `idle_timeout_seconds`: after so long with nothing in flight `on_idle` is done to it, "hibernate" (as it is unless
    said otherwise) or "delete"; without it idleness changes nothing. `on_crash`: if its machine dies it is "fail"ed (as
    it is unless said otherwise), or the server puts it back to its last snapshot with "restore". A checkpoint is taken
    every `checkpoint_every_seconds` of running, and after every `checkpoint_every_execs` commands; of these the newest
    `checkpoint_keep` (3) are kept.
    """

    idle_timeout_seconds: int | None
    on_idle: Literal["hibernate", "delete"]
    on_crash: Literal["fail", "restore"]
    checkpoint_every_seconds: int | None
    checkpoint_every_execs: int | None
    checkpoint_keep: int


def creation(care: Care, **fields: Any) -> bytes:
    """Return the body of a create or restore. Without mention of a ttl, a persistent sandbox has none.

    Raises InvalidRequest, and TypeError for a keyword that is none.
    """
    for name in care.keys() - Care.__annotations__.keys():
        raise TypeError(f"a sandbox is not made with the keyword argument {name!r}")
    fields |= care
    if fields["persistent"] and fields["ttl_seconds"] == DEFAULT_TTL_SECONDS:
        fields["ttl_seconds"] = None
    _refuse_ttl_of_persistent(fields["ttl_seconds"], fields["persistent"])
    fields |= {"network": _reach(fields["network"]), "secrets": _secrets(fields["secrets"])}
    fields["volumes"] = wishes_of(fields.get("volumes"))
    given = {name: value for name, value in fields.items() if value is not None}
    unread = {"template"} if "from_snapshot" in given else set()
    return _whole(checked(CreateFromSnapshot, **given), unread)


@dataclass(frozen=True)
class Forking:
    """What is said of the children of a fork."""

    metadata: Mapping[str, str] | None
    ttl_seconds: int | None
    persistent: bool
    secrets: Mapping[str, str] | None = field(repr=False)
    network: Reachable | None

    def body(self, count: int | None) -> bytes:
        """Return the body of a fork of so many. Raises InvalidRequest."""
        return self._body(ForkSandbox, count)

    def tree(self, count: int) -> bytes:
        """Return the body of a fork tree of so many. Raises InvalidRequest."""
        return self._body(ForkTree, count)

    def _body(self, model: type[ForkSandbox], count: int | None) -> bytes:
        _refuse_ttl_of_persistent(self.ttl_seconds, self.persistent)
        order = checked(
            model,
            count=count,
            metadata=dict(self.metadata or {}),
            ttl_seconds=self.ttl_seconds,
            persistent=self.persistent,
            secrets=_secrets(self.secrets),
            network=_reach(self.network),
        )
        return _whole(order)


def reaching(network: Reachable) -> bytes:
    """Return the body of a change of what a sandbox may reach. Raises InvalidRequest."""
    return checked(NetworkChange, network=_reach(network)).model_dump_json().encode()


def _reach(network: Reachable | None) -> object:
    """Return what may be reached as the API has it; what is neither text nor a list is refused later."""
    is_list = isinstance(network, Iterable) and not isinstance(network, str | Mapping)
    return {"allow": list(network)} if is_list and network is not None else network


def _secrets(secrets: Mapping[str, str] | None) -> object:
    return dict(secrets) if isinstance(secrets, Mapping) else secrets


def _whole(order: CreateFromSnapshot | ForkSandbox, unread: Set[str] = frozenset()) -> bytes:
    """Return an order as it is sent, with its secrets, which a model shows to nobody."""
    told = order.model_dump(mode="json", exclude_none=True, exclude={"secrets", *unread})
    if order.secrets is not None:
        told["secrets"] = opened(order.secrets)
    return json.dumps(told).encode()


def promoting(cleanup_siblings: bool, tree_id: str | None) -> bytes:
    """Return the body of a promotion. Raises InvalidRequest."""
    order = checked(Promote, cleanup_siblings=cleanup_siblings, tree_id=tree_id)
    return order.model_dump_json(exclude_none=True).encode()


def taking(name: str | None) -> bytes:
    """Return the body of a snapshot. Raises InvalidRequest."""
    return checked(TakeSnapshot, name=name).model_dump_json(exclude_none=True).encode()


def hibernating(if_unused: bool) -> bytes:
    """Return the body of a hibernation, none unless there is something to say."""
    return Hibernate(if_unused=True).model_dump_json().encode() if if_unused else b""


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


def new_ttl(seconds: int | None) -> bytes:
    """Return the body of a change of the ttl; None is no end. Raises InvalidRequest."""
    change = checked(LifecycleChange, ttl_seconds=seconds, persistent=True if seconds is None else None)
    return change.model_dump_json(exclude_none=True).encode()


def new_idle_time(seconds: int | None) -> bytes:
    """Return the body of a change of the idle time; None lets idleness change nothing. Raises InvalidRequest."""
    if seconds == 0:
        raise InvalidRequest("an idle time is at least 1 second", hint="None lets idleness change nothing")
    return checked(LifecycleChange, idle_seconds=seconds or 0).model_dump_json(exclude_none=True).encode()


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


def event_query(cursor: str | None, types: Sequence[str], *, follow: bool = False) -> Query:
    """Return the query of a listing of events. Raises InvalidRequest for a single text in the place of types."""
    if isinstance(types, str):
        raise InvalidRequest(f"types has to be a list such as [{types!r}]")
    return {**_given(cursor=cursor, follow="true" if follow else None), "type": list(types)}


def period(since: datetime | None, until: datetime | None) -> dict[str, str]:
    """Return the query of a span of time. A time without a zone is this machine's. Raises InvalidRequest."""
    for name, value in (("since", since), ("until", until)):
        if value is not None and not isinstance(value, datetime):
            raise InvalidRequest(f"{name} has to be a datetime, not {value!r}")
    return _given(since=since and since.astimezone().isoformat(), until=until and until.astimezone().isoformat())


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


def command(
    cmd: str | Sequence[str | os.PathLike[str]],
    *,
    timeout_seconds: float | None,
    cwd: str | None,
    env: Mapping[str, str] | None,
    user: str | None,
    stdin: str | bytes | None,
) -> ExecCommand:
    """Return the order of a command whose output comes as exact bytes. Raises InvalidRequest."""
    return checked(
        ExecCommand,
        cmd=cmd if isinstance(cmd, str) else [os.fspath(word) for word in cmd],
        timeout_seconds=timeout_seconds,
        cwd=cwd,
        env=dict(env or {}),
        user=user,
        stdin_base64=None if stdin is None else _encoded_stdin(stdin),
        encoding="base64",
    )


def starting(order: ExecCommand, *, open_stdin: bool, terminal: tuple[int, int] | None = None) -> bytes:
    """Return the body of a start; `terminal`: rows and columns. Raises InvalidRequest."""
    size = None if terminal is None else _size(*terminal)
    return StartProcess(**dict(order), open_stdin=open_stdin, terminal=size).model_dump_json(exclude_none=True).encode()


def opening(
    cmd: str | Sequence[str | os.PathLike[str]] | None,
    size: tuple[int, int],
    clocks: tuple[float | None, float | None],
    *,
    cwd: str | None,
    env: Mapping[str, str] | None,
    user: str | None,
) -> bytes:
    """Return the body of a start on a terminal; `clocks`: timeout_seconds and hangup_seconds. Raises InvalidRequest."""
    if cmd is not None and not cmd:
        raise InvalidRequest("cmd is empty; it has to name a command", hint="None is the user's login shell")
    order = command(cmd or "", timeout_seconds=clocks[0], cwd=cwd, env=env, user=user, stdin=None)
    start = checked(StartProcess, **dict(order), terminal=_size(*size), hangup_seconds=clocks[1])
    return start.model_dump_json(exclude_none=True).encode()


def resizing(rows: int, cols: int) -> bytes:
    """Return the body of a change of a terminal's size. Raises InvalidRequest."""
    return _size(rows, cols).model_dump_json().encode()


def _size(rows: int, cols: int) -> TerminalSize:
    return checked(TerminalSize, rows=rows, cols=cols)


def input_bytes(data: str | bytes) -> bytes:
    """Return what is written to an open input. Raises InvalidRequest for too much, or for neither text nor bytes."""
    whole = _as_bytes(data)
    if len(whole) > MAX_INPUT_BYTES:
        raise InvalidRequest(
            f"at most {MAX_INPUT_BYTES >> 20} MiB are written at once, and this is {len(whole)} bytes",
            hint="write it in parts",
        )
    return whole


def signal_name(signal: int | str | signals.Signals) -> str:
    """Return the name of a signal, such as SIGTERM, given that, TERM or its number. Raises InvalidRequest."""
    try:
        if isinstance(signal, str):
            name = signal.upper().removeprefix("SIG")
            return signals.Signals[f"SIG{name}"].name
        return signals.Signals(signal).name
    except (KeyError, ValueError) as error:
        raise InvalidRequest(f"{signal!r} is not a signal", hint="SIGTERM, TERM and 15 are one") from error


def _encoded_stdin(stdin: str | bytes) -> str:
    data = _as_bytes(stdin)
    if len(data) > MAX_STDIN_BYTES:
        raise InvalidRequest(
            f"stdin is at most {MAX_STDIN_BYTES >> 20} MiB, and this is {len(data)} bytes",
            hint="upload a file and read it in the command",
        )
    return base64.b64encode(data).decode()


def _as_bytes(data: str | bytes) -> bytes:
    if not isinstance(data, str | bytes | bytearray | memoryview):
        raise InvalidRequest(f"stdin has to be text or bytes, not {type(data).__name__}")
    try:
        return data.encode() if isinstance(data, str) else bytes(data)
    except UnicodeEncodeError as error:
        raise InvalidRequest("stdin: half a surrogate pair is no character") from error
