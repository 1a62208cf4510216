"""A real host agent in this process, on a data directory of its own, asked as the control plane asks it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from torpor.control.hosts import HostClient
from torpor.host.config import HostConfig
from torpor.host.main import host_agent
from torpor.model.ids import new_build_id, new_sandbox_id
from torpor.storage.volume import VolumeConfig
from torpor.wire.builds import BuildOrder, News
from torpor.wire.errors import from_body
from torpor.wire.frames import Kind
from torpor.wire.host import ExecOrder, ExecOutcome, Incarnation, Restore
from torpor.wire.memory import MemoryTransport
from torpor.wire.public import TemplateView


@dataclass
class HostAgent:
    """The host agent's client, and shorter ways to what tests do with it. `lines`: the log of the last build."""

    home: Path
    client: HostClient
    lines: list[str] = field(default_factory=list)

    async def build(self, order: Mapping[str, object], files: Mapping[str, bytes] | None = None) -> TemplateView:
        """Build a template. Raises what the build ends with."""
        build, self.lines = new_build_id(), []
        for path, content in (files or {}).items():
            mode = "755" if path.endswith(".sh") else None
            await self.client.send_build_file(build, path, mode, chunks_of(content))
        async with self.client.build(build, BuildOrder.model_validate(order)) as news:
            last: News | None = None
            async for last in news:
                if last.line is not None:
                    self.lines.append(last.line)
        assert last is not None
        if last.error is not None:
            raise from_body(last.error, 500)
        assert last.template is not None
        return last.template

    @asynccontextmanager
    async def sandbox(self, template: str, **more: object) -> AsyncIterator[str]:
        """Make a sandbox for as long as the block lasts, and yield its id."""
        made = await self.restore(template=template, **more)
        try:
            yield made.id
        finally:
            await self.client.close(made.id)

    async def restore(self, **order: object) -> Incarnation:
        """Make a sandbox."""
        return await self.client.restore(Restore.model_validate({"id": new_sandbox_id(), **order}))

    async def run(self, sandbox: str, *argv: str, **more: object) -> tuple[int, str, str]:
        """Run a command and return its exit code and what it wrote."""
        written = {Kind.STDOUT: b"", Kind.STDERR: b""}
        order = ExecOrder.model_validate({"argv": list(argv), **more})
        async with self.client.exec(sandbox, order) as frames:
            async for kind, payload in frames:
                if kind is Kind.EXIT:
                    outcome = ExecOutcome.model_validate_json(payload)
                else:
                    written[kind] += payload
        return outcome.exit_code, written[Kind.STDOUT].decode(), written[Kind.STDERR].decode()

    async def shell(self, sandbox: str, script: str, **more: object) -> str:
        """Run a shell's script that succeeds, and return what it wrote."""
        code, out, err = await self.run(sandbox, "/bin/sh", "-c", script, **more)
        assert code == 0, err
        return out


async def chunks_of(content: bytes) -> AsyncIterator[bytes]:
    """Yield some bytes as a source of them."""
    yield content


@asynccontextmanager
async def running_agent(home: Path) -> AsyncIterator[HostAgent]:
    """Run a host agent on a data directory while the block lasts."""
    config = replace(HostConfig.from_environment(home), spare_s=0, volume=VolumeConfig("off"))
    async with host_agent(config) as app:
        client = HostClient(MemoryTransport(app))
        try:
            yield HostAgent(home, client)
        finally:
            for sandbox in await client.incarnations():
                await client.close(sandbox)
            await client.aclose()


def home_with_images(template_home: Path, home: Path) -> Path:
    """Make a data directory with what another one has of images and the template `base`, without copying it.

    Its images are links of its own, so that a build may remove those that it has no use for.
    """
    for part in ("images", "templates/base"):
        for entry in (path for path in (template_home / part).rglob("*") if path.is_file()):
            target = home / part / entry.relative_to(template_home / part)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.link(entry, target)
    for name in ("accelerator.json",):
        if (template_home / name).exists():
            (home / name).write_bytes((template_home / name).read_bytes())
    return home
