"""The root file system that a Dockerfile makes: its steps are taken inside a microVM, never on this host."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from torpor.errors import InvalidRequest, NotFound
from torpor.host.building.context import Context
from torpor.host.building.machine import finish, flatten, working_guest
from torpor.host.building.roots import Root, Roots, work_folder
from torpor.host.building.stepping import Stepper, identity_of
from torpor.host.building.workshop import Workshop
from torpor.model.builds import is_private
from torpor.model.dockerfile import Dockerfile, parse, refused
from torpor.model.ids import TemplateName, is_template_name
from torpor.model.steps import SCRATCH, Ground, Plan, base_of, plan
from torpor.model.template import RECIPES, Template
from torpor.storage.templates import Templates
from torpor.wire.builds import BuildOrder, DockerfileSource

# Returns what a machine on a root file system is made of, for a build.
Describe = Callable[[Root, BuildOrder], Awaitable[Template]]


class Dockerfiles:
    """Makes root file systems by Dockerfiles."""

    def __init__(self, shop: Workshop, roots: Roots, describe: Describe) -> None:
        self._shop, self._roots, self._describe = shop, roots, describe

    async def root(self, source: DockerfileSource, order: BuildOrder) -> Root:
        """Return what a Dockerfile makes. Steps and files that are as they were are not run again.

        Raises InvalidRequest with the line, Failed for a command that fails, and what FROM and a boot raise.
        """
        file = parse(source.dockerfile)
        base = await self._base(file, source, order)
        planned = plan(file, source.arguments, Ground(base.defaults, base.entrypoint, base.command))
        context = await asyncio.to_thread(_context, self._shop.files)
        image = base.image
        if planned.steps:
            identity = await asyncio.to_thread(identity_of, planned, context)

            async def make(into: Path) -> None:
                await self._make(base, planned, context, order, into)

            image = await self._roots.ensured(("dockerfile", base.image, identity), "the steps of the Dockerfile", make)
        made = replace(base, image=image, defaults=planned.defaults, rehearsal=())
        return replace(made, entrypoint=planned.entrypoint, command=planned.command, start=planned.start)

    async def _make(self, base: Root, planned: Plan, context: Context, order: BuildOrder, into: Path) -> None:
        described = await self._describe(base, order)
        with work_folder(into) as work:
            async with working_guest(self._shop, described, work) as guest:
                await Stepper(self._shop, guest, context, work).take(planned)
                await finish(guest)
            image = self._shop.images.path(base.image) / "root.img"
            await flatten(work, image, into, self._shop.log)

    async def _base(self, file: Dockerfile, source: DockerfileSource, order: BuildOrder) -> Root:
        """Return what FROM names: nothing, a template, a recipe, or an image in a registry."""
        name, line = base_of(file, source.arguments), file.base.line
        await self._shop.say(f"FROM {name}")
        try:
            if name == SCRATCH:
                return await self._roots.empty(order.disk_gb)
            if (template := self._template(name, order)) is not None:
                root = _root_of(template)
                return root if order.disk_gb is None else await self._roots.grown(root, order.disk_gb)
            if TemplateName(name) in RECIPES:
                return await self._roots.of_recipe(name, order.disk_gb)
            return await self._roots.of_image(name, order.disk_gb)
        except (InvalidRequest, NotFound) as error:
            raise refused(line, error.message, error.hint) from error

    def _template(self, name: str, order: BuildOrder) -> Template | None:
        """Return the template that is called so for whoever builds, None if there is none."""
        called = order.names.get(name, name)
        if not is_template_name(called) or (name not in order.names and is_private(called)):
            return None
        try:
            return Templates(self._shop.layout).get(TemplateName(called))
        except NotFound:
            return None


def _root_of(template: Template) -> Root:
    if template.snapshot is not None:
        raise InvalidRequest(
            "FROM names a template that was made of a snapshot, whose disk is of no use without its memory",
            hint="create a sandbox of it instead",
        )
    image = template.images["root"]
    return Root(image, template.disk_gib, template.cpu, template.memory_mib, template.defaults)


def _context(files: Path | None) -> Context:
    try:
        return Context(None if files is None else files / "context")
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
