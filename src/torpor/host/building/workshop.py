"""What the making of one template works with, and tells of itself."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from torpor.host.choice import ChooseDriver
from torpor.model.template import Template
from torpor.network.absent import NoNetwork
from torpor.network.contract import Network
from torpor.storage.images import Images
from torpor.storage.layout import Layout


@dataclass(frozen=True, slots=True)
class BuildEvent:
    """Progress of a build: `step` began (`done` False) or ended after `elapsed_s` seconds; `detail` is for people."""

    step: str
    detail: str
    done: bool
    elapsed_s: float


Report = Callable[[BuildEvent], None]
Say = Callable[[str], Awaitable[None]]
Admit = Callable[[Template], AbstractAsyncContextManager[None]]


def silent(_event: BuildEvent) -> None:
    """Report to nobody."""


async def mute(_line: str) -> None:
    """Say it to nobody."""


def admit_all(_template: Template) -> AbstractAsyncContextManager[None]:
    """Let every machine run, as where no server counts them."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Workshop:
    """`report` hears of steps as they begin and end, `say` each line that commands of the build write, which wait.

    `admit`: holds room on the host for a machine of a template. `files`: the folder of what was sent for the build.
    `log`: the file that has all of it. `again`: nothing made before is used.
    """

    layout: Layout
    choose: ChooseDriver
    log: Path
    network: Network = field(default_factory=NoNetwork)
    admit: Admit = admit_all
    report: Report = silent
    say: Say = mute
    files: Path | None = None
    again: bool = False

    @property
    def images(self) -> Images:
        """The folder of images."""
        return Images(self.layout)

    @contextmanager
    def step(self, name: str, detail: str) -> Iterator[None]:
        """Report a step while the block lasts."""
        started = time.monotonic()
        self.report(BuildEvent(name, detail, done=False, elapsed_s=0.0))
        yield
        self.report(BuildEvent(name, detail, done=True, elapsed_s=time.monotonic() - started))
