"""`torpor shell`, `exec -t` and `exec -i` on a real pseudo-terminal; the host behind the server is a fake one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from real_terminal import OnTerminal, on_terminal
from torpor import Client, Sandbox
from torpor.cli.terminal import Escapes
from torpor.testing.server import running_server

INTERRUPTED = b"\x03"


def arguments(server: tuple[str, str], *words: str) -> tuple[list[str], dict[str, str]]:
    url, key = server
    env = {**os.environ, "TORPOR_API": url, "TORPOR_API_KEY": key, "TERM": "xterm"}
    return [sys.executable, "-m", "torpor.cli", *words], env


@contextmanager
def torpor(server: tuple[str, str], *words: str, rows: int = 24, cols: int = 80) -> Iterator[OnTerminal]:
    with on_terminal(*arguments(server, *words), rows=rows, cols=cols) as terminal:
        yield terminal


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with running_server(tmp_path_factory.mktemp("server") / "home") as told:
        yield told


@pytest.fixture
def box(server: tuple[str, str]) -> Iterator[Sandbox]:
    with Client(*server) as client, Sandbox.create(client=client) as made:
        yield made


def test_a_shell_has_the_persons_size_keys_and_exit_code_and_leaves_the_terminal_as_it_was(
    server: tuple[str, str], box: Sandbox
) -> None:
    with torpor(server, "shell", box.id, rows=30, cols=100) as terminal:
        before = terminal.settings()
        terminal.until(b"$ ")
        assert terminal.settings() != before
        terminal.type(b"stty size\r")
        terminal.until(b"30 100\r\n")
        terminal.resize(43, 132)
        while (size := box.processes()[0].info.terminal) is None or size.rows != 43:
            pass
        terminal.type(b"stty size\r")
        terminal.until(b"43 132\r\n")
        terminal.type(b"hang\r")
        terminal.until(b"hang\r\n")
        terminal.type(INTERRUPTED)
        terminal.until(b"^C\r\n$ ")
        terminal.type(b"echo $?\r")
        terminal.until(b"130\r\n")
        terminal.type(b"exit 7\r")
        assert terminal.wait() == 7
        assert terminal.settings() == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_one_that_is_told_to_end_leaves_the_terminal_as_it_was(
    server: tuple[str, str], box: Sandbox, number: signal.Signals
) -> None:
    with torpor(server, "shell", box.id) as terminal:
        before = terminal.settings()
        terminal.until(b"$ ")
        terminal.process.send_signal(number)
        assert terminal.wait() == 128 + number
        assert terminal.settings() == before


def test_the_way_out_hangs_the_shell_up(server: tuple[str, str], box: Sandbox) -> None:
    with torpor(server, "shell", box.id) as terminal:
        terminal.until(b"$ ")
        terminal.type(b"~.")
        assert terminal.wait() == 0
        assert b"hung up" in terminal.screen
    (process,) = box.processes()
    assert process.info.signal == "SIGHUP"


def test_it_says_when_the_sandbox_falls_asleep_and_a_key_wakes_it(server: tuple[str, str], box: Sandbox) -> None:
    with torpor(server, "shell", box.id) as terminal:
        terminal.until(b"$ ")
        box.hibernate()
        terminal.until(b"asleep; a key wakes it")
        terminal.type(b"stty size\r")
        terminal.until(b"24 80\r\n")
        terminal.type(b"exit\r")
        assert terminal.wait() == 0


def test_a_sandbox_that_is_lost_is_one_line_and_the_terminal_as_it_was(server: tuple[str, str], box: Sandbox) -> None:
    with torpor(server, "shell", box.id) as terminal:
        before = terminal.settings()
        terminal.until(b"$ ")
        box.delete()
        assert terminal.wait() == 1
        assert b"Traceback" not in terminal.screen
        assert terminal.settings() == before


def test_a_command_has_a_terminal_with_t(server: tuple[str, str], box: Sandbox) -> None:
    with torpor(server, "exec", "-it", box.id, "stty size", rows=11, cols=22) as terminal:
        assert terminal.wait() == 0
        assert b"11 22\r\n" in terminal.screen
    with torpor(server, "exec", "-t", "--timeout", "0.2", box.id, "hang") as terminal:
        assert terminal.wait() == 124
    for more in ("--detach", "--json"):
        argv, env = arguments(server, "exec", "-t", more, box.id, "true")
        ran = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        assert (ran.returncode, "-t joins" in ran.stderr) == (1, True)


def test_keys_that_are_piped_in_are_typed(server: tuple[str, str], box: Sandbox) -> None:
    argv, env = arguments(server, "exec", "-it", box.id, "cat-is-no-shell")
    ran = subprocess.run(argv, env=env, input=b"x", capture_output=True, check=False)
    assert (ran.returncode, ran.stdout) == (127, b"sh: 1: cat-is-no-shell: not found\r\n")


def test_stdin_is_passed_on_as_it_comes_however_much_it_is(server: tuple[str, str], box: Sandbox) -> None:
    data = os.urandom(1024) * (17 * 1024)  # more than fits into one request
    argv, env = arguments(server, "exec", "-i", box.id, "--", "cat")
    ran = subprocess.run(argv, env=env, input=data, capture_output=True, check=False)
    assert (ran.returncode, ran.stderr, ran.stdout == data) == (0, b"", True)
    argv, env = arguments(server, "exec", "-i", box.id, "exit 5")
    ran = subprocess.run(argv, env=env, input=data[:100_000], capture_output=True, check=False)
    assert ran.returncode == 5  # it reads nothing, which is no error


def test_ctrl_c_ends_a_command_whose_stdin_is_passed_on(server: tuple[str, str], box: Sandbox) -> None:
    with torpor(server, "exec", "-i", box.id, "echo begun; hang") as terminal:
        terminal.until(b"begun")
        terminal.type(INTERRUPTED)
        assert terminal.wait() == 130
    (process,) = box.processes()
    assert process.wait().signal == "SIGKILL"


@pytest.mark.parametrize(
    ("typed", "passed", "left"),
    [
        ((b"~.",), b"", True),
        ((b"~", b".", b"x"), b"x", True),
        ((b"ls\r~.",), b"ls\r", True),
        ((b"ls\n", b"~", b"."), b"ls\n", True),
        ((b"a~.b",), b"a~.b", False),
        ((b"~~.",), b"~.", False),
        ((b"~x",), b"~x", False),
        ((b"~\r~.",), b"~\r", True),
    ],
)
def test_the_way_out_is_a_tilde_and_a_dot_at_the_beginning_of_a_line(
    typed: tuple[bytes, ...], passed: bytes, left: bool
) -> None:
    escapes = Escapes()
    assert (b"".join(escapes.feed(keys) for keys in typed), escapes.has_left) == (passed, left)
