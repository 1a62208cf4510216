"""What can be set on a host agent."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from torpor.errors import InvalidRequest
from torpor.host.containment import ContainmentConfig
from torpor.host.limits import CapacityConfig
from torpor.kit.environment import positive
from torpor.network.config import NetworkConfig, network_from_environment
from torpor.storage.volume import VolumeConfig


@dataclass(frozen=True, slots=True)
class HostConfig:
    """`home`: the data directory. `accelerator`: "auto" decides by booting a guest; "kvm" or "tcg" is taken as it is.

    `guest_timeout_s`: how long a restored guest may take for its first answer, in seconds. `spare_s`: how long after a
    create a machine that was prepared for the next one is kept, in seconds; 0 for none. `volume`: whether the data
    directory gets a volume where its file system has no reflinks, and how large that may become. `capacity`: how much
    may be promised to machines. `containment`: what keeps them apart. `network`: what they can reach, and how much.
    """

    home: Path
    accelerator: str = "auto"
    guest_timeout_s: float = 20.0
    spare_s: float = 60.0
    volume: VolumeConfig = field(default_factory=VolumeConfig)
    capacity: CapacityConfig = field(default_factory=CapacityConfig)
    containment: ContainmentConfig = field(default_factory=ContainmentConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)

    @classmethod
    def from_environment(cls, home: Path) -> HostConfig:
        """Return the configuration for a data directory, with what the environment sets.

        TORPOR_ACCELERATOR, TORPOR_SPARE_SECONDS, and what `volume_from_environment`, `CapacityConfig`,
        `ContainmentConfig` and `network_from_environment` read. Raises InvalidRequest.
        """
        accelerator, spare = os.environ.get("TORPOR_ACCELERATOR", "auto"), os.environ.get("TORPOR_SPARE_SECONDS", "60")
        if accelerator not in {"auto", "kvm", "tcg"}:
            raise InvalidRequest(f"TORPOR_ACCELERATOR is {accelerator!r}; it can be auto, kvm or tcg")
        if not spare.isdecimal():
            raise InvalidRequest(f"TORPOR_SPARE_SECONDS is {spare!r}; it is a number of seconds, 0 for no spares")
        return cls(
            home,
            accelerator=accelerator,
            spare_s=float(spare),
            volume=volume_from_environment(),
            capacity=CapacityConfig.from_environment(),
            containment=ContainmentConfig.from_environment(),
            network=network_from_environment(),
        )


def volume_from_environment() -> VolumeConfig:
    """Return what TORPOR_VOLUME, TORPOR_VOLUME_GIB and TORPOR_DISK_RESERVE_MIB set. Raises InvalidRequest."""
    use, limit = os.environ.get("TORPOR_VOLUME", "auto"), os.environ.get("TORPOR_VOLUME_GIB", "")
    if use not in ("auto", "off"):
        raise InvalidRequest(f"TORPOR_VOLUME is {use!r}; it can be auto or off")
    if limit and not (limit.isdecimal() and int(limit) >= 1):
        raise InvalidRequest(f"TORPOR_VOLUME_GIB is {limit!r}; it is a number of GiB, 1 or more")
    reserve = positive("TORPOR_DISK_RESERVE_MIB", VolumeConfig().reserve_mib)
    return VolumeConfig("off" if use == "off" else "auto", int(limit) if limit else None, reserve_mib=reserve)
