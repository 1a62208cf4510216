"""Where the server is and which key opens it: arguments, the environment, or what a local server left on disk."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from torpor.errors import HostUnreachable, InvalidRequest, Unauthenticated
from torpor.wire.home import KEY_FILE, SERVER_FILE

START_HINT = "start it with `torpor up`"
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class Server:
    """One server's address, without a slash at its end, and the key for it. The key is never printed.

    `ca_file`: the certificates, in PEM, of those who may vouch for it, instead of the system's. `pinned`: the very
    certificate, in PEM, that a server on this machine said that it has.
    """

    url: str
    key: str = field(repr=False)
    ca_file: str | None = None
    pinned: str | None = field(default=None, repr=False)

    @property
    def is_loopback(self) -> bool:
        """Whether the address is this machine's own, so that neither a proxy nor the network is involved."""
        return is_loopback(self.url)


def is_loopback(url: str) -> bool:
    """Tell whether a URL names this machine by its loopback address or as localhost."""
    return urlsplit(url).hostname in _LOOPBACK


def default_home() -> Path:
    """Return the folder a local server keeps its things in.

    `TORPOR_HOME` if it is set; otherwise /var/lib/torpor for root and the user's data directory for others.
    """
    if named := os.environ.get("TORPOR_HOME"):
        return Path(named)
    if os.geteuid() == 0:
        return Path("/var/lib/torpor")
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "torpor"


def locate(api: str | None = None, key: str | None = None) -> Server:
    """Find the server to talk to.

    `api` falls back to `TORPOR_API`, then to the address in the home folder's `server.json`; `key` to `TORPOR_API_KEY`,
    then to the home folder's `key` file, which is only ever sent to a loopback address, or to the server that
    `server.json` names and whose certificate is known from there. `TORPOR_CA_FILE` says who vouches for an https://
    server. Raises HostUnreachable if no address is found, Unauthenticated if no key is, InvalidRequest for a malformed
    address.
    """
    home = default_home()
    named = api or os.environ.get("TORPOR_API")
    ca_file = os.environ.get("TORPOR_CA_FILE") or None
    url, pinned = (named, None) if named else _recorded_server(home)
    url = _checked(url)
    if ca_file is not None:
        pinned = None
    key = key or os.environ.get("TORPOR_API_KEY")
    if not key and (is_loopback(url) or pinned is not None):
        key = _recorded_key(home)
    if not key:
        raise Unauthenticated(f"there is no API key for {url}", hint="set TORPOR_API_KEY")
    return Server(url, key, ca_file, pinned)


def is_server_named() -> bool:
    """Tell whether the environment says where the server is."""
    return bool(os.environ.get("TORPOR_API"))


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and parts.hostname
    except ValueError:
        whole = False
    if not whole:
        raise InvalidRequest(
            f"the server's address {url!r} is not an http:// or https:// URL", hint="correct TORPOR_API or `api`"
        )
    return url.rstrip("/")


def _recorded_server(home: Path) -> tuple[str, str | None]:
    """Return the address of the server that runs here, and its certificate, if it has one."""
    path = home / SERVER_FILE
    try:
        record = json.loads(path.read_text())
        certificate = record.get("certificate")
        return str(record["url"]), None if certificate is None else _own_certificate(Path(str(certificate)))
    except FileNotFoundError as error:
        raise HostUnreachable(f"no Torpor server runs here: there is no {path}", hint=START_HINT) from error
    except OSError as error:
        raise HostUnreachable(
            f"no Torpor server can be found: {path} cannot be read ({error.strerror})",
            hint="use the account that runs the server, or set TORPOR_API and TORPOR_API_KEY",
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HostUnreachable(f"no Torpor server can be found: {path} is damaged", hint=START_HINT) from error


def _own_certificate(path: Path) -> str:
    """Return the first certificate of a file: the server's own. Those after it vouch for others, too."""
    text = path.read_text()
    first, end, _ = text.partition(_END)
    begin = first.rfind(_BEGIN)
    if begin < 0 or not end:
        raise ValueError("there is no certificate in it")
    return first[begin:] + end


def _recorded_key(home: Path) -> str | None:
    path = home / KEY_FILE
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unauthenticated(
            f"the server's key file {path} cannot be read ({error.strerror})",
            hint="use the account that runs the server, or set TORPOR_API_KEY",
        ) from error
