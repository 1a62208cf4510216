"""Steps of a Dockerfile, taken in a guest: what is told of them, and what ends a build."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from torpor.errors import Failed, InvalidRequest, NotFound
from torpor.guest.client import Guest, connect
from torpor.host.building.context import Context
from torpor.host.building.stepping import Stepper, identity_of
from torpor.host.building.workshop import Workshop
from torpor.model.dockerfile import parse
from torpor.model.steps import Ground, Plan, plan
from torpor.model.template import Defaults
from torpor.storage.layout import Layout
from torpor.testing.fake_guest import FakeGuest
from torpor.vmm.driver import Driver


def planned(steps: str) -> Plan:
    return plan(parse(f"FROM base\n{steps}"), {}, Ground(Defaults()))


@pytest.fixture
async def guest() -> AsyncIterator[Guest]:
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(FakeGuest().serve(theirs))
    with ours:
        async with await connect(ours.dup(), timeout_s=10) as guest:
            yield guest
    await serving


class Taking:
    """Takes steps in a guest, and keeps the lines of it."""

    def __init__(self, guest: Guest, folder: Path) -> None:
        self.lines: list[str] = []
        shop = Workshop(Layout(folder), self._no_driver, folder / "log", say=self._say)
        self._stepper = Stepper(shop, guest, Context(None), folder)

    async def __call__(self, steps: str) -> list[str]:
        await self._stepper.take(planned(steps))
        return self.lines

    async def _say(self, line: str) -> None:
        self.lines.append(line)

    async def _no_driver(self) -> Driver:
        raise NotFound("there is none here")


@pytest.fixture
def take(guest: Guest, tmp_path: Path) -> Taking:
    return Taking(guest, tmp_path)


async def test_each_step_is_told_with_what_its_command_writes(take: Taking) -> None:
    lines = await take("ENV A=one\nRUN echo $A; echo two >&2\nRUN echo three")
    assert lines[0] == "step 1/2: RUN echo $A; echo two >&2"
    assert set(lines[1:3]) == {"one", "two"}
    assert lines[3:] == ["step 2/2: RUN echo three", "three"]


async def test_a_command_that_fails_ends_the_build_with_its_line_and_text(take: Taking) -> None:
    with pytest.raises(Failed, match=r"Dockerfile, line 3: RUN echo why; exit 7 ended with code 7"):
        await take("RUN true\nRUN echo why; exit 7\nRUN echo never")
    assert take.lines[-1] == "why"


async def test_a_command_that_is_killed_is_told_by_the_signal(take: Taking) -> None:
    with pytest.raises(Failed, match=r"line 2: .* was ended by SIGKILL"):
        await take("RUN kill -9 $$")


async def test_what_a_guest_refuses_is_told_with_the_line(take: Taking) -> None:
    with pytest.raises(InvalidRequest, match="line 3: "):
        await take("RUN true\nCOPY missing /x")


async def test_lines_are_told_without_what_only_a_terminal_understands(take: Taking) -> None:
    escape, bell = "1b5b33316d", "07"
    lines = await take(f"RUN raw 6f6e65 {escape}74776f0a 31250d3130302500 {bell}0a c3 a90a {'78' * 5000}")
    assert lines[1:4] == ["one[31mtwo", "100%", "\N{LATIN SMALL LETTER E WITH ACUTE}"]
    assert [len(line) for line in lines[4:]] == [4096, 904]


def test_steps_are_told_apart_by_all_that_makes_a_difference(tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "a").write_text("1")
    texts = ("RUN true", "RUN false", "ENV A=1\nRUN true", "USER 1\nRUN true", "COPY a /b", "COPY a /c", "WORKDIR /a")
    found = {identity_of(planned(text), Context(context)) for text in texts}
    (context / "a").write_text("2")
    found.add(identity_of(planned("COPY a /b"), Context(context)))
    assert len(found) == len(texts) + 1
    assert identity_of(planned("RUN   true # x"), Context(None)) != identity_of(planned("RUN true"), Context(None))
    assert identity_of(planned("# x\nRUN true"), Context(None)) == identity_of(planned("RUN true"), Context(None))
