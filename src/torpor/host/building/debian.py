"""What comes from the host's Debian archive: the kernel, the guest agent's runtime, and the roots of recipes."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from torpor.errors import Failed
from torpor.host.building.workshop import Workshop
from torpor.model.template import BAKE_FORMAT, Recipe
from torpor.storage.debian import Archive, cloud_kernel_package, host_archive, newest_version
from torpor.storage.images import digest_of, digest_of_folder
from torpor.storage.kernel import INGREDIENTS, make_kernel
from torpor.storage.rootfs import Bootstrap, make_root, make_runtime, trusted_certificates
from torpor.vmm.qemu.probe import MARK


@dataclass(frozen=True, slots=True)
class Maker:
    """How an image comes about: what it depends on, a line for people, and the making."""

    inputs: tuple[object, ...]
    detail: str
    make: Callable[[Path], Awaitable[None]]


class Debian:
    """Makes images from the archive that this host is installed from."""

    def __init__(self, shop: Workshop, archive: Archive) -> None:
        self._shop, self._archive = shop, archive
        self._bootstrap = Bootstrap(archive, shop.log)

    @classmethod
    async def open(cls, shop: Workshop) -> Debian:
        """Look at what the archive has. Raises Unsupported."""
        with shop.step("archive", "the host's Debian archive"):
            return cls(shop, await host_archive())

    async def machine_images(self) -> dict[str, str]:
        """Return the names of the kernel's and the runtime's image, made if they are not there."""
        kernel, python = await asyncio.gather(cloud_kernel_package(), newest_version("python3-minimal"))
        version, agent, log = await newest_version(kernel), _source_of("torpor_guest"), self._shop.log
        makers = {
            "kernel": Maker(
                (version, MARK, INGREDIENTS),
                f"{kernel} {version}",
                lambda into: make_kernel(kernel, MARK, into, log),
            ),
            "runtime": Maker(
                (self._archive.codename, python, digest_of_folder(agent)),
                "the guest agent and its Python",
                lambda into: make_runtime(self._bootstrap, agent, into),
            ),
        }
        return {kind: await self._ensured(kind, maker) for kind, maker in makers.items()}

    async def _ensured(self, kind: str, maker: Maker) -> str:
        name = f"{kind}-{digest_of(BAKE_FORMAT, *maker.inputs)}"
        with self._shop.step(kind, maker.detail):
            await self._shop.images.ensure(name, maker.make)
        return name

    def root(self, recipe: Recipe) -> Maker:
        """Return how the root file system of a recipe comes about."""
        certificates = trusted_certificates()
        return Maker(
            (self._archive.codename, recipe.packages, recipe.disk_gib, certificates),
            f"Debian {self._archive.codename} with {', '.join(recipe.packages)}",
            lambda into: make_root(self._bootstrap, recipe, certificates, into),
        )


def _source_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise Failed(f"the package {package} is not installed", hint="reinstall torpor")
    return Path(spec.submodule_search_locations[0])
