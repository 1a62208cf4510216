"""Which server in which sandbox a request is for: by the host it names, or by its path.

By host: `{port}-{id}.{domain}`. By path: `/v1/sandboxes/{id}/proxy/{port}/...`. A host below the domain that is no such
name is nobody's, so that whatever it is asked for, the API is never what answers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from torpor.errors import InvalidRequest, NotFound
from torpor.model.ids import SANDBOX_ID, SandboxId

DEFAULT_DOMAIN = "localhost"
_PORT = r"[1-9][0-9]{0,4}"
_LABEL = re.compile(rf"(?P<port>{_PORT})-(?P<sandbox>{SANDBOX_ID.pattern})")
_PATH = re.compile(
    rf"(?P<prefix>/v1/sandboxes/(?P<sandbox>{SANDBOX_ID.pattern})/proxy/(?P<port>{_PORT}))(?P<rest>/.*)?".encode(),
    re.DOTALL,
)
_DOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*")
_MOST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Address:
    """A server in a sandbox. `prefix` is what a path begins with that is not the server's, "" where it is all his."""

    sandbox: SandboxId
    port: int
    prefix: str = ""

    @property
    def by_host(self) -> bool:
        """Whether the request's host names it, so that all of this host's pages are of one server."""
        return not self.prefix


@dataclass(frozen=True, slots=True)
class Domain:
    """Below what the hosts of servers in sandboxes are; with the scheme and port to be told, where they are known.

    `is_open`: whoever knows such a host, and so a sandbox's id, may use the server there without a link.
    """

    name: str = DEFAULT_DOMAIN
    scheme: str | None = None
    port: int | None = None
    is_open: bool = False

    @classmethod
    def of(cls, text: str) -> Domain:
        """Read `apps.example.com`, or with its scheme `https://apps.example.com:8443`. Raises InvalidRequest."""
        parts = urlsplit(text if "://" in text else f"//{text}")
        try:
            name, port = parts.hostname or "", parts.port
        except ValueError:
            name, port = "", None
        extra = parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc
        if extra or parts.scheme not in ("", "http", "https") or _DOMAIN.fullmatch(name) is None:
            raise InvalidRequest(
                f"TORPOR_PORTS_DOMAIN is {text!r}; it is a domain such as localhost or apps.example.com,"
                " with https:// before it where the server is reached through that"
            )
        return cls(name, parts.scheme or None, port)

    def address_at(self, host: str) -> Address | None:
        """Return what a `Host` header names, None if that is not below the domain.

        Raises NotFound for a host below it that names no server in a sandbox.
        """
        name = re.sub(r":[0-9]*$", "", host.lower()).removesuffix(".")
        if not name.endswith(f".{self.name}"):
            return None
        found = _LABEL.fullmatch(name.removesuffix(f".{self.name}"))
        if found is None or int(found["port"]) > _MOST_PORT:
            raise NotFound(
                f"{name[:100]!r} names no server in a sandbox", hint=f"such a host is PORT-SANDBOX.{self.name}"
            )
        return Address(SandboxId(found["sandbox"]), int(found["port"]))

    def host_of(self, address: Address) -> str:
        """Return the host of a server, without a port."""
        return f"{address.port}-{address.sandbox}.{self.name}"

    def origin_of(self, address: Address, scheme: str, asked_at: str) -> str:
        """Return the URL of a server without a path, for somebody who has asked with a scheme and a `Host`."""
        port = self.port if self.scheme is not None or self.port is not None else _port_in(asked_at)
        suffix = "" if port is None else f":{port}"
        return f"{self.scheme or scheme}://{self.host_of(address)}{suffix}"


def address_in(raw_path: bytes) -> tuple[Address, bytes] | None:
    """Return the server that a path, as it was sent, names, and the server's own part of it; None if it names none."""
    found = _PATH.fullmatch(raw_path)
    if found is None or int(found["port"]) > _MOST_PORT:
        return None
    address = Address(SandboxId(found["sandbox"].decode()), int(found["port"]), found["prefix"].decode())
    return address, found["rest"] or b"/"


def path_of(address: Address) -> str:
    """Return the path by which a server is reached on the API's own host."""
    return f"/v1/sandboxes/{address.sandbox}/proxy/{address.port}/"


def _port_in(host: str) -> int | None:
    found = re.search(r":([0-9]{1,5})$", host)
    return None if found is None else int(found[1])
