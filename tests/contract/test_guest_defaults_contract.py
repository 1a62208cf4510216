"""What commands get that do not say it themselves: the same in the real agent and in the fake one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from guest_agent import run, sh
from guest_subject import KINDS, Subject, subject_of
from torpor.errors import InvalidRequest
from torpor.model.identity import Identity
from torpor.model.ids import new_sandbox_id
from torpor.model.template import Defaults


@pytest.fixture(params=KINDS)
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    async with subject_of(request.param, tmp_path) as subject:
        yield subject


async def test_variables_are_under_the_sandbox_s_and_the_command_s_own(subject: Subject) -> None:
    guest = subject.guest
    await guest.set_defaults(Defaults({"A": "image", "B": "image", "C": "image"}))
    await guest.adopt(Identity(new_sandbox_id()), env={"B": "sandbox", "C": "sandbox"})
    ran = await sh(guest, "echo $A $B $C", env={"C": "command"})
    assert ran.stdout == b"image sandbox command\n"


async def test_what_is_told_takes_the_place_of_what_was(subject: Subject) -> None:
    guest = subject.guest
    await guest.set_defaults(Defaults({"A": "1"}))
    await guest.set_defaults(Defaults({"B": "2"}))
    assert (await sh(guest, "echo [$A] $B")).stdout == b"[] 2\n"


async def test_a_new_line_finds_them(subject: Subject) -> None:
    await subject.guest.set_defaults(Defaults({"A": "1"}))
    guest = await subject.come_anew()
    assert (await sh(guest, "echo $A")).stdout == b"1\n"


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Subject]:
    async with subject_of("agent", tmp_path) as subject:
        yield subject


async def test_commands_begin_in_the_folder_while_it_is_there(agent: Subject) -> None:
    guest, folder = agent.guest, f"{agent.place}/here"
    await guest.mkdir(folder)
    await guest.set_defaults(Defaults(cwd=folder))
    assert (await run(guest, "pwd")).stdout.decode().strip() == folder
    assert (await run(guest, "pwd", cwd="/")).stdout == b"/\n"
    await guest.remove(folder)
    assert (await run(guest, "pwd")).code == 0


async def test_commands_run_as_the_user_also_as_a_number_that_is_nobody_s(agent: Subject) -> None:
    await agent.guest.set_defaults(Defaults(user="54321:98"))
    assert (await sh(agent.guest, "id -u; id -g; echo $HOME")).stdout == b"54321\n98\n/\n"
    assert (await sh(agent.guest, "id -u", user="root")).stdout == b"0\n"


async def test_a_user_that_is_not_there_is_refused_and_nothing_is_changed(agent: Subject) -> None:
    await agent.guest.set_defaults(Defaults({"A": "1"}))
    for wrong in ("no-such-user", "root:no-such-group"):
        with pytest.raises(InvalidRequest, match="there is no"):
            await agent.guest.set_defaults(Defaults(user=wrong))
    assert (await sh(agent.guest, "echo $A")).stdout == b"1\n"
