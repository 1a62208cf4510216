"""The JSON of what is used and what it costs: `/v1/usage`, `/v1/metrics` and `/v1/sandboxes/{id}/usage`."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field


class PriceList(BaseModel):
    """What running costs: for each second, of a vCPU and of a GiB of memory that a sandbox has."""

    vcpu_second: float
    gib_second: float
    currency: str = "USD"


class UsageView(BaseModel):
    """What was used from `since` to `until`. Times in seconds, `resident_byte_seconds` in bytes times seconds.

    `running_seconds`, `paused_seconds`, `hibernated_seconds`: how long in each state. `active_share`: running, as a
    part of all of these. `cpu_seconds`: processor time its machines really took. `disk_bytes`: what it took up last.
    `cost`: the price of running; `always_on_cost`: of having run all the time it was there; `saved_share`: of that,
    what was not to be paid.
    """

    since: datetime
    until: datetime
    running_seconds: float = 0.0
    paused_seconds: float = 0.0
    hibernated_seconds: float = 0.0
    active_share: float = 0.0
    cpu_seconds: float = 0.0
    resident_byte_seconds: float = 0.0
    disk_bytes: int = 0
    cost: float = 0.0
    always_on_cost: float = 0.0
    saved_share: float = 0.0


class SandboxUsage(UsageView):
    """What one sandbox used. `deleted_at` is None while it is there."""

    sandbox_id: str
    name: str | None = None
    template: str
    cpu: int
    memory_mb: int
    created_at: datetime
    deleted_at: datetime | None = None
    metadata: dict[str, str] = Field(default_factory=dict)


class UsageReport(BaseModel):
    """`GET /v1/usage`: of all sandboxes that a filter lets through, deleted ones too; `total` is the sum of all.

    `next_cursor` is None where `items` are the last of them.
    """

    total: UsageView
    items: list[SandboxUsage]
    prices: PriceList
    next_cursor: str | None = None


class LiveView(BaseModel):
    """How one sandbox stands at this moment. `in_flight`: how many calls are using it."""

    sandbox_id: str
    name: str | None = None
    template: str
    status: str
    cpu: int
    memory_mb: int
    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    disk_bytes: int = 0
    in_flight: int = 0
    created_at: datetime
    expires_at: datetime | None = None


class LiveList(BaseModel):
    """`GET /v1/metrics`: how all living sandboxes stand, the newest first. `at`: the moment, for rates."""

    at: datetime
    items: list[LiveView]
