"""The decision on what is promised, and its sentence."""

from __future__ import annotations

import pytest

from torpor.model.capacity import (
    GIB,
    MIB,
    NOTHING,
    OVERHEAD_BYTES,
    Holdings,
    Limits,
    Need,
    Quota,
    excess,
    need_of,
    shortage,
    total,
)

ONE = need_of(256, 4)


def test_a_machine_needs_its_guests_memory_and_its_vmms() -> None:
    assert Need(256 * MIB + OVERHEAD_BYTES, 4 * GIB, 1) == ONE
    assert total([ONE, ONE]) == need_of(256, 4, machines=2)
    assert total([]) == NOTHING


def test_without_limits_everything_fits() -> None:
    assert shortage(Limits(), need_of(1 << 20, 1 << 20, machines=1000), ONE) is None


@pytest.mark.parametrize(
    ("limits", "resource"),
    [
        (Limits(machines=3), "machines"),
        (Limits(memory_bytes=3 * ONE.memory_bytes), "memory"),
        (Limits(disk_bytes=3 * ONE.disk_bytes), "disk"),
    ],
)
def test_the_last_place_is_given_and_the_one_behind_it_is_not(limits: Limits, resource: str) -> None:
    assert shortage(limits, total([ONE] * 2), ONE) is None
    found = shortage(limits, total([ONE] * 3), ONE)
    assert found is not None
    assert (found.resource, found.used, found.limit) == (resource, found.limit, found.used)


def test_a_shortage_says_how_much_is_promised_to_how_many_and_what_was_wanted() -> None:
    limits = Limits(machines=40, memory_bytes=12 * GIB)
    promised = Need(12 * GIB - 100 * MIB, 0, 39)
    assert str(shortage(limits, promised, Need(352 * MIB))) == (
        "11.9 of 12 GiB of memory are promised to 39 machines, and 352 MiB more are wanted"
    )
    assert str(shortage(limits, Need(0, 0, 40), Need())) == (
        "40 of 40 machines are there or about to be, and one more is wanted"
    )


def test_a_quota_is_used_up_to_its_last_and_no_further() -> None:
    quota = Quota(sandboxes=2, memory_bytes=GIB, disk_bytes=10 * GIB, snapshots=1)
    one = Holdings(1, 256 * MIB, 4 * GIB)
    assert excess(quota, one, one) is None
    found = excess(quota, one + one, one)
    assert found is not None
    assert (found.resource, found.limit, found.used) == ("sandboxes", 2, 2)
    assert str(found) == "2 of 2 sandboxes are yours, and one more is wanted"
    large = Holdings(1, 800 * MIB, 4 * GIB)
    assert str(excess(quota, one, large)) == ("0.2 of 1 GiB of memory are your sandboxes', and 800 MiB more are wanted")


def test_what_nothing_is_wanted_of_is_no_excess_though_a_limit_was_lowered_since() -> None:
    quota, held = Quota(sandboxes=1, snapshots=5), Holdings(sandboxes=3)
    assert excess(quota, held, Holdings(snapshots=1)) is None
    assert excess(quota, held, Holdings(sandboxes=1)) is not None
