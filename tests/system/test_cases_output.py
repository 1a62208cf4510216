"""What a command writes arrives: all of it, exact, in order, at once."""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx2
import pytest

from running_server import RunningServer
from silent_forwarder import SilentForwarder
from torpor import Client, Retry, Sandbox
from torpor.errors import OutcomeUnknown
from torpor.sdk.http import STREAM_SILENCE_S
from torpor.sdk.output import MAX_COLLECTED_BYTES

MIB = 1024 * 1024

INTERLEAVED = """
import os
for number in range(1024):
    for descriptor, letter in ((1, b"o"), (2, b"e")):
        line = b"%c %08d " % (letter, number)
        block, at = line + b"." * (10239 - len(line)) + b"\\n", 0
        while at < len(block):
            at += os.write(descriptor, block[at:])
"""


def interleaved(letter: str) -> str:
    return "".join(f"{letter} {number:08d} ".ljust(10239, ".") + "\n" for number in range(1024))


def test_ten_megabytes_on_each_of_stdout_and_stderr_arrive_whole_and_in_order(sandbox: Sandbox) -> None:
    result = sandbox.exec(["python3", "-c", INTERLEAVED])
    assert result.exit_code == 0
    assert not result.truncated
    assert result.stdout == interleaved("o")
    assert result.stderr == interleaved("e")


def test_fifty_million_bytes_have_the_same_digest_on_both_sides(sandbox: Sandbox) -> None:
    command = "head -c 50000000 /dev/zero | tr '\\0' a"
    there = sandbox.exec(f"{command} | sha256sum", check=True).stdout.split()[0]
    result = sandbox.exec(command, check=True)
    assert not result.truncated
    assert len(result.stdout_bytes) == 50_000_000
    assert hashlib.sha256(result.stdout_bytes).hexdigest() == there


def test_output_beyond_the_bound_is_cut_with_a_word_and_callbacks_get_all_of_it(sandbox: Sandbox) -> None:
    size, digest = 0, hashlib.sha256()

    def take(piece: bytes) -> None:
        nonlocal size
        size += len(piece)
        digest.update(piece)

    wanted = MAX_COLLECTED_BYTES + MIB
    result = sandbox.exec(f"head -c {wanted} /dev/zero", on_stdout=take, binary=True, check=True)
    assert result.truncated
    assert len(result.stdout_bytes) == MAX_COLLECTED_BYTES
    assert (size, digest.hexdigest()) == (wanted, hashlib.sha256(bytes(wanted)).hexdigest())


def test_a_collected_answer_that_was_cut_says_so(server: RunningServer, sandbox: Sandbox) -> None:
    answer = httpx2.post(
        f"{server.url}/v1/sandboxes/{sandbox.id}/exec",
        headers={"Authorization": f"Bearer {server.key}"},
        json={"cmd": "head -c 50000000 /dev/zero | tr '\\0' a"},
        timeout=120,
        trust_env=False,
    ).json()
    assert answer["exit_code"] == 0
    assert answer["truncated"] is True
    assert 0 < len(answer["stdout"]) < 50_000_000


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537])
def test_sizes_around_a_pipes_buffer_are_exact(sandbox: Sandbox, size: int) -> None:
    result = sandbox.exec(f"head -c {size} /dev/zero | tr '\\0' x", check=True)
    assert result.stdout_bytes == b"x" * size


BYTE_BY_BYTE = """
import sys, time
for byte in sys.argv[1].encode():
    sys.stdout.buffer.write(bytes([byte]))
    sys.stdout.buffer.flush()
    time.sleep(0.02)
"""


def test_text_written_one_byte_at_a_time_is_never_cut_inside_a_character(sandbox: Sandbox) -> None:
    text, pieces = "é / 😀 / 漢字", list[str]()
    result = sandbox.exec(["python3", "-c", BYTE_BY_BYTE, text], on_stdout=pieces.append, check=True)
    assert "".join(pieces) == result.stdout == text
    assert len(pieces) > 3
    assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_written_one_at_a_time_are_exact_in_binary_mode(sandbox: Sandbox) -> None:
    text, pieces = "é / 😀", list[bytes]()
    sandbox.exec(["python3", "-c", BYTE_BY_BYTE, text], on_stdout=pieces.append, binary=True, check=True)
    assert b"".join(pieces) == text.encode()


def test_bytes_that_are_no_text_are_exact_in_the_result(sandbox: Sandbox) -> None:
    result = sandbox.exec(["python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 3)"], check=True)
    assert result.stdout_bytes == bytes(range(256)) * 3


def test_output_arrives_while_the_command_runs(sandbox: Sandbox) -> None:
    # The command waits for the file that only the callback makes.
    def answer(piece: str) -> None:
        assert piece.strip() == "ready"
        sandbox.filesystem.write("/tmp/go", "")

    command = "rm -f /tmp/go; echo ready; until [ -e /tmp/go ]; do sleep 0.05; done"
    assert sandbox.exec(command, on_stdout=answer, timeout_seconds=60).exit_code == 0


def test_the_line_of_a_silent_command_shows_signs_of_life(server: RunningServer, sandbox: Sandbox) -> None:
    # The command waits for a file that is made only when something has arrived.
    order = {"cmd": "rm -f /tmp/alive; until [ -e /tmp/alive ]; do sleep 0.05; done; echo done", "timeout_seconds": 60}
    with httpx2.stream(
        "POST",
        f"{server.url}/v1/sandboxes/{sandbox.id}/exec/stream",
        headers={"Authorization": f"Bearer {server.key}"},
        json=order,
        timeout=STREAM_SILENCE_S,
        trust_env=False,
    ) as answer:
        pieces = answer.iter_raw()
        assert next(pieces).startswith(b":")
        sandbox.filesystem.write("/tmp/alive", "")
        assert b"event: exit" in b"".join(pieces)


def test_two_hundred_short_commands_eight_at_a_time_each_get_their_own_code(sandbox: Sandbox) -> None:
    codes = random.Random(49).choices(range(256), k=200)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda code: sandbox.exec(f"echo {code}; exit {code}"), codes))
    assert [result.exit_code for result in results] == codes
    assert [int(result.stdout) for result in results] == codes


@contextmanager
def forwarding(server: RunningServer) -> Iterator[SilentForwarder]:
    """Put a forwarder between a client and the server, run in a thread of its own."""
    address = urlsplit(server.url)
    assert address.hostname is not None
    assert address.port is not None
    forwarder = SilentForwarder(address.hostname, address.port)
    thread = threading.Thread(target=lambda: asyncio.run(forwarder.run()))
    thread.start()
    try:
        forwarder.wait_listening()
        yield forwarder
    finally:
        forwarder.stop()
        thread.join()


def test_a_line_that_goes_silent_in_mid_stream_is_an_error_and_not_an_endless_wait(
    server: RunningServer, sandbox: Sandbox
) -> None:
    # The line is found dead after a silence, and so is the next one; then there was no contact for long enough.
    retry, patience_s = Retry(reattach_s=5), 2 * STREAM_SILENCE_S
    with forwarding(server) as forwarder, Client(forwarder.url, server.key, retry=retry) as client:
        command = "while :; do echo tick; sleep 0.1; done"
        behind = Sandbox.connect(sandbox.id, client=client)
        with pytest.raises(OutcomeUnknown, match="may still be running"):
            behind.exec(command, on_stdout=lambda _: forwarder.fall_silent(), timeout_seconds=4 * STREAM_SILENCE_S)
        assert forwarder.silent_for_s() < patience_s + 10
    # Others are not touched by it.
    assert sandbox.exec("echo here").stdout == "here\n"
