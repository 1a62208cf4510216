"""The JSON of keys and of the audit log (`/v1/me`, `/v1/me/tokens`, `/v1/audit`)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, Field, StringConstraints, field_validator

from torpor.wire.public import Strict

MAX_KEY_DAYS = 3650

_Name = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class Limits(BaseModel):
    """How often a key may ask: requests a second in the long run, and at once (0 a second: as often as it likes)."""

    rate_per_second: float = 0.0
    rate_burst: int = 0


class Me(BaseModel):
    """`GET /v1/me`: whom the key belongs to, and what it may do. `prefix`: its first characters."""

    workspace: str
    role: Literal["member", "admin"]
    prefix: str
    name: str
    expires_at: datetime | None = None
    limits: Limits


class MakeToken(Strict):
    """`POST /v1/me/tokens`. `label` (or `name`) is for people. Without `expires_in_days` the key has no end.

    Only an admin may give `workspace` (another than its own; it need not have been heard of before) and `role` "admin".
    """

    label: _Name = Field(validation_alias=AliasChoices("label", "name"))
    expires_in_days: float | None = Field(default=None, gt=0, le=MAX_KEY_DAYS, allow_inf_nan=False)
    workspace: str | None = Field(
        default=None, min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
    )
    role: Literal["member", "admin"] = "member"

    @field_validator("label")
    @classmethod
    def _is_printable(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("label has to consist of printable characters, without line breaks")
        return value


class TokenView(BaseModel):
    """A key as it is listed: never the key itself. `prefix`: its first characters, which name it.

    `created_by`: the prefix of the key that asked for it. `last_used_at` is some minutes exact.
    """

    prefix: str
    name: str
    workspace: str
    role: Literal["member", "admin"]
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


class TokenMade(TokenView):
    """A new key. `token` is the key itself, which is shown here and nowhere else."""

    token: str = Field(repr=False)


class TokenList(BaseModel):
    """`GET /v1/me/tokens`: the keys of a workspace, the newest first, also those that open nothing any more."""

    items: list[TokenView]


class AuditView(BaseModel):
    """One entry of the audit log.

    `kind`: `change` (of what the server keeps), `use` (of what is inside a sandbox), `refused`. `action`: method and
    route. `targets`: the ids it was about, or made. `status`: the HTTP status that was answered; null: the answer could
    not be completed. `key`: the prefix of the key. `count`: how many such there were, where they were only counted.
    """

    number: int
    at: datetime
    kind: Literal["change", "use", "refused"]
    action: str
    targets: list[str]
    status: int | None
    workspace: str | None
    key: str | None
    client: str
    request_id: str
    count: int = 1


class AuditPage(BaseModel):
    """One page of the audit log; `next_cursor` is null where there is no more (or, the oldest first: no more yet)."""

    items: list[AuditView]
    next_cursor: str | None = None
