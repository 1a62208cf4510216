"""What the jail and the limits of a VMM cost at its start, measured in turn with a VMM that has neither."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator

from torpor.bench.figures import Figure, Floor
from torpor.bench.floors import Floors
from torpor.bench.subject import Subject
from torpor.host.config import HostConfig
from torpor.host.containment import ContainmentConfig

_WARM_UP = 2


def jail(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Load the template's guest in a VMM with a jail and a control group, and in one without, again and again."""
    here = subject.here()
    config = HostConfig.from_environment(here.layout.home)
    within, without = asyncio.run(_starts(here.floors, config, rounds))
    cost = tuple(one - other for one, other in zip(within, without, strict=True))
    yield Figure("jail-start", "VMM in its jail and its limits", "ms", within, Floor("without either", without))
    yield Figure("jail-cost", "what these two cost a create", "ms", cost)


async def _starts(floors: Floors, config: HostConfig, rounds: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    settings = (ContainmentConfig(), ContainmentConfig(jail="off", cgroups="off"))
    drivers = [await floors.driver(dataclasses.replace(config, containment=each)) for each in settings]
    for driver in drivers * _WARM_UP:
        await floors.start(driver)
    taken = [[await floors.start(driver) for driver in drivers] for _ in range(rounds)]
    return tuple(pair[0] for pair in taken), tuple(pair[1] for pair in taken)
