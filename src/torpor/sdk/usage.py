"""What was used and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from torpor.wire import usage as wire
from torpor.wire.usage import PriceList

__all__ = ["PriceList", "SandboxUsage", "Usage", "UsageReport"]


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What was used from `since` to `until`. Printed, it is a sentence.

    `running_seconds`, `paused_seconds`, `hibernated_seconds`: how long in each state, and `active_share` what part of
    these was running. `cpu_seconds`: processor time that was really taken. `resident_byte_seconds`: memory that was
    held, times how long. `disk_bytes`: what it took up last. `cost`: the price of running; `always_on_cost`: of a
    machine that had run all the time it was there; `saved_share`: the part of that which need not be paid.
    """

    since: datetime
    until: datetime
    running_seconds: float
    paused_seconds: float
    hibernated_seconds: float
    active_share: float
    cpu_seconds: float
    resident_byte_seconds: float
    disk_bytes: int
    cost: float
    always_on_cost: float
    saved_share: float

    @classmethod
    def of(cls, view: wire.UsageView) -> Usage:
        """Return the value of what came over the wire."""
        return cls(**dict(view))

    def __str__(self) -> str:
        there = self.running_seconds + self.paused_seconds + self.hibernated_seconds
        return (
            f"ran {self.running_seconds:.1f} s of {there:.1f} s ({self.active_share:.0%}), "
            f"{self.cpu_seconds:.1f} s of processor time; "
            f"{self.cost:.6f}, where always on would be {self.always_on_cost:.6f}: {self.saved_share:.0%} saved"
        )


@dataclass(frozen=True, kw_only=True)
class SandboxUsage(Usage):
    """What one sandbox used. `deleted_at` is None while it is there."""

    sandbox_id: str
    name: str | None
    template: str
    cpu: int
    memory_mb: int
    created_at: datetime
    deleted_at: datetime | None
    metadata: Mapping[str, str]

    @classmethod
    def of(cls, view: wire.UsageView) -> SandboxUsage:
        """Return the value of what came over the wire."""
        fields = dict(view)
        return cls(metadata=MappingProxyType(fields.pop("metadata")), **fields)

    def __str__(self) -> str:
        return f"{self.name or self.sandbox_id} {super().__str__()}"


@dataclass(frozen=True)
class UsageReport:
    """What several sandboxes used, deleted ones too; `total` is their sum. Printed, it is a line for each."""

    total: Usage
    items: tuple[SandboxUsage, ...]
    prices: PriceList

    @classmethod
    def of(cls, view: wire.UsageReport) -> UsageReport:
        """Return the value of what came over the wire."""
        return cls(Usage.of(view.total), tuple(SandboxUsage.of(item) for item in view.items), view.prices)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.items), f"all together {self.total} ({self.prices.currency})"])
