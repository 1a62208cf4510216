"""A VMM in memory whose guests speak the agent's protocol: a whole host without a virtual machine."""

from __future__ import annotations

from collections.abc import Callable

from torpor.testing.fake_guest import FakeGuest
from torpor.vmm.fake import FakeDriver


def fake_driver(guest: Callable[[], FakeGuest] = FakeGuest) -> FakeDriver:
    """Return a fake driver each of whose machines has a guest of its own, made by `guest`."""
    return FakeDriver(guest)
