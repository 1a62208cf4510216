"""bake: make a template. Images are made or reused; a guest is booted from cold, made ready, frozen and published."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from torpor.errors import Failed, Forbidden, InvalidRequest, NotFound, SnapshotCorrupt, Unsupported
from torpor.host.choice import DriverChoice
from torpor.host.config import HostConfig, volume_from_environment
from torpor.host.flow.boot import boot_and_freeze
from torpor.host.lock import locked
from torpor.host.record import BASE
from torpor.host.views import template_view
from torpor.kit.files import DRAFT_PREFIX, sweep
from torpor.model.ids import TemplateName
from torpor.model.template import BAKE_FORMAT, RECIPES, Recipe, Template
from torpor.network.addresses import COMMAND_LINE_WORD, GUEST_MAC
from torpor.storage.debian import cloud_kernel_package, host_archive, newest_version
from torpor.storage.frozen import read
from torpor.storage.images import Images, digest_of, digest_of_folder
from torpor.storage.kernel import INGREDIENTS, make_kernel
from torpor.storage.layout import Layout
from torpor.storage.room import MIB
from torpor.storage.rootfs import Bootstrap, make_root, make_runtime, trusted_certificates
from torpor.storage.templates import Templates
from torpor.storage.volume import ensure_room, use_volume
from torpor.vmm.driver import Driver
from torpor.vmm.qemu.probe import MARK
from torpor.vmm.qemu.survivors import QemuSurvivors
from torpor.wire.public import TemplateView

_log = structlog.get_logger(__name__)

# Beside console and panic: what a guest has no use for and pays for at every switch of tasks, opened file or timer
# (security modules, auditing, pressure statistics, watchdogs), and huge pages only on request, since a touched page is
# a saved page.
_COMMAND_LINE = (
    f"{COMMAND_LINE_WORD} "
    "console=ttyS0 reboot=t panic=-1 random.trust_cpu=on quiet loglevel=4 "
    "lsm=capability audit=0 psi=0 nowatchdog tsc=nowatchdog transparent_hugepage=madvise"
)


@dataclass(frozen=True, slots=True)
class BuildEvent:
    """Progress of a bake: `step` began (`done` False) or ended after `elapsed_s` seconds; `detail` is for people."""

    step: str
    detail: str
    done: bool
    elapsed_s: float


Report = Callable[[BuildEvent], None]


def _silent(_event: BuildEvent) -> None:
    """Report to nobody."""


async def build_template(home: Path, name: str, *, force: bool = False, report: Report = _silent) -> TemplateView:
    """Bake the template `name` in a data directory and return it.

    One whose inputs are unchanged is reused unless `force`, which also makes the root file system anew, from what the
    archive has now. Whatever fails, an older template of the name stays as it was. The log is `logs/bake-<name>.log`.

    Raises InvalidRequest (unknown name), Forbidden (not root), Unsupported (a tool or package is missing; the hint
    names it), Busy (another bake runs), BootFailed, OutOfSpace, Failed.
    """
    recipe = _recipe(name)
    if os.geteuid() != 0:
        raise Forbidden("templates are baked by root, who alone can make a root file system", hint="use sudo")
    with (
        use_volume(home, volume_from_environment()) as layout,
        locked(layout.bake_lock, what="the folder of templates"),
    ):
        await _end_left(layout)
        for folder in (layout.images, layout.templates):
            sweep(folder)  # what an earlier bake left that was killed
        work = _Bake(layout, recipe, force, report)
        return template_view(await work.run())


async def _end_left(layout: Layout) -> None:
    """End the machines of bakes that were killed: their own end comes with their bake's, but for its first moments."""
    survivors = QemuSurvivors()
    for draft in layout.templates.glob(f"{DRAFT_PREFIX}*"):
        for process in await asyncio.to_thread(survivors.below, draft):
            _log.warning("ending the machine of a bake that was killed", pid=process.pid)
            await survivors.end(process)


def images_in_use(layout: Layout) -> set[str]:
    """Return the names of the images that a template, a snapshot or a sandbox stands on.

    Raises SnapshotCorrupt or Unsupported if one of them cannot be read, but for templates, which can be baked again.
    """
    folders = [*layout.snapshots.glob("snp-*"), *layout.sandboxes.glob(f"*/{BASE}")]
    found = [*Templates(layout).all(), *(read(folder).template for folder in folders)]
    return {name for template in found for name in template.images.values()}


def _recipe(name: str) -> Recipe:
    recipe = RECIPES.get(TemplateName(name))
    if recipe is None:
        raise InvalidRequest(f"there is no recipe for a template {name!r}; there is: {', '.join(sorted(RECIPES))}")
    return recipe


@dataclass(frozen=True, slots=True)
class _Maker:
    """How an image comes about: what it depends on, a line for people, and the making."""

    inputs: tuple[object, ...]
    detail: str
    make: Callable[[Path], Awaitable[None]]


class _Bake:
    """One bake under way."""

    def __init__(self, layout: Layout, recipe: Recipe, force: bool, report: Report) -> None:
        self._layout, self._recipe, self._force, self._report = layout, recipe, force, report
        self._images, self._templates = Images(layout), Templates(layout)
        self._log = layout.logs / f"bake-{recipe.name}.log"

    async def run(self) -> Template:
        self._log.unlink(missing_ok=True)
        self._log.touch(mode=0o600)
        images = await self._ensure_images()
        driver = await DriverChoice(HostConfig.from_environment(self._layout.home), self._layout)()
        digest = digest_of(BAKE_FORMAT, self._recipe, images, driver.fingerprint, _COMMAND_LINE)
        if not self._force and (found := self._baked(digest)) is not None:
            with self._step("snapshot", "reused, its inputs are unchanged"):
                return found
        template = await self._freeze(driver, digest, images)
        self._collect()
        return template

    def _collect(self) -> None:
        """Remove the images that nothing stands on any more; none, if somebody's cannot be told."""
        try:
            self._images.collect(images_in_use(self._layout))
        except (SnapshotCorrupt, Unsupported) as error:
            _log.warning("no unused image was removed", why=error.message)

    def _baked(self, digest: str) -> Template | None:
        try:
            found = self._templates.open(self._recipe.name).template
        except (NotFound, SnapshotCorrupt, Unsupported):
            return None  # nothing that could be reused
        return found if found.digest == digest else None

    async def _ensure_images(self) -> dict[str, str]:
        with self._step("archive", "the host's Debian archive"):
            makers = await self._image_makers()
        names: dict[str, str] = {}
        for kind, maker in makers.items():
            names[kind] = f"{kind}-{digest_of(BAKE_FORMAT, *maker.inputs)}"
            with self._step(kind, maker.detail):
                await self._images.ensure(names[kind], maker.make, again=self._force and kind == "root")
        return names

    async def _image_makers(self) -> dict[str, _Maker]:
        archive, kernel, python = await asyncio.gather(
            host_archive(), cloud_kernel_package(), newest_version("python3-minimal")
        )
        version = await newest_version(kernel)
        bootstrap, certificates = Bootstrap(archive, self._log), trusted_certificates()
        agent = _source_of("torpor_guest")
        packages = f"Debian {archive.codename} with {', '.join(self._recipe.packages)}"
        return {
            "kernel": _Maker(
                (version, MARK, INGREDIENTS),
                f"{kernel} {version}",
                lambda into: make_kernel(kernel, MARK, into, self._log),
            ),
            "runtime": _Maker(
                (archive.codename, python, digest_of_folder(agent)),
                "the guest agent and its Python",
                lambda into: make_runtime(bootstrap, agent, into),
            ),
            "root": _Maker(
                (archive.codename, self._recipe.packages, self._recipe.disk_gib, certificates),
                packages,
                lambda into: make_root(bootstrap, self._recipe, certificates, into),
            ),
        }

    async def _freeze(self, driver: Driver, digest: str, images: dict[str, str]) -> Template:
        ensure_room(self._layout, self._recipe.memory_mib * MIB)
        described = Template(
            name=self._recipe.name,
            digest=digest,
            created_at=datetime.now(UTC),
            cpu=self._recipe.cpu,
            memory_mib=self._recipe.memory_mib,
            disk_gib=self._recipe.disk_gib,
            command_line=_COMMAND_LINE,
            images=images,
            fingerprint=driver.fingerprint,
            mac=GUEST_MAC,
        )
        with self._templates.publish(self._recipe.name) as draft, self._step("snapshot", "boot from cold, then freeze"):
            return await boot_and_freeze(driver, self._images, described, draft, self._log)

    @contextmanager
    def _step(self, step: str, detail: str) -> Iterator[None]:
        started = time.monotonic()
        self._report(BuildEvent(step, detail, done=False, elapsed_s=0.0))
        yield
        self._report(BuildEvent(step, detail, done=True, elapsed_s=time.monotonic() - started))


def _source_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise Failed(f"the package {package} is not installed", hint="reinstall torpor")
    return Path(spec.submodule_search_locations[0])
