"""How much room there is: for a workspace, and on its host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torpor.cli import output, wording
from torpor.cli.options import Json
from torpor.errors import Forbidden

if TYPE_CHECKING:
    from torpor.sdk import Client
    from torpor.wire.capacity import Capacity, Promise, QuotaView

_COLUMNS = ("of", "used", "limit")
_COUNTED = ("sandboxes", "snapshots", "machines", "templates", "builds", "volumes")


def capacity(json: Json = False) -> None:
    """Say how much your workspace may have and has, and, for an admin's key, how much of the host is promised.

    Memory and disk of a workspace count in any state, those of the host only while a machine runs.

    Examples:

    * before you start many: `torpor capacity`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    with connection() as client:
        quota, room = client.quota(), _room(client)
    if json:
        output.show_json({"quota": quota.model_dump(), "host": None if room is None else room.model_dump()})
        return
    rows = _of_workspace(quota) + (_of_host(room) if room is not None else [])
    output.table(_COLUMNS, rows, empty="Nothing is limited.")


def _room(client: Client) -> Capacity | None:
    try:
        return client.capacity()
    except Forbidden:
        return None


def _of_workspace(quota: QuotaView) -> list[tuple[str, ...]]:
    names = ("sandboxes", "memory", "disk", "snapshots", "templates", "builds", "volumes", "volume_space")
    return [_row(f"your {name.replace('_', ' ')}", getattr(quota, name), name) for name in names]


def _of_host(room: Capacity) -> list[tuple[str, ...]]:
    rows = [_row(f"the host's {name}", getattr(room, name), name) for name in ("machines", "memory", "disk")]
    for disk in room.rooms:
        used, limit = disk.size_bytes - disk.free_bytes, disk.size_bytes - disk.reserve_bytes
        rows.append((f"really on {disk.path}", wording.size(used), wording.size(limit)))
    if room.stopped:
        rows.append(("stopped for want of disk", str(len(room.stopped)), ""))
    return rows


def _row(title: str, promise: Promise, name: str) -> tuple[str, ...]:
    say = str if name in _COUNTED else wording.size
    return title, say(promise.used), "none" if promise.limit is None else say(promise.limit)
