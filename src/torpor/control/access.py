"""From where the API may be asked, and how often: what the operator sets."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from torpor.errors import InvalidRequest, Misdirected

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]{2,45}\]|[a-z0-9_](?:[a-z0-9._-]{0,252}))(?::[0-9]{1,5})?")
_WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """What is asked of whoever asks.

    `rate_per_second`, `rate_burst`: how often each key may ask in the long run, and at once (0: as often as it likes).
    `failures_per_minute`: wrong keys that may come from one address, in the long run and at once (0: any number).
    `origins`: web pages, by their origin such as `https://app.example`, whose scripts may use the API. `hosts`: names
    by which the server is called, beside those of loopback; `any_address`: so is every IP address.
    """

    rate_per_second: float = 200.0
    rate_burst: int = 400
    failures_per_minute: int = 60
    origins: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    any_address: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> AccessConfig:
        """Return what the environment sets.

        TORPOR_RATE_PER_SECOND, TORPOR_RATE_BURST, TORPOR_AUTH_FAILURES_PER_MINUTE, TORPOR_CORS_ORIGINS,
        TORPOR_ALLOWED_HOSTS. Raises InvalidRequest.
        """
        rate = _number(environment, "TORPOR_RATE_PER_SECOND", 200.0)
        burst = _number(environment, "TORPOR_RATE_BURST", max(1.0, 2 * rate))
        if rate and burst < 1:
            raise InvalidRequest("TORPOR_RATE_BURST has to be 1 or more, or no request would ever be served")
        return cls(
            rate_per_second=rate,
            rate_burst=int(burst),
            # Not to 0, which would be no limit at all.
            failures_per_minute=math.ceil(_number(environment, "TORPOR_AUTH_FAILURES_PER_MINUTE", 60.0)),
            origins=frozenset(map(_origin, _words(environment, "TORPOR_CORS_ORIGINS"))),
            hosts=frozenset(map(_name, _words(environment, "TORPOR_ALLOWED_HOSTS"))),
        )

    def bound_to(self, host: str) -> AccessConfig:
        """Return it for a server that listens on an address or a name: by that it may be called, too."""
        name = host.lower().strip("[]")
        if name in _WILDCARDS:
            return replace(self, any_address=True)
        return replace(self, hosts=self.hosts | {name})

    def called(self, host: str) -> str:
        """Return the name in a `Host` header, in lower case, without its port.

        Raises InvalidRequest for what is no host, Misdirected for one by which this server is not called: a page of
        another site may have bound its own name to this server's address, and would be of the same origin with it.
        """
        name = host_named(host)
        if self.is_ours(name):
            return name
        raise Misdirected(
            f"this server is not called {name!r}", hint="an operator can add the name to TORPOR_ALLOWED_HOSTS"
        )

    def is_ours(self, name: str) -> bool:
        """Tell whether the server is called by a name or an address."""
        if name in self.hosts or name == "localhost":
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.any_address or address.is_loopback


def host_named(host: str) -> str:
    """Return the name in a `Host` header, in lower case, without port and brackets. Raises InvalidRequest."""
    found = _HOST.fullmatch(host.lower())
    if found is None:
        raise InvalidRequest("the request has no Host header that names a host")
    return found["name"].strip("[]").removesuffix(".")


def is_same_site(origin: str, host: str) -> bool:
    """Tell whether an `Origin` is the very server that a `Host` header names."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower() != ""
    except ValueError:
        return False


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and 0 <= number <= 1_000_000):
        raise InvalidRequest(f"{name} is {text!r}; it is a number from 0 to 1000000, and 0 is no limit")
    return number


def _words(environment: Mapping[str, str], name: str) -> list[str]:
    return environment.get(name, "").replace(",", " ").split()


def _origin(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_whole = parts.scheme in ("http", "https") and text == f"{parts.scheme}://{parts.netloc}" and parts.hostname
    except ValueError:
        is_whole = None
    if not is_whole:
        raise InvalidRequest(
            f"TORPOR_CORS_ORIGINS has {text!r}, which is no origin", hint="an origin is such as https://app.example"
        )
    return text.lower()


def _name(text: str) -> str:
    found = _HOST.fullmatch(text.lower())
    if found is None or ":" in text.rpartition("]")[2]:
        raise InvalidRequest(
            f"TORPOR_ALLOWED_HOSTS has {text!r}, which is no name of a host", hint="give names without ports"
        )
    return found["name"].strip("[]").removesuffix(".")
