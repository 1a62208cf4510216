"""Terminals from Python, sync and async, against the real control plane over a fake host."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from torpor import AsyncClient, AsyncSandbox, Client, Conflict, InvalidRequest, Sandbox
from torpor.testing.server import running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with running_server(tmp_path_factory.mktemp("server") / "home") as told:
        yield told


@pytest.fixture
def box(server: tuple[str, str]) -> Iterator[Sandbox]:
    with Client(*server) as client, Sandbox.create(client=client) as made:
        yield made


def test_a_shell_is_typed_on_read_and_resized(box: Sandbox) -> None:
    with box.pty(rows=10, cols=20) as shell:
        assert shell.read() == b"$ "
        shell.write("stty size\r")
        shown = b""
        while b"10 20\r\n" not in shown:
            shown += shell.read(timeout=20)
        shell.resize(30, 40)
        shell.write("stty size\rexit 3\r")
        assert b"30 40\r\n" in b"".join(shell)
        assert (shell.exit_code, shell.read()) == (3, b"")
        with pytest.raises(Conflict):
            shell.write("x")
    assert box.attach(shell.id).info.exit_code == 3


def test_reading_has_a_timeout_and_loses_nothing_by_it(box: Sandbox) -> None:
    with box.pty() as shell:
        assert shell.read() == b"$ "
        with pytest.raises(TimeoutError):
            shell.read(timeout=0.2)
        shell.write("\x03")
        shown = b""
        while b"^C\r\n$ " not in shown:
            shown += shell.read(timeout=20)
        with pytest.raises(TimeoutError):
            shell.wait(0.2)


def test_the_end_of_the_block_hangs_it_up_and_that_it_is_gone_is_no_error(box: Sandbox) -> None:
    with box.pty("hang") as one:
        pass
    assert box.attach(one.id).wait().signal == "SIGHUP"
    one.close()
    with box.pty("true") as other:
        assert other.wait(20) == 0


def test_a_started_command_can_have_a_terminal(box: Sandbox) -> None:
    process = box.start("stty size", terminal=(5, 6))
    assert process.wait().stdout == "5 6\r\n"
    assert process.info.terminal is not None


def test_what_makes_no_sense_is_refused_here(box: Sandbox) -> None:
    for wrong in ({"rows": 0}, {"cols": 10**9}, {"cmd": ""}, {"hangup_seconds": -1.0}):
        with pytest.raises(InvalidRequest):
            box.pty(**wrong)
    with pytest.raises(InvalidRequest):
        box.start("hang").resize(24, 80)


def test_the_async_twin_hands_on_what_is_shown(server: tuple[str, str]) -> None:
    async def talk() -> tuple[bytes, int]:
        shown: list[bytes] = []
        async with (
            AsyncClient(*server) as client,
            AsyncSandbox.create(client=client) as box,
            await box.pty(on_output=shown.append) as shell,
        ):
            await shell.write("echo hello\rexit 4\r")
            code = await shell.wait()
        return b"".join(shown), code

    shown, code = asyncio.run(talk())
    assert b"hello\r\n" in shown
    assert code == 4
