"""Keys: made, listed, revoked. A key sees those of its own workspace; an admin's those of any."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from torpor.control.keys import new_key
from torpor.control.service.claims import claim_for
from torpor.control.service.fresh import Made
from torpor.control.service.keyring import digest_of
from torpor.control.service.plane import Plane
from torpor.control.store.access import KeyClaim
from torpor.errors import Conflict, Forbidden, InvalidRequest, NotFound
from torpor.model.access import SHOWN_CHARACTERS, Caller, Key, Role
from torpor.model.ids import WorkspaceId
from torpor.wire.access import MakeToken

# Of a prefix that is to name a key, so much at least has to be given: `tpr_` and four characters.
_LEAST_PREFIX = 8
# The server's own key, which is no record.
LOCAL_KEY_ID = "local"


async def make_key(plane: Plane, caller: Caller, wish: MakeToken, idempotency_key: str | None = None) -> Made:
    """Make a key and return it with the key itself, which can be had here only.

    With an idempotency key that was used before, the same one is returned for some minutes. Raises Forbidden for more
    than the caller may give, Conflict for a claim whose key cannot be told again, QuotaExceeded.
    """
    now, plain = plane.clock.now(), new_key()
    key = Key(
        id=f"key-{secrets.token_hex(8)}",
        workspace=_workspace_for(caller, wish),
        name=wish.label,
        prefix=plain[:SHOWN_CHARACTERS],
        digest=digest_of(plain),
        role=_role_for(caller, wish),
        created_at=now,
        made_by=caller.prefix,
        expires_at=_end_for(caller, wish, now),
    )
    claim = claim_for(plane, {"token": wish.model_dump(mode="json")}, {}, idempotency_key)
    owned = None if claim is None else KeyClaim(caller.key_id, claim.key, claim.digest)
    recorded = await plane.store.add_key(key, now, owned)
    if recorded.id == key.id:
        made = Made(recorded, plain)
        if owned is not None:
            plane.fresh.put(made)
        return made
    return Made(recorded, _told_again(plane, recorded, now))


def _workspace_for(caller: Caller, wish: MakeToken) -> WorkspaceId:
    workspace = WorkspaceId(wish.workspace or caller.workspace)
    if workspace != caller.workspace and not caller.is_admin:
        raise Forbidden("only an admin's key can make keys for another workspace", hint="leave workspace out")
    return workspace


def _role_for(caller: Caller, wish: MakeToken) -> Role:
    role = Role(wish.role)
    if role is Role.ADMIN and not caller.is_admin:
        raise Forbidden("only an admin's key can make an admin's key", hint="leave role out")
    return role


def _end_for(caller: Caller, wish: MakeToken, now: datetime) -> datetime | None:
    """Return when a key ends: it never outlives the key that made it, or the end of that would mean nothing."""
    if wish.expires_in_days is None:
        return caller.expires_at
    end = now + timedelta(days=wish.expires_in_days)
    if caller.expires_at is not None and end > caller.expires_at:
        raise Forbidden(
            f"this key ends at {caller.expires_at:%Y-%m-%dT%H:%M:%SZ}, and one made with it cannot outlive it",
            hint="leave expires_in_days out, or make it with a key that lives longer",
        )
    return end


def _told_again(plane: Plane, key: Key, now: datetime) -> str:
    plain = None if key.is_over(now) else plane.fresh.get(key, now)
    if plain is None:
        raise Conflict(
            f"the key {key.prefix} was made with this idempotency key, and is shown only once",
            hint=f"revoke it with `torpor token revoke {key.prefix}`, and make another with a fresh idempotency key",
        )
    return plain


def is_local(caller: Caller) -> bool:
    """Tell whether a caller has the server's own key, which is the operator's, and is held to no rate."""
    return caller.key_id == LOCAL_KEY_ID


async def name_of(plane: Plane, caller: Caller) -> str:
    """Return what people call the caller's key."""
    if is_local(caller):
        return "the server's own"
    key = await plane.store.key(caller.key_id)
    return "" if key is None else key.name


async def list_keys(plane: Plane, caller: Caller, workspace: str | None = None) -> list[Key]:
    """Return the keys of the caller's workspace, or (an admin's call) of another, the newest first.

    Raises Forbidden.
    """
    if workspace not in (None, caller.workspace) and not caller.is_admin:
        raise Forbidden("only an admin's key can list the keys of another workspace", hint="leave workspace out")
    return await plane.store.keys(WorkspaceId(workspace or caller.workspace))


async def revoke_key(plane: Plane, caller: Caller, prefix: str, workspace: str | None = None) -> Key:
    """Revoke the key whose shown characters begin so, and return it; fine if it is revoked.

    Raises NotFound, Conflict if several keys begin so, InvalidRequest for too few or too many characters, Forbidden.
    """
    if not _LEAST_PREFIX <= len(prefix) <= SHOWN_CHARACTERS:
        raise InvalidRequest(
            f"a key is named by its first {_LEAST_PREFIX} to {SHOWN_CHARACTERS} characters, as listed; never send all"
        )
    found = [key for key in await list_keys(plane, caller, workspace) if key.prefix.startswith(prefix)]
    living = [key for key in found if key.revoked_at is None]
    if not found:
        raise NotFound(
            f"there is no key that begins with {prefix!r}",
            hint="`torpor token list` shows them; the server's own key is replaced by removing its file `key`",
        )
    if len(meant := living or found) > 1:
        raise Conflict(f"{len(meant)} keys begin with {prefix!r}", hint="give more of its characters")
    if meant[0].role is Role.ADMIN and not caller.is_admin:
        raise Forbidden("only an admin's key can revoke an admin's key")
    return await plane.keyring.revoke(meant[0].id) or meant[0]
