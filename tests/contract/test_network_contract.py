"""Both networks keep the contract: the fake one in memory, and the kernel's, on a host of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outside_world import World, outside_world
from torpor.network import netns
from torpor.network.config import NetworkConfig
from torpor.network.contract import Network
from torpor.network.fake import FakeNetwork
from torpor.network.slots import digest_of, network_of
from torpor.testing.network_contract import NetworkContract, NetworkRig


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with outside_world() as world:
        yield world


class TestFakeNetwork(NetworkContract):
    """Slots in memory."""

    @pytest.fixture
    def rig(self) -> NetworkRig:
        network = FakeNetwork()

        @asynccontextmanager
        async def opened() -> AsyncIterator[Network]:
            yield network

        return NetworkRig(opened, lambda: list(network.slots))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")
class TestKernelNetwork(NetworkContract):
    """Slots in the kernel."""

    @pytest.fixture
    def rig(self, world: World, tmp_path: Path) -> NetworkRig:
        del world

        @asynccontextmanager
        async def opened() -> AsyncIterator[Network]:
            async with network_of(tmp_path, NetworkConfig()) as network:
                assert network.trouble == ""
                yield network

        return NetworkRig(opened, lambda: netns.names(f"torpor-{digest_of(tmp_path)}-"))
