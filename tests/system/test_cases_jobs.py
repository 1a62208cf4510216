"""Commands that outlive whoever waits for them: a lost client, a sleep, a server that was killed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from running_server import RunningServer, serving
from silent_forwarder import SilentForwarder
from torpor import Client, Sandbox

# Counts as a command that works for a while does, and goes on only when the file is there.
COUNT = "echo begun; until [ -e /tmp/go ]; do sleep 0.1; done; seq 1 20000; echo done >&2; exit 7"
COUNTED = "begun\n" + "".join(f"{number}\n" for number in range(1, 20001))


@contextmanager
def fixed_address(running: RunningServer) -> Iterator[SilentForwarder]:
    """Give an address that can lead to one server after another."""
    forwarder = SilentForwarder(*_address(running))
    thread = threading.Thread(target=lambda: asyncio.run(forwarder.run()))
    thread.start()
    try:
        forwarder.wait_listening()
        yield forwarder
    finally:
        forwarder.stop()
        thread.join()


def _address(running: RunningServer) -> tuple[str, int]:
    parts = urlsplit(running.url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def test_a_command_whose_client_is_lost_is_found_again_byte_for_byte(sandbox: Sandbox, client: Client) -> None:
    job = sandbox.start(f"rm -f /tmp/go; {COUNT}")
    with closing(job.events()) as pieces:
        stream, heard = next(pieces)
    assert (stream, heard) == ("stdout", b"begun\n")
    sandbox.filesystem.write("/tmp/go", "")

    found = Sandbox.connect(sandbox.id, client=client).attach(job.id)
    rest = b"".join(data for name, data in found.events(stdout_from=len(heard)) if name == "stdout")
    assert (heard + rest).decode() == COUNTED
    assert (found.exit_code, found.wait().stderr) == (7, "done\n")
    sandbox.exec("rm /tmp/go", check=True)


def test_a_process_sleeps_with_its_sandbox_and_goes_on(fresh_sandbox: Sandbox) -> None:
    job = fresh_sandbox.start(COUNT)
    reader = fresh_sandbox.start(["cat"], stdin=True)
    assert reader.write_stdin("before ") == 7
    fresh_sandbox.hibernate()
    assert reader.write_stdin("after") == 5
    reader.close_stdin()
    fresh_sandbox.filesystem.write("/tmp/go", "")
    result = job.wait()
    assert (result.stdout, result.stderr, result.exit_code) == (COUNTED, "done\n", 7)
    assert reader.wait().stdout == "before after"


def test_an_interrupted_exec_ends_its_command(fresh_sandbox: Sandbox) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fresh_sandbox.exec("echo begun; sleep 1000", on_stdout=interrupt)
    (ended,) = fresh_sandbox.processes()
    assert ended.wait().signal == "SIGKILL"
    assert "sleep" not in fresh_sandbox.exec("cat /proc/[0-9]*/comm").stdout.split()


def test_an_exec_goes_on_through_the_death_of_its_server(fresh_home: Path) -> None:
    begun, heard = threading.Event(), list[str]()

    def hear(text: str) -> None:
        heard.append(text)
        begun.set()

    with (
        serving(fresh_home) as first,
        fixed_address(first) as address,
        Client(address.url, first.key) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        box = Sandbox.create(client=client, ttl_seconds=600)
        counting = pool.submit(box.exec, COUNT, on_stdout=hear)
        counting.add_done_callback(lambda _: begun.set())
        begun.wait()
        first.kill()
        with serving(fresh_home) as second:
            address.lead_to(*_address(second))
            box.filesystem.write("/tmp/go", "")
            result = counting.result()
            runs = box.processes()
            box.delete()
    assert (result.stdout, "".join(heard), result.stderr, result.exit_code) == (COUNTED, COUNTED, "done\n", 7)
    assert [one.info.kind for one in runs] == ["exec"]
