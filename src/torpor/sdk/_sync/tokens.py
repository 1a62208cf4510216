"""Keys, and what was done with them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Literal

from torpor.sdk.foreign import checked, checked_prefix
from torpor.sdk.http import Call, Query, making
from torpor.wire.access import AuditPage, AuditView, MakeToken, TokenList, TokenMade, TokenView

if TYPE_CHECKING:
    from torpor.sdk._sync.client import Client

Listed = list[TokenView]
_AT_ONCE = 100


class Tokens:
    """The keys of a workspace: `client.tokens`.

    With an admin's key `workspace` names another one; other keys get Forbidden for it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(
        self,
        name: str,
        *,
        expires_in_days: float | None = None,
        workspace: str | None = None,
        role: Literal["member", "admin"] = "member",
    ) -> TokenMade:
        """Make a key and return it; its `token` is the key itself, which cannot be had again."""
        wish = checked(MakeToken, label=name, expires_in_days=expires_in_days, workspace=workspace, role=role)
        return self._client.fetch_as(TokenMade, making("/me/tokens", wish.model_dump_json().encode()))

    def list(self, workspace: str | None = None) -> Listed:
        """Return the keys, the newest first, without the keys themselves; also those that are over."""
        return (self._client.fetch_as(TokenList, Call("GET", "/me/tokens", params=_of(workspace)))).items

    def revoke(self, prefix: str, workspace: str | None = None) -> None:
        """Revoke the key that begins so: it opens nothing any more. Fine if it is revoked.

        Raises NotFound, Conflict if several begin so.
        """
        self._client.fetch(Call("DELETE", f"/me/tokens/{checked_prefix(prefix)}", params=_of(workspace)))


def audit(client: Client, workspace: str | None, kind: str | None) -> Generator[AuditView, None]:
    """Yield the entries of the audit log, the newest first."""
    query = _of(workspace) | {"limit": str(_AT_ONCE)} | ({} if kind is None else {"kind": kind})
    while True:
        page = client.fetch_as(AuditPage, Call("GET", "/audit", params=query))
        yield from page.items
        if page.next_cursor is None:
            return
        query["cursor"] = page.next_cursor


def _of(workspace: str | None) -> Query:
    return {} if workspace is None else {"workspace": workspace}
