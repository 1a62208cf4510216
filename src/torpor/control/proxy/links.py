"""Links: who has one may use one port of one sandbox until it expires.

A link's token says by which key it was made and when it expires, and is signed over these, the sandbox, the port and
the workspace. Nothing is kept of it. It ends with its sandbox, with the key that it was made by, and with the server's
seal: whoever removes the file `seal` and starts the server anew has revoked all there are.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from torpor.control.proxy.addresses import Address, Domain
from torpor.errors import Unauthenticated
from torpor.model.ids import WorkspaceId

_FORM = re.compile(r"tpl_(?P<key>[A-Za-z0-9_-]{1,64})\.(?P<expires>[0-9]{1,11})\.(?P<mac>[A-Za-z0-9_-]{43})")
MAX_TOKEN = 150


@dataclass(frozen=True, slots=True)
class Link:
    """A token as it is read, not yet known to be genuine."""

    key_id: str
    expires_at: datetime
    mac: str


def read_token(token: str) -> Link | None:
    """Return what a token says, None if it has not the form of one."""
    found = _FORM.fullmatch(token)
    if found is None:
        return None
    return Link(found["key"], datetime.fromtimestamp(int(found["expires"]), UTC), found["mac"])


class Signer:
    """Signs links, and knows its own."""

    def __init__(self, seal: bytes) -> None:
        # Of its own, so that nothing else that the server signs or notes can be taken for a link.
        self._secret = hmac.digest(seal, b"torpor-links", hashlib.sha256)

    def token(self, address: Address, workspace: WorkspaceId, key_id: str, expires_at: datetime) -> str:
        """Return the token of a link. Its end is rounded up to whole seconds."""
        whole = expires_at.replace(microsecond=0) + timedelta(seconds=1 if expires_at.microsecond else 0)
        return f"tpl_{key_id}.{round(whole.timestamp())}.{self._mac(address, workspace, key_id, whole)}"

    def check(self, link: Link, address: Address, workspace: WorkspaceId, now: datetime) -> None:
        """Raise Unauthenticated unless a link is genuine, for this very server, and has not expired."""
        if not hmac.compare_digest(link.mac, self._mac(address, workspace, link.key_id, link.expires_at)):
            raise not_valid()
        if link.expires_at <= now:
            raise Unauthenticated(
                f"this link expired at {link.expires_at:%Y-%m-%d %H:%M:%S} UTC", hint="ask for another one"
            )

    def _mac(self, address: Address, workspace: WorkspaceId, key_id: str, expires_at: datetime) -> str:
        words = (
            "torpor-link-1",
            address.sandbox,
            str(address.port),
            workspace,
            key_id,
            f"{expires_at.timestamp():.0f}",
        )
        # Each word's length goes in, so that no two links are signed alike.
        told = "".join(f"{len(word)}:{word}" for word in words).encode()
        mac = hmac.digest(self._secret, told, hashlib.sha256)
        return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


def not_valid() -> Unauthenticated:
    """Return the refusal of a link that never was one, or is not any more. It tells nothing of what there is."""
    return Unauthenticated("this link is not valid, or not any more", hint="ask for another one")


@dataclass(frozen=True, slots=True)
class Ports:
    """How servers in sandboxes are called from outside: below which domain, and by links that are signed so."""

    domain: Domain
    signer: Signer
