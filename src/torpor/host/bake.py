"""bake: make a template. Images are made or reused; a guest is booted from cold, made ready, frozen and published.

A template of a snapshot needs none of that: it is the snapshot, published under a name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import structlog

from torpor.errors import Forbidden, InvalidRequest, NotFound, SnapshotCorrupt, Unsupported
from torpor.host.building.debian import Debian
from torpor.host.building.dockerfiles import Dockerfiles
from torpor.host.building.promote import promote
from torpor.host.building.roots import Root, Roots, recipe_of
from torpor.host.building.workshop import BuildEvent, Report, Workshop, silent
from torpor.host.choice import DriverChoice
from torpor.host.config import HostConfig, volume_from_environment
from torpor.host.flow.boot import Rehearsal, boot_and_freeze
from torpor.host.lock import locked
from torpor.host.record import BASE
from torpor.host.views import template_view
from torpor.kit.files import DRAFT_PREFIX, sweep
from torpor.model.ids import TemplateName, is_template_name
from torpor.model.steps import SHELL
from torpor.model.template import BAKE_FORMAT, BAYS, Template
from torpor.network.addresses import COMMAND_LINE_WORD, GUEST_MAC
from torpor.storage.frozen import read
from torpor.storage.images import Images, digest_of
from torpor.storage.layout import Layout
from torpor.storage.room import MIB
from torpor.storage.templates import Templates
from torpor.storage.trees import LARGEST_GIB
from torpor.storage.volume import ensure_room, use_volume
from torpor.vmm.qemu.survivors import QemuSurvivors
from torpor.wire.builds import (
    ArchiveSource,
    BuildOrder,
    DockerfileSource,
    ImageSource,
    RecipeSource,
    RootfsSource,
    SnapshotSource,
)
from torpor.wire.public import TemplateView

__all__ = ["BuildEvent", "Report", "bake", "build_template", "images_in_use", "the_only_bake"]

_log = structlog.get_logger(__name__)

# Beside console and panic: what a guest has no use for and pays for at every switch of tasks, opened file or timer
# (security modules, auditing, pressure statistics, watchdogs), and huge pages only on request, since a touched page is
# a saved page.
_COMMAND_LINE = (
    f"{COMMAND_LINE_WORD} "
    "console=ttyS0 reboot=t panic=-1 random.trust_cpu=on quiet loglevel=4 "
    "lsm=capability audit=0 psi=0 nowatchdog tsc=nowatchdog transparent_hugepage=madvise"
)
_MOST_CPUS, _MOST_MEMORY_MIB = 16, 65536


async def build_template(home: Path, name: str, *, force: bool = False, report: Report = silent) -> TemplateView:
    """Bake the template that there is a recipe for, `name`, in a data directory, without a server, and return it.

    One whose inputs are unchanged is reused unless `force`, which also makes the root file system anew, from what the
    archive has now. Whatever fails, an older template of the name stays as it was. The log is `logs/bake-<name>.log`.

    Raises InvalidRequest (unknown name), Forbidden (not root), Unsupported (a tool or package is missing; the hint
    names it), Busy (another bake runs), BootFailed, OutOfSpace, Failed.
    """
    order = BuildOrder(template=name, source=RecipeSource(recipe=name), force=force)
    check(order)
    with use_volume(home, volume_from_environment()) as layout, the_only_bake(layout):
        await clear_up(layout)
        choose = DriverChoice(HostConfig.from_environment(layout.home), layout)
        shop = Workshop(layout, choose, log_of(layout, name), report=report, again=force)
        return template_view(await bake(shop, order))


def log_of(layout: Layout, name: str) -> Path:
    """Return where the log of the bakes of a template is."""
    return layout.logs / f"bake-{name}.log"


@contextmanager
def the_only_bake(layout: Layout) -> Iterator[None]:
    """Let no other bake run in a data directory while the block does. Raises Busy."""
    with locked(layout.bake_lock, what="the folder of templates"):
        yield


async def clear_up(layout: Layout) -> None:
    """Remove what an earlier bake left that was killed: its machine, and its drafts. To be called by the only bake.

    A folder of images that is linked from elsewhere is left alone: others may be making images in it.
    """
    survivors = QemuSurvivors()
    for folder in (folder for folder in (layout.images, layout.templates) if not folder.is_symlink()):
        for draft in folder.glob(f"{DRAFT_PREFIX}*"):
            for process in await asyncio.to_thread(survivors.below, draft):
                _log.warning("ending the machine of a bake that was killed", pid=process.pid)
                await survivors.end(process)
        sweep(folder)


def check(order: BuildOrder) -> None:
    """Refuse an order that makes no sense, before anything is done. Raises InvalidRequest, Forbidden."""
    if not is_template_name(order.template):
        raise InvalidRequest(f"template: {order.template!r} is no name of a template")
    if isinstance(order.source, RecipeSource):
        recipe_of(order.source.recipe)
    if isinstance(order.source, SnapshotSource) and (order.cpu, order.memory_mb, order.disk_gb) != (None,) * 3:
        raise InvalidRequest("a template of a snapshot has the snapshot's size", hint="leave cpu, memory and disk out")
    if isinstance(order.source, SnapshotSource) and order.start_command:
        raise InvalidRequest("a template of a snapshot begins in its midst, so there is nothing to be started")
    if (order.cpu or 1) > _MOST_CPUS or (order.memory_mb or 1) > _MOST_MEMORY_MIB:
        raise InvalidRequest(f"a machine has at most {_MOST_CPUS} processors and {_MOST_MEMORY_MIB} MiB of memory")
    if (order.disk_gb or 1) > LARGEST_GIB:
        raise InvalidRequest(f"a disk has at most {LARGEST_GIB} GiB")
    if os.geteuid() != 0:
        raise Forbidden("templates are baked by root, who alone can make a root file system", hint="use sudo")


def images_in_use(layout: Layout) -> set[str]:
    """Return the names of the images that a template, a snapshot or a sandbox stands on.

    Raises SnapshotCorrupt or Unsupported if one of them cannot be read, but for templates, which can be baked again.
    """
    folders = [*layout.snapshots.glob("snp-*"), *layout.sandboxes.glob(f"*/{BASE}")]
    found = [*Templates(layout).all(), *(read(folder).template for folder in folders)]
    return {name for template in found for name in template.images.values()}


async def bake(shop: Workshop, order: BuildOrder) -> Template:
    """Make what is ordered, and return the published template; the caller has seen to it that no other bake runs.

    Whatever fails, an older template of the name stays as it was, and nothing is left but images, which may be used
    again. Raises as `build_template` does, and what the source raises: InvalidRequest, NotFound, Forbidden, Failed.
    """
    shop.log.unlink(missing_ok=True)
    shop.log.touch(mode=0o600)
    if isinstance(order.source, SnapshotSource):
        return await promote(shop, order, order.source)
    return await _Bake(shop, order).run()


class _Bake:
    """One bake under way."""

    def __init__(self, shop: Workshop, order: BuildOrder) -> None:
        self._shop, self._order = shop, order
        self._name, self._templates = TemplateName(order.template), Templates(shop.layout)
        self._machine_images: dict[str, str] = {}

    async def run(self) -> Template:
        debian = await Debian.open(self._shop)
        self._machine_images = await debian.machine_images()
        root = await self._root(Roots(self._shop, debian))
        described = await self._describe(root, self._order)
        if not self._shop.again and (found := self._baked(described.digest)) is not None:
            with self._shop.step("snapshot", "reused, its inputs are unchanged"):
                return found
        template = await self._freeze(described, Rehearsal(root.rehearsal))
        self._collect({root.image})
        return template

    async def _root(self, roots: Roots) -> Root:
        order = self._order
        match order.source:
            case RecipeSource():
                return await roots.of_recipe(order.source.recipe, order.disk_gb)
            case ImageSource():
                return await roots.of_image(order.source.reference, order.disk_gb)
            case ArchiveSource():
                return await roots.of_sent("image.tar", order.disk_gb)
            case RootfsSource():
                return await roots.of_sent("rootfs.tar", order.disk_gb)
            case DockerfileSource():
                return await Dockerfiles(self._shop, roots, self._describe).root(order.source, order)
        raise InvalidRequest(f"a source of the kind {order.source.kind} has no root file system")

    async def _describe(self, root: Root, order: BuildOrder) -> Template:
        """Return the template that is to come of a root file system, or a machine that is one on the way."""
        fingerprint = (await self._shop.choose()).fingerprint
        sizes = (order.cpu or root.cpu, order.memory_mb or root.memory_mib, root.disk_gib)
        images = {**self._machine_images, "root": root.image}
        start = root.start if order.start_command is None else ()
        if order.start_command:
            start = (*SHELL, order.start_command)
        meant = (self._name, sizes, images, fingerprint, _COMMAND_LINE, root.defaults, start, root.rehearsal)
        return Template(
            name=self._name,
            digest=digest_of(BAKE_FORMAT, *meant),
            created_at=datetime.now(UTC),
            cpu=sizes[0],
            memory_mib=sizes[1],
            disk_gib=sizes[2],
            command_line=_COMMAND_LINE,
            images=images,
            fingerprint=fingerprint,
            mac=GUEST_MAC,
            bays=BAYS,
            defaults=root.defaults,
            start=start,
        )

    def _baked(self, digest: str) -> Template | None:
        try:
            found = self._templates.open(self._name).template
        except (NotFound, SnapshotCorrupt, Unsupported):
            return None  # nothing that could be reused
        return found if found.digest == digest else None

    async def _freeze(self, described: Template, rehearsal: Rehearsal) -> Template:
        ensure_room(self._shop.layout, described.memory_mib * MIB)
        driver, images, log = await self._shop.choose(), self._shop.images, self._shop.log
        with self._templates.publish(self._name) as draft, self._shop.step("snapshot", "boot from cold, then freeze"):
            async with self._shop.admit(described):
                return await boot_and_freeze(driver, images, described, draft, log, rehearsal)

    def _collect(self, ours: set[str]) -> None:
        """Remove the images that nothing stands on any more; none, if somebody's cannot be told.

        Nor any of a folder that is linked from elsewhere, and so may be others' too.
        """
        if self._shop.layout.images.is_symlink():
            return
        try:
            Images(self._shop.layout).collect(images_in_use(self._shop.layout) | ours)
        except (SnapshotCorrupt, Unsupported) as error:
            _log.warning("no unused image was removed", why=error.message)
