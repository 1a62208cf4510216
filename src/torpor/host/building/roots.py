"""Root file systems, by what they are made from: each an image, made once and found again by its digest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from torpor.errors import InvalidRequest
from torpor.host.building.debian import Debian
from torpor.host.building.workshop import Workshop
from torpor.kit.files import aside, remove_tree, sha256_of
from torpor.model.ids import TemplateName
from torpor.model.template import BAKE_FORMAT, RECIPES, Defaults, Recipe
from torpor.storage import oci
from torpor.storage.disks import grow
from torpor.storage.images import digest_of
from torpor.storage.jailed import Jailed
from torpor.storage.room import GIB, demand_room, free_and_total
from torpor.storage.trees import LARGEST_BYTES, make_disk, make_places, unpack

_MEMORY_MIB = 512
_DISK, _SETTINGS = "root.img", "settings.json"
# On the way to a disk there are so many copies of its content.
_COPIES = 4
_LEAST_ROOM = GIB


@dataclass(frozen=True, slots=True)
class Root:
    """A root file system: the name of its image, and what its source says of a template's machine and commands.

    `start`: the command that the source has of its own. `rehearsal`: see Recipe.
    """

    image: str
    disk_gib: int
    cpu: int = 1
    memory_mib: int = _MEMORY_MIB
    defaults: Defaults = field(default_factory=Defaults)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    rehearsal: tuple[tuple[str, ...], ...] = ()


def recipe_of(name: str) -> Recipe:
    """Return the recipe of that name. Raises InvalidRequest, naming those there are."""
    recipe = RECIPES.get(TemplateName(name))
    if recipe is None:
        raise InvalidRequest(f"there is no recipe for a template {name!r}; there is: {', '.join(sorted(RECIPES))}")
    return recipe


class Roots:
    """Finds or makes root file systems for one build. `disk_gib`: so large is the disk, or larger if it has to be."""

    def __init__(self, shop: Workshop, debian: Debian) -> None:
        self._shop, self._debian = shop, debian

    async def of_recipe(self, name: str, disk_gib: int | None) -> Root:
        """Return a recipe's. Raises InvalidRequest for one that there is not, Unsupported, Failed."""
        recipe = recipe_of(name)
        recipe = replace(recipe, disk_gib=max(recipe.disk_gib, disk_gib or 0))
        maker = self._debian.root(recipe)
        image = await self.ensured(maker.inputs, maker.detail, maker.make)
        return Root(image, recipe.disk_gib, recipe.cpu, recipe.memory_mib, rehearsal=recipe.rehearsal)

    async def of_image(self, reference: str, disk_gib: int | None) -> Root:
        """Return that of an image in a registry. Raises as `oci.Registry` and `trees.unpack` do."""
        with aside(self._shop.layout.images / "registry") as folder:
            digest = await oci.Registry(folder, reference, self._shop.log).digest()

        async def make(into: Path) -> None:
            with work_folder(into) as work:
                layout = await oci.Registry(work, reference, self._shop.log).pull()
                await self._unpacked("layers", layout, Jailed(work), disk_gib)

        return self._strangers(await self.ensured(("image", digest, disk_gib), f"the image {reference}", make))

    async def of_sent(self, name: str, disk_gib: int | None) -> Root:
        """Return that of what was sent, `rootfs.tar` or `image.tar`. Raises InvalidRequest, and as `of_image` does."""
        archive = (self._shop.files or Path()) / name
        if not archive.is_file():
            raise InvalidRequest(f"the build was sent no {name}")

        async def make(into: Path) -> None:
            with work_folder(into) as work:
                if name == "rootfs.tar":
                    await self._unpacked("rootfs", "/rootfs.tar", Jailed(work, {"/rootfs.tar": archive}), disk_gib)
                else:
                    layout = await oci.open_archive(work, archive, self._shop.log)
                    await self._unpacked("layers", layout, Jailed(work), disk_gib)

        digest = await asyncio.to_thread(sha256_of, archive)
        return self._strangers(await self.ensured((name, digest, disk_gib), f"what is in {name}", make))

    async def empty(self, disk_gib: int | None) -> Root:
        """Return one without anything."""

        async def make(into: Path) -> None:
            with work_folder(into) as work:
                (work / "tree").mkdir()
                await self._disk(work, disk_gib)

        return self._strangers(await self.ensured(("empty", disk_gib), "an empty disk", make))

    async def grown(self, root: Root, disk_gib: int) -> Root:
        """Return the same with a disk of that size, if its own is smaller."""
        if disk_gib <= root.disk_gib:
            return root
        source = self._shop.images.path(root.image) / _DISK
        detail = f"a disk of {disk_gib} GiB"
        image = await self.ensured(("grown", root.image, disk_gib), detail, lambda into: grow(source, into, disk_gib))
        return replace(root, image=image, disk_gib=disk_gib)

    async def ensured(self, inputs: tuple[object, ...], detail: str, make: Callable[[Path], Awaitable[None]]) -> str:
        """Return the name of the image with these inputs, made if it is not there."""
        name = f"root-{digest_of(BAKE_FORMAT, *inputs)}"
        with self._shop.step("root", detail):
            await self._shop.images.ensure(name, make, again=self._shop.again)
        return name

    async def _unpacked(self, how: str, source: str, jailed: Jailed, disk_gib: int | None) -> None:
        """Make a disk of what is in an archive or a layout, with its settings beside it."""
        sifted = await unpack(how, source, jailed, min(self._room(), LARGEST_BYTES), self._shop.log)
        if sifted.left_out:
            await self._shop.say(f"{sifted.left_out} devices and pipes were left out: a guest has its own")
        found = oci.configured(sifted.settings)
        await self._disk(jailed.work, disk_gib)
        (jailed.work.parent / _SETTINGS).write_text(oci.settings_json(found))

    async def _disk(self, work: Path, disk_gib: int | None) -> None:
        make_places(work / "tree")
        await make_disk(work / "tree", work / _DISK, disk_gib, self._shop.log)
        (work / _DISK).rename(work.parent / _DISK)

    def _room(self) -> int:
        """Return how many bytes of files may be unpacked beside what else is on the host's disk. Raises OutOfSpace."""
        layout = self._shop.layout
        demand_room(layout.home, _LEAST_ROOM * _COPIES, layout.reserve)
        return (free_and_total(layout.home)[0] - layout.reserve) // _COPIES

    def _strangers(self, image: str) -> Root:
        folder = self._shop.images.path(image)
        found = oci.read_settings(folder / _SETTINGS)
        disk_gib = (folder / _DISK).stat().st_size // GIB
        return Root(image, disk_gib, defaults=found.defaults, entrypoint=found.entrypoint, command=found.command)


@contextmanager
def work_folder(into: Path) -> Iterator[Path]:
    """A folder in an image that is being made, for what is needed on the way."""
    work = into / "work"
    work.mkdir(mode=0o700)
    yield work
    remove_tree(work)
