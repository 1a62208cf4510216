"""Taking the steps of a Dockerfile, inside a guest."""

from __future__ import annotations

import asyncio
import codecs
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from torpor.errors import Failed, InvalidRequest, TorporError
from torpor.guest.client import Guest
from torpor.host.building.context import Brought, Context, pack
from torpor.host.building.machine import guest_python
from torpor.host.building.workshop import Workshop
from torpor.model.dockerfile import refused
from torpor.model.ids import new_job_id
from torpor.model.steps import CopyStep, FolderStep, Plan, RunStep
from torpor.storage.trees import sift_archive
from torpor.wire.frames import Kind
from torpor.wire.host import ExecOrder, ExecOutcome, JobOrder

_PIECE = 256 * 1024
_LONGEST_LINE = 4096
_SHOWN = 300
_ROOT_USER, _ROOT_FOLDER = "root", "/"


class Stepper:
    """Takes steps in one guest. `work`: a folder for what is needed on the way."""

    def __init__(self, shop: Workshop, guest: Guest, context: Context, work: Path) -> None:
        self._shop, self._guest, self._context, self._work = shop, guest, context, work

    async def take(self, plan: Plan) -> None:
        """Take all steps, in order.

        Raises InvalidRequest for one that cannot be taken, Failed for a command that fails; both name the line.
        """
        for number, step in enumerate(plan.steps, start=1):
            await self._shop.say(f"step {number}/{len(plan.steps)}: {step.shown[:_SHOWN]}")
            try:
                match step:
                    case RunStep():
                        await self._run(step)
                    case CopyStep():
                        await self._copy(step)
                    case FolderStep():
                        await self._guest.mkdir(step.path)
            except InvalidRequest as error:
                if error.message.startswith("Dockerfile, line"):
                    raise
                raise refused(step.line, error.message) from error

    async def _run(self, step: RunStep) -> None:
        await self._guest.set_defaults(step.defaults)
        outcome = await self._followed(ExecOrder(argv=list(step.words), env=dict(step.env)))
        if outcome.exit_code != 0:
            how = f"was ended by {outcome.signal}" if outcome.signal else f"ended with code {outcome.exit_code}"
            raise Failed(f"Dockerfile, line {step.line}: {step.shown[:_SHOWN]} {how}", hint="the log has what it said")

    async def _followed(self, order: ExecOrder) -> ExecOutcome:
        """Run a command to its end, telling each line it writes as it comes; it waits while nobody takes them."""
        lines = {kind: _Lines() for kind in (Kind.STDOUT, Kind.STDERR)}
        async with self._guest.exec(order) as frames:
            async for kind, payload in frames:
                if kind is Kind.EXIT:
                    for each in lines.values():
                        for line in each.end():
                            await self._shop.say(line)
                    return ExecOutcome.model_validate_json(payload)
                for line in lines[kind].take(payload) if kind in lines else ():
                    await self._shop.say(line)
        raise Failed("the guest did not say how a command ended")

    async def _copy(self, step: CopyStep) -> None:
        if not step.target.endswith("/") and await self._is_folder(step.target):
            step = replace(step, target=f"{step.target}/")
        brought = await asyncio.to_thread(self._context.brought, step)
        archive = self._work / "copied.tar"
        await asyncio.to_thread(pack, brought, step.mode, archive)
        await self._unpack(step, archive, "/")
        for each in brought:
            if each.unpacks:
                await self._add(step, each)

    async def _add(self, step: CopyStep, brought: Brought) -> None:
        folder = self._work / "added"  # of its own: the work folder has the machine's disk and sockets
        folder.mkdir(mode=0o700)
        try:
            archive = await sift_archive(brought.source, folder, self._shop.log)
        except InvalidRequest as error:
            raise refused(step.line, f"{brought.source.name}: {error.message}") from error
        await self._unpack(step, archive, brought.target)
        shutil.rmtree(folder)

    async def _is_folder(self, path: str) -> bool:
        try:
            return (await self._guest.stat(f"{path}/.")).is_dir
        except TorporError:
            return False

    async def _unpack(self, step: CopyStep, archive: Path, into: str) -> None:
        """Unpack an archive in the guest."""
        owner = [] if step.owner is None else ["--chown", step.owner]
        argv = guest_python("unpack", "--into", into, *owner)
        job = new_job_id()
        await self._guest.start(
            JobOrder(job=job, argv=argv, user=_ROOT_USER, cwd=_ROOT_FOLDER, open_stdin=True, env={"PATH": "/bin"})
        )
        await self._guest.feed(job, _chunks(archive), close=True)
        said: list[str] = []
        lines = _Lines()
        async with self._guest.attach(job) as frames:
            async for kind, payload in frames:
                if kind is Kind.STDERR:
                    said = [*said, *lines.take(payload)][-1:]
                elif kind is Kind.EXIT:
                    said = [*said, *lines.end()][-1:]
                    outcome = ExecOutcome.model_validate_json(payload)
        archive.unlink()
        if outcome.exit_code != 0:
            why = said[-1].removeprefix("unpack: ") if said else f"it ended with code {outcome.exit_code}"
            raise refused(step.line, why)


class _Lines:
    """Makes lines of what a command writes; of a long one, pieces."""

    def __init__(self) -> None:
        self._held = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, data: bytes) -> list[str]:
        """Take what was written, and return the lines that are whole now."""
        *whole, self._held = (self._held + self._decoder.decode(data)).split("\n")
        while len(self._held) > _LONGEST_LINE:
            whole.append(self._held[:_LONGEST_LINE])
            self._held = self._held[_LONGEST_LINE:]
        return [_shown(line) for line in whole]

    def end(self) -> list[str]:
        """Return what was not ended by a line feed."""
        held, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return [_shown(held)] if held else []


def _shown(line: str) -> str:
    """Return a line without what only a terminal understands, and of one that was written over itself the last."""
    last = line.rstrip("\r").rpartition("\r")[2]
    return "".join(char for char in last if char.isprintable() or char == "\t")


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_PIECE):
            yield chunk


def identity_of(plan: Plan, context: Context) -> str:
    """Return what the steps of a plan, and all that they bring, are told by from other ones. Raises InvalidRequest."""
    said: list[object] = []
    for step in plan.steps:
        match step:
            case RunStep():
                defaults = [dict(step.defaults.env), step.defaults.cwd, step.defaults.user]
                said.append(["run", step.words, dict(step.env), defaults])
            case CopyStep():
                said.append(["copy", step.target, step.owner, step.mode, context.digest(step)])
            case FolderStep():
                said.append(["folder", step.path])
    return json.dumps(said, sort_keys=True)
