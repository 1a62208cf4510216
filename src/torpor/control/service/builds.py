"""Builds of templates as their callers see them: ordered, looked at, followed, cancelled."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace

import structlog

from torpor.control.rounds import rung_or_slept
from torpor.control.service.builder import RETRY_S
from torpor.control.service.claims import claim_for
from torpor.control.service.plane import Plane
from torpor.control.service.snapshots import show_snapshot
from torpor.control.service.templates import tidy_templates
from torpor.control.store.builds import BuildClaim
from torpor.errors import Busy, Conflict, Forbidden, HostUnreachable, InvalidRequest, NotFound, TorporError, Unsupported
from torpor.kit.shielded import shielded
from torpor.model.access import Caller
from torpor.model.builds import Build, LogLine, may_name_template
from torpor.model.ids import BuildId, TemplateName, WorkspaceId, is_build_id
from torpor.wire import builds as wire
from torpor.wire.templates import BuildTemplate

_log = structlog.get_logger("torpor.control")

# Without anything to build, what was left behind is looked for so often.
_TIDY_S = 600.0
_LINES_AT_ONCE = 500
_MIB_PER_GIB = 1024
_SOURCES = ("image_ref", "dockerfile", "from_snapshot", "recipe")
# The files that are the source themselves, by the names they have on the host.
_ARCHIVES = {"rootfs.tar": "rootfs", "image.tar": "image"}


@dataclass(frozen=True, slots=True)
class Wish:
    """What a caller asks to be built. `files`: what the host was sent for it: digests of contents, by path."""

    id: BuildId
    asked: BuildTemplate
    files: Mapping[str, str]


async def order_build(plane: Plane, caller: Caller, wish: Wish, key: str | None) -> Build:
    """Record what is wished for as a build that is queued, and return it, or the earlier one of an idempotency key.

    Raises InvalidRequest, NotFound (the snapshot), Forbidden, Unsupported, Conflict (the key was used for another
    request; the snapshot holds secrets), QuotaExceeded. Then what the host was sent is for the caller to remove.
    """
    asked = wish.asked
    is_global = _is_global(caller, asked)
    _check_name(asked.name)
    source = _source(caller, wish)
    if isinstance(source, wire.SnapshotSource):
        await _check_snapshot(plane, caller.workspace, source.snapshot)
    new = Build(
        id=wish.id,
        workspace=caller.workspace,
        name=TemplateName(asked.name),
        is_global=is_global,
        kind=source.kind,
        created_at=plane.clock.now(),
        order=None,
        has_files=bool(wish.files),
        image_ref=asked.image_ref,
        size_mb=asked.size_mb,
    )
    order = wire.BuildOrder(
        template=new.host_name,
        source=source,
        cpu=asked.cpu,
        memory_mb=asked.memory_mb,
        disk_gb=_disk_gb(asked.size_mb),
        start_command=asked.start_command,
        force=asked.force,
    )
    new = replace(new, order=order.model_dump_json())
    recorded = await plane.quotas.add_build(new, _claim(plane, wish, is_global, key))
    plane.bells.queue.set()
    plane.bells.builds.ring()
    return recorded


def _disk_gb(size_mb: int | None) -> int | None:
    """Return the size that a disk is to have, None where the usual one, or a larger one, is enough."""
    rounded_up = -(-(size_mb or 0) // _MIB_PER_GIB)
    return rounded_up if rounded_up > wire.USUAL_DISK_GB else None


def _is_global(caller: Caller, asked: BuildTemplate) -> bool:
    if asked.is_global and not caller.is_admin:
        raise Forbidden("only an admin's key may make a template for everybody", hint="leave is_global out")
    return caller.is_admin if asked.is_global is None else asked.is_global


def _check_name(name: str) -> None:
    if not may_name_template(name):
        raise InvalidRequest(
            f"name: {name!r} cannot name a template",
            hint="it has lower-case letters, digits, dots, dashes and underscores, begins and ends with a letter or a "
            "digit, and is not build, builds, scratch or tpl-...",
        )


def _source(caller: Caller, wish: Wish) -> wire.Source:
    """Return what a template is to be made of. Raises InvalidRequest unless that is exactly one thing."""
    asked = wish.asked
    archives = [_ARCHIVES[path] for path in wish.files if path in _ARCHIVES]
    given = [name for name in _SOURCES if getattr(asked, name) is not None] + archives
    if len(given) != 1:
        named = " and ".join(given) if given else "none of them"
        raise InvalidRequest(f"exactly one of {', '.join(_SOURCES)}, rootfs, image is required, and {named} was given")
    if asked.kernel is not None:
        raise Unsupported("kernel was given, and a template has Torpor's own kernel", hint="leave kernel out")
    if given != ["dockerfile"] and (asked.build_args or len(wish.files) > len(archives)):
        what = "build_args" if asked.build_args else "files of a context"
        raise InvalidRequest(f"{what} were given, and only a Dockerfile has a use for them")
    if asked.from_snapshot is not None and (asked.cpu, asked.memory_mb, asked.size_mb) != (None, None, None):
        raise InvalidRequest("a template of a snapshot has its size", hint="leave cpu, memory_mb and size_mb out")
    if asked.recipe is not None and not caller.is_admin:
        raise Forbidden("only an admin's key may build the server's own recipes")
    if asked.image_ref is not None:
        return wire.ImageSource(reference=asked.image_ref)
    if asked.dockerfile is not None:
        return wire.DockerfileSource(dockerfile=asked.dockerfile, arguments=asked.build_args)
    if asked.from_snapshot is not None:
        return wire.SnapshotSource(snapshot=asked.from_snapshot)
    if asked.recipe is not None:
        return wire.RecipeSource(recipe=asked.recipe)
    return wire.RootfsSource() if given == ["rootfs"] else wire.ArchiveSource()


async def _check_snapshot(plane: Plane, workspace: WorkspaceId, snapshot: str) -> None:
    record = await show_snapshot(plane, workspace, snapshot)
    if record.secret_names:
        raise Conflict(
            f"snapshot {snapshot} holds the secrets {', '.join(record.secret_names)}, which every sandbox of the "
            "template would have",
            hint="restore it with secrets={}, and take a snapshot of that",
        )


def _claim(plane: Plane, wish: Wish, is_global: bool, key: str | None) -> BuildClaim | None:
    hidden = {"build_args": wish.asked.build_args, "dockerfile": wish.asked.dockerfile}
    asked = wish.asked.model_dump(mode="json", exclude={"build_args", "dockerfile", "is_global"})
    told = asked | {"is_global": is_global, "files": sorted(wish.files.items())}
    held = claim_for(plane, told, {name: value for name, value in hidden.items() if value}, key)
    return None if held is None else BuildClaim(held.key, held.digest)


async def show_build(plane: Plane, workspace: WorkspaceId, build_id: str) -> Build:
    """Return a build. Raises NotFound for one that is unknown, another workspace's, or forgotten."""
    found = await plane.store.build(BuildId(build_id)) if is_build_id(build_id) else None
    if found is None or found.workspace != workspace:
        raise NotFound(f"there is no build {build_id}", hint="torpor template builds shows those there are")
    return found


async def cancel_build(plane: Plane, workspace: WorkspaceId, build_id: str) -> None:
    """End a build that waits or runs; fine if it has ended. Raises NotFound as `show_build`."""
    build = await show_build(plane, workspace, build_id)
    if build.is_open:
        await shielded(plane.builder.cancel(build.id))


async def log_of(plane: Plane, build: Build, after: int, *, follow: bool) -> AsyncGenerator[LogLine, None]:
    """Yield the lines of a build's log behind a number: those there are, or with `follow` all until it has ended."""
    while True:
        coming = plane.bells.builds.coming
        now = await plane.store.build(build.id)  # before its lines: what came before its end is then all there
        lines = await plane.store.lines(build.id, after, _LINES_AT_ONCE)
        for line in lines:
            yield line
            after = line.number
        if len(lines) == _LINES_AT_ONCE:
            continue
        if now is None or not now.is_open or not follow:
            return
        await coming.wait()


async def build_templates(plane: Plane) -> None:
    """Run what is queued for ever, and clear away what is nobody's. Ends by cancellation."""
    has_begun = False
    while True:
        pause_s = RETRY_S
        plane.bells.queue.clear()  # what rings from here on is not looked at yet
        try:
            if not has_begun:
                await plane.builder.begin()
                has_begun = True
            while await plane.builder.run_next():
                await tidy_templates(plane)
            await tidy_templates(plane)
            pause_s = _TIDY_S
        except (Busy, HostUnreachable) as error:
            _log.info("builds wait", error=error.message)
        except TorporError as error:
            _log.warning("could not build", error=error.message)
        await rung_or_slept(plane.bells.queue, plane.clock.sleep(pause_s))
