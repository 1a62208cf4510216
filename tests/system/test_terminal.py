"""Terminals on real guests: from Python, on a WebSocket, and on the command line."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys

from websockets.asyncio.client import ClientConnection, connect

from real_terminal import on_terminal
from running_server import RunningServer
from torpor import Process, Pty, Sandbox

PATIENCE_S = 60


def until(shell: Pty, text: bytes, shown: bytes = b"") -> bytes:
    """Read until a text is shown, and return what was shown after it."""
    while text not in shown:
        piece = shell.read(timeout=PATIENCE_S)
        assert piece, shown
        shown += piece
    return shown.partition(text)[2]


def test_sizes_follow_sigwinch_is_delivered_and_ctrl_c_ends_a_sleep(sandbox: Sandbox) -> None:
    with sandbox.pty(env={"PS1": "# "}) as shell:
        rest = until(shell, b"# ")
        shell.write("stty size\r")
        rest = until(shell, b"24 80\r\n", rest)
        shell.write("trap 'echo changed' WINCH\r")
        rest = until(shell, b"WINCH\r\n", rest)
        for rows, cols in ((43, 132), (30, 90)):
            shell.resize(rows, cols)
            shell.write("stty size\r")
            rest = until(shell, b"%d %d\r\n" % (rows, cols), rest)
        shell.write("echo now; exec 3>&1; sh -c 'echo begun; exec sleep 600'\r")
        rest = until(shell, b"begun\r\n", rest)
        shell.write("\x03")
        rest = until(shell, b"# ", until(shell, b"^C", rest))
        shell.write("echo code $?\r")
        rest = until(shell, b"code 130\r\n", rest)
        shell.write("tty; ps -o tty= -p $$; echo $TERM; exit 7\r")
        shown = rest + b"".join(shell)
    assert b"/dev/pts/" in shown
    assert b"xterm-256color" in shown
    assert shell.exit_code == 7


def test_what_was_changed_is_told_by_sigwinch(sandbox: Sandbox) -> None:
    with sandbox.pty(
        ["/bin/bash", "-c", "trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 0.1; done"]
    ) as one:
        rest = until(one, b"ready\r\n")
        one.resize(11, 22)
        assert b"11 22\r\n" in rest + b"".join(one)
    assert one.exit_code == 3


def test_a_terminal_sleeps_in_the_middle_and_goes_on(fresh_sandbox: Sandbox) -> None:
    with fresh_sandbox.pty(env={"PS1": "# "}) as shell:
        rest = until(shell, b"# ")
        shell.write("read -r line\r")
        rest = until(shell, b"line\r\n", rest)
        shell.write("half ")
        fresh_sandbox.hibernate()
        shell.write("and half\r")  # which wakes it
        assert fresh_sandbox.refresh().state == "running"
        rest = until(shell, b"# ", rest)
        shell.write('echo "<$line>"; exit\r')
        assert b"<half and half>\r\n" in rest + b"".join(shell)


def test_a_program_that_writes_without_end_waits_for_who_looks_and_for_nobody_goes_on(sandbox: Sandbox) -> None:
    letters = r"head -c 2000000 /dev/zero | tr '\0' a"
    shell = sandbox.pty(f"{letters}; echo done; exec sleep 600")
    shown = until(shell, b"a" * 1000)
    assert b"done" not in shown
    until(shell, b"done\r\n", shown)
    shell.close()
    with sandbox.pty(f"{letters}; exec cat") as other:
        while (info := sandbox.attach(other.id).info).stdout_start == 0:  # the oldest is dropped, and it goes on
            pass
        assert info.stdout_bytes - info.stdout_start <= 1024 * 1024 + 65536


def opened(server: RunningServer, sandbox: str, path: str) -> connect:
    url = f"{server.url.replace('http', 'ws', 1)}/v1/sandboxes/{sandbox}/{path}"
    headers = {"authorization": f"Bearer {server.key}"}
    return connect(url, additional_headers=headers, proxy=None, max_queue=1)  # what is not read waits at the server


async def on_websocket(server: RunningServer, sandbox: str) -> tuple[bytes, list[dict[str, object]]]:
    shown, said = b"", []
    async with asyncio.timeout(PATIENCE_S):
        async with opened(server, sandbox, "ssh?rows=24&cols=80") as line:
            await line.send(b"stty size; exit 5\r")
            async for message in line:
                if isinstance(message, bytes):
                    shown += message
                else:
                    said.append(json.loads(message))
        async with opened(server, sandbox, "exec/ws") as line:
            await line.send(json.dumps({"cmd": "wc -c"}))
            for _ in range(64):
                await line.send(bytes(64 * 1024))
            await line.send('{"type": "eof"}')
            said += [json.loads(message) async for message in line]
    return shown, said


def test_a_terminal_and_a_command_on_websockets(server: RunningServer, sandbox: Sandbox) -> None:
    shown, said = asyncio.run(on_websocket(server, sandbox.id))
    assert b"24 80\r\n" in shown
    assert said[0] == {"exit": 5}
    assert [one["data"] for one in said if one.get("type") == "stdout"] == ["4194304\n"]
    assert (said[-1]["type"], said[-1]["exit_code"]) == ("exit", 0)


async def stalled(line: ClientConnection, process: Process, sandbox: Sandbox) -> int:
    """Stop reading, and return how much the process has written once it writes no more, while others go on."""
    line.transport.pause_reading()
    written, before = 0, -1
    async with asyncio.timeout(PATIENCE_S):
        while written == 0 or written != before:
            before = written
            for _ in range(5):
                assert (await asyncio.to_thread(sandbox.exec, "echo here")).stdout == "here\n"
            written = (await asyncio.to_thread(process.refresh)).stdout_bytes
    return written


async def slowly_read(server: RunningServer, sandbox: Sandbox, bytes_: int) -> tuple[int, int]:
    """Return how much a command had written when its client had stopped reading, and how much came in the end."""
    received = 0
    async with opened(server, sandbox.id, "exec/ws") as line:
        await line.send(json.dumps({"cmd": f"head -c {bytes_} /dev/zero | tr '\\0' a"}))
        started = json.loads(await line.recv())
        process = await asyncio.to_thread(sandbox.attach, started["process_id"])
        written = await stalled(line, process, sandbox)
        line.transport.resume_reading()
        async with asyncio.timeout(PATIENCE_S):
            async for message in line:
                said = json.loads(message)
                received += len(said["data"]) if said["type"] == "stdout" else 0
    return written, received


def test_the_command_of_a_client_that_stops_reading_waits_for_it_and_loses_nothing(
    server: RunningServer, sandbox: Sandbox
) -> None:
    written, received = asyncio.run(slowly_read(server, sandbox, 32_000_000))
    assert 0 < written < 32_000_000, written
    assert received == 32_000_000


def command(server: RunningServer, *words: str) -> tuple[list[str], dict[str, str]]:
    env = {**os.environ, "TORPOR_API": server.url, "TORPOR_API_KEY": server.key, "TERM": "xterm"}
    return [sys.executable, "-m", "torpor.cli", *words], env


def test_the_command_line_on_a_terminal(server: RunningServer, sandbox: Sandbox) -> None:
    with on_terminal(*command(server, "shell", sandbox.id), rows=30, cols=100) as terminal:
        terminal.until(b"# ")
        terminal.type(b"stty size\r")
        terminal.until(b"30 100\r\n")
        terminal.resize(43, 132)
        terminal.type(b"until [ \"$(stty size)\" = '43 132' ]; do sleep 0.1; done; echo resi''zed\r")
        terminal.until(b"resized\r\n")
        terminal.type(b"sh -c 'echo begun; exec sleep 600'\r")
        terminal.until(b"begun\r\n")
        terminal.type(b"\x03")
        terminal.until(b"# ")
        terminal.type(b"exit 7\r")
        assert terminal.wait() == 7


def test_stdin_is_passed_on_however_much_it_is(server: RunningServer, sandbox: Sandbox) -> None:
    data = os.urandom(1024 * 1024) * 20
    argv, env = command(server, "exec", "-i", sandbox.id, "sha256sum")
    ran = subprocess.run(argv, env=env, input=data, capture_output=True, check=False)
    assert (ran.returncode, ran.stdout.split()[0].decode()) == (0, hashlib.sha256(data).hexdigest())


def test_a_program_that_throws_away_what_was_typed_before_it_began_hears_of_the_end_all_the_same(
    server: RunningServer, sandbox: Sandbox
) -> None:
    code = "import sys, termios; print('up'); termios.tcflush(0, termios.TCIFLUSH); sys.exit(3 + len(sys.stdin.read()))"
    argv, env = command(server, "exec", "-it", sandbox.id, "python3", "-c", code)
    ran = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=PATIENCE_S)
    assert (ran.returncode, ran.stdout) == (3, b"up\r\n")
