"""The JSON of servers in sandboxes, and of links to them, in the public API."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

# Servers of one sandbox that are listed.
MAX_PORTS = 512
DEFAULT_LINK_SECONDS = 3600
MAX_LINK_SECONDS = 30 * 24 * 3600


class PortView(BaseModel):
    """A TCP port on which a server in a sandbox listens, at `address`; `process` is what that is called, if known.

    `url` is where it is reached, to whoever has a link; null for one that listens on another address than loopback.
    """

    port: int
    address: str
    process: str | None = None
    url: str | None = None


class LinkOrder(BaseModel):
    """`POST .../ports/{port}/link`: how long the link is to be good, in seconds."""

    model_config = ConfigDict(strict=True, extra="ignore")

    expires_seconds: int = Field(default=DEFAULT_LINK_SECONDS, ge=1, le=MAX_LINK_SECONDS)


class LinkView(BaseModel):
    """A link to one port of one sandbox, good for whoever has it until `expires_at`.

    `url` is for browsers: the server has a host of its own there. `path_url` is on the API's own host, for programs
    that cannot look such hosts up. `token` opens both, also as the header `X-Torpor-Token`.
    """

    port: int
    url: str = Field(repr=False)
    path_url: str = Field(repr=False)
    token: str = Field(repr=False)
    expires_at: datetime
