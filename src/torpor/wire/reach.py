"""The JSON of secrets, and of what sandboxes may reach, in the public API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, StringConstraints

MAX_SECRETS = 128
# Of one value, and of all names and values together, as UTF-8. A program is not started with more than 2 MiB of
# arguments and environment, nor with 128 KiB of one variable.
MAX_SECRET_BYTES = 64 * 1024
MAX_SECRETS_BYTES = 256 * 1024
# What the sandbox is called: no secret takes its place.
_OWN_NAME = "TORPOR_SANDBOX_ID"

MAX_ALLOWED = 256
_SHAPE = (
    'network has to be "internet", "none" or {"allow": [...]},'
    f" a list of 1 to {MAX_ALLOWED} host names and IPv4 networks"
)


def _is_usable(secrets: dict[str, SecretStr]) -> dict[str, SecretStr]:
    """Check what a pattern cannot say. No sentence has a value in it, nor has the error's input."""
    total = 0
    for name, secret in secrets.items():
        if name == _OWN_NAME:
            raise ValueError(f"secrets cannot have {_OWN_NAME}, which is the sandbox's own name")
        size = _size_of(name, secret.get_secret_value())
        total += len(name) + size
    if total > MAX_SECRETS_BYTES:
        raise ValueError(f"secrets have at most {MAX_SECRETS_BYTES >> 10} KiB together, and these have {total} bytes")
    return secrets


def _size_of(name: str, value: str) -> int:
    if "\0" in value:
        raise ValueError(f"secrets cannot have a NUL in them, as {name} has")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        # Without its cause, which holds the value.
        raise ValueError(f"secrets are text, and {name} has half a surrogate pair in it") from None
    if size > MAX_SECRET_BYTES:
        raise ValueError(f"secrets have at most {MAX_SECRET_BYTES >> 10} KiB each, and {name} has {size} bytes")
    return size


SecretName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=255)]
# Secrets print as stars, and are masked wherever a model is dumped.
Secrets = Annotated[dict[SecretName, SecretStr], Field(max_length=MAX_SECRETS), AfterValidator(_is_usable)]


def opened(secrets: Mapping[str, SecretStr]) -> dict[str, str]:
    """Return secrets as they are."""
    return {name: secret.get_secret_value() for name, secret in secrets.items()}


class AllowList(BaseModel):
    """What may be reached and nothing else: host names, `*.example.com` for all below one, IPv4 networks, addresses."""

    model_config = ConfigDict(strict=True, extra="ignore")

    allow: list[str] = Field(min_length=1, max_length=MAX_ALLOWED)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _has_shape(value: object) -> object:
    if isinstance(value, dict):
        entries = value.get("allow")
        is_fine = isinstance(entries, list) and 0 < len(entries) <= MAX_ALLOWED and all(map(_is_text, entries))
    else:
        is_fine = value is None or isinstance(value, AllowList) or value in ("internet", "none")
    if not is_fine:
        raise ValueError(_SHAPE)
    return value


# What may be reached: every public address, nothing, or what an allow-list names.
Reach = Literal["internet", "none"] | AllowList
# The same in a request: one sentence says what it can be.
ReachWish = Annotated[Reach, BeforeValidator(_has_shape)]
OptionalReachWish = Annotated[Reach | None, BeforeValidator(_has_shape)]


class NetworkChange(BaseModel):
    """`PATCH .../network`: what a sandbox may reach from now on."""

    model_config = ConfigDict(strict=True, extra="ignore")

    network: ReachWish


class DeniedView(BaseModel):
    """Packets, or questions for names, that were not let through: how many, and for which `reason`.

    `destination` is where to, such as `198.51.100.7 tcp/443`, or the name; null where only the number is kept. A packet
    counts once for its reason, and once more with its destination.
    """

    reason: str
    count: int
    destination: str | None = None


class NetworkView(BaseModel):
    """`GET` and `PATCH .../network`. `guest_ip`: the sandbox's own address, null where it has no network.

    `denied`: what it tried to reach and could not, counted since its machine came to life; nothing while it sleeps.
    """

    network: Reach
    guest_ip: str | None = None
    denied: list[DeniedView] = Field(default_factory=list)
