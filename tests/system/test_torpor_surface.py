"""Every call of our own client, and every command of our command line, once and end to end, on real guests.

Each has deeper tests of its own elsewhere. What is added to either has to be added here: the first test sees to it.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from running_server import RunningServer, home_sharing_templates
from torpor import (
    AsyncClient,
    AsyncSandbox,
    Candidate,
    Client,
    Process,
    Sandbox,
    Snapshot,
    Template,
    Volume,
)
from torpor.cli.app import app, run
from torpor.sdk._sync.filesystem import Filesystem

PATIENCE_S = 300
PORT = 8000
# Tested elsewhere, as they take minutes or are no calls for users.
ELSEWHERE = {
    "bench": "tests/integration/test_bench.py",
    "serve": "tests/support/running_server.py, which every test here stands on",
}
# What the classes have for one another.
INNER = frozenset({"of", "ended", "listened", "truncated", "api", "chunks", "open", "perform", "retry"})
INNER |= {"fetch", "fetch_as", "fetch_into", "put"}


def public(*owners: object) -> set[str]:
    names = {name for owner in owners for name in dir(owner) if not name.startswith("_")}
    return names - INNER


def commands(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in getattr(group, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from commands(command, (*before, name))
        else:
            yield (*before, name)


@pytest.fixture(scope="module")
def vm(client: Client) -> Iterator[Sandbox]:
    with Sandbox.create("base", name="surface", metadata={"run": "surface"}, ttl_seconds=1800, client=client) as made:
        yield made


def test_this_file_has_every_call_and_every_command(client: Client) -> None:
    text = Path(__file__).read_text()
    calls = public(Sandbox, Snapshot, Process, Filesystem, client, client.templates, client.tokens, client.volumes)
    assert sorted(name for name in calls if not re.search(rf"\.{name}\b", text)) == []
    words = [words for words in commands(typer.main.get_command(app)) if words[0] not in ELSEWHERE]
    asked = [words for words in words if not re.search(r'torpor\([^)]*?"' + '", "'.join(words) + '"', text)]
    assert asked == []


def test_commands_and_processes(vm: Sandbox) -> None:
    assert vm.exec("cat; exit 3", stdin="in").exit_code == 3
    assert vm.commands.run("echo hi").stdout == "hi\n"
    process = vm.start("cat; sleep 100", stdin=True)
    process.write_stdin("typed")
    process.close_stdin()
    found = vm.attach(process.id)
    assert next(iter(found.events())).data == b"typed"
    assert found.output() == b"typed"
    assert process.id in [one.id for one in vm.processes()]
    assert process.refresh().state == "running"
    process.kill("TERM")
    assert process.wait(PATIENCE_S).signal == "SIGTERM"
    assert (process.exit_code, process.info.state) == (143, "ended")
    with vm.pty(["sh", "-c", "stty size; read line; stty size; exit 7"], rows=24, cols=80) as terminal:
        shown = b""
        while b"24 80" not in shown:
            shown += terminal.read(PATIENCE_S)
        terminal.resize(43, 132)
        terminal.write("\r")
        shown += b"".join(terminal)
        assert b"43 132" in shown
        assert terminal.exit_code == 7
    seen = vm.start("sleep 100", terminal=(24, 80))
    seen.resize(10, 20)
    seen.kill()


def test_files(vm: Sandbox, tmp_path: Path) -> None:
    files = vm.filesystem
    assert files.write("/work/s/a", b"one") == 3
    files.append("/work/s/a", " two")
    assert (files.read("/work/s/a"), files.read_text("/work/s/a")) == (b"one two", "one two")
    files.mkdir("/work/s/d")
    files.rename("/work/s/a", "/work/s/d/b")
    assert [one.name for one in files.list("/work/s")] == ["d"]
    assert files.stat("/work/s/d/b").size == 7
    assert [one.name for one in files.walk("/work/s")] == ["d", "b"]
    files.download("/work/s", tmp_path / "down")
    (tmp_path / "up").write_text("up")
    files.upload(tmp_path / "up", "/work/s/up")
    assert files.exists("/work/s/up")
    files.remove("/work/s", recursive=True)


def test_code(vm: Sandbox) -> None:
    assert vm.run_code("6 * 7").text == "42"
    with vm.code_context() as context:
        context.run("x = 1")
        assert context.id in [one.id for one in vm.code_contexts()]
        assert vm.attach_code_context(context.id).run("x").text == "1"
    vm.create_code_context().close()


def test_sleep_and_snapshots(client: Client, vm: Sandbox) -> None:
    vm.exec("echo then >/work/when")
    taken = vm.snapshot("then")
    assert taken.verify().id == taken.id
    assert (Snapshot.get(taken.id, client=client), Snapshot.list(vm, client=client)[0]) == (taken, taken)
    assert taken in list(Snapshot.iterate(vm, client=client))
    vm.exec("echo later >/work/when")
    vm.rollback(taken)
    with Sandbox.restore(taken, ttl_seconds=300, client=client) as other:
        assert other.exec("cat /work/when").stdout == "then\n"
    for verb, state in (
        (vm.pause, "paused"),
        (vm.resume, "running"),
        (vm.hibernate, "hibernated"),
        (vm.wake, "running"),
    ):
        assert verb().state == state
    with vm.thinking() as pause:
        assert not pause.hibernated
    assert vm.thought.waits >= 1
    assert taken.id in [one.id for one in vm.snapshots()]
    made = taken.to_template("surface-then")
    assert (made.name, isinstance(made, Template)) == ("surface-then", True)
    taken.delete()
    with Sandbox.create("surface-then", ttl_seconds=300, client=client) as other:
        assert other.exec("cat /work/when").stdout == "then\n"
    client.templates.delete("surface-then")


def test_copies(client: Client, vm: Sandbox) -> None:
    with vm.fork(ttl_seconds=300) as copy:
        assert copy.exec("hostname").stdout.strip() == copy.id
    first, second = vm.fork_tree(2, ttl_seconds=300)
    assert first.promote(cleanup_siblings=True).deleted == [second.id]
    first.kill()
    found = vm.explore(["echo 1", Candidate("more", "echo 2")], score=lambda _, one: one.stdout)
    assert found.best.label == "more"
    found.winner.delete()


def test_its_record_its_life_and_what_it_did(client: Client, vm: Sandbox) -> None:
    assert (vm.id, vm.name, vm.template, vm.metadata) == (vm.info.id, "surface", "base", {"run": "surface"})
    assert Sandbox.connect(vm.id, client=client).id == vm.id
    assert vm.id in [one.id for one in Sandbox.list({"run": "surface"}, client=client)]
    assert vm.id in [one.id for one in Sandbox.iterate(client=client)]
    vm.set_ttl(1200)
    vm.set_idle(900)
    assert vm.set_idle(None).idle_timeout_seconds is None
    assert (vm.refresh().ttl_seconds, vm.state) == (1200, "running")
    assert (vm.network().network, vm.set_network("none").network) == ("none", "none")
    vm.start(f"python3 -m http.server {PORT}")
    end = time.monotonic() + PATIENCE_S
    while PORT not in [port.port for port in vm.ports()]:
        assert time.monotonic() < end
    assert str(PORT) in vm.url(PORT)
    vm.exec("echo on-the-console >/dev/console")
    assert vm.logs()
    assert vm.usage().cpu_seconds >= 0
    assert next(vm.events()).type == "state"
    assert next(client.events(sandbox=vm)).sandbox_id == vm.id
    assert client.usage({"run": "surface"}).items
    assert client.sandbox_usage(vm).sandbox_id == vm.id
    assert vm.id in client.usage_csv()
    assert vm.id in [one.sandbox_id for one in client.metrics().items]
    assert client.capacity()
    assert client.quota()
    assert client.me().workspace == "default"
    assert next(client.audit()).action


def test_keys_volumes_and_templates(client: Client) -> None:
    key = client.tokens.create("surface")
    assert key.prefix in [one.prefix for one in client.tokens.list()]
    client.tokens.revoke(key.prefix)
    volume = client.volumes.create("surface", 64)
    assert isinstance(volume, Volume)
    with Sandbox.create("base", volumes={"surface": "/data"}, ttl_seconds=300, client=client) as sandbox:
        sandbox.exec("echo kept >/data/note", check=True)
    assert client.volumes.get("surface").name in [one.name for one in client.volumes.list()]
    client.volumes.delete("surface")
    assert client.templates.get("base").name in [one.name for one in client.templates.list()]
    with Sandbox.create("base", ttl_seconds=300, client=client) as sandbox:
        taken = sandbox.snapshot()
    build: Any = client.templates.build("surface-sdk", snapshot=taken.id, wait=False)
    assert client.templates.wait_for_build(build.id).name == "surface-sdk"
    taken.delete()
    assert list(client.templates.build_logs(build.id, follow=False))
    assert client.templates.get_build(build.id).id in [one.id for one in client.templates.builds()]
    client.templates.cancel_build(build.id)  # it has ended, and so nothing happens
    client.templates.delete("surface-sdk")


async def test_the_asynchronous_twin_has_the_same_calls(server: RunningServer) -> None:
    async with AsyncClient(server.url, server.key) as client:
        async with AsyncSandbox.create("base", ttl_seconds=300, client=client) as sandbox:
            both = await asyncio.gather(sandbox.exec("echo 1"), sandbox.exec("echo 2"))
            assert [one.stdout for one in both] == ["1\n", "2\n"]
            await sandbox.hibernate()
            assert (await sandbox.exec("echo 3")).stdout == "3\n"
        assert public(AsyncSandbox) == public(Sandbox)


@pytest.fixture
def torpor(server: RunningServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Run one command line against the shared server, and return what it prints; it must end with `code`."""
    monkeypatch.setenv("TORPOR_API", server.url)
    monkeypatch.setenv("TORPOR_API_KEY", server.key)

    def call(*words: str, code: int = 0, stdin: str | None = None) -> str:
        if stdin is None:
            capfd.readouterr()
            returned = run(words)
            sys.stdout.flush()
            out, err = capfd.readouterr()
        else:
            argv = [sys.executable, "-m", "torpor.cli", *words]
            ran = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
            returned, out, err = ran.returncode, ran.stdout, ran.stderr
        assert returned == code, f"{words}: {out}{err}"
        return out.strip()

    return call


def test_commands_for_sandboxes(torpor: Any, tmp_path: Path) -> None:
    box = torpor("create", "base", "--name", "cli", "--ttl", "20m", "-m", "run=cli")
    assert json.loads(torpor("show", box, "--json"))["name"] == "cli"
    assert box in torpor("list")
    assert torpor("exec", box, "echo out; exit 4", code=4) == "out"
    assert torpor("shell", box, stdin="echo shell\n") == "shell"
    job = torpor("exec", "-d", box, "echo started; sleep 1000")
    assert job in torpor("ps", box)
    torpor("kill", box, job)
    assert torpor("attach", box, job, code=137) == "started"
    (tmp_path / "file").write_text("copied")
    torpor("cp", str(tmp_path / "file"), f"{box}:/work/file")
    assert torpor("cp", f"{box}:/work/file", "-") == "copied"
    torpor("ports", box)
    assert "8000" in torpor("url", box, "8000")
    torpor("network", box)
    torpor("hibernate", box)
    torpor("wake", box)
    torpor("pause", box)
    torpor("resume", box)
    torpor("ttl", box, "30m")
    torpor("idle", box, "never")
    copy = torpor("fork", box, "--ttl", "5m")
    winner = torpor("explore", box, "echo 1", "echo 2", "--score-stdout-number")
    assert copy in torpor("tree")
    torpor("rm", copy, winner)
    torpor("logs", box)
    assert "cli" in torpor("top", "--once")
    assert box in torpor("usage", "--json")
    torpor("rm", "cli")


def test_commands_for_snapshots_templates_volumes_and_keys(torpor: Any) -> None:
    box = torpor("create", "base", "--ttl", "20m")
    snapshot = torpor("snapshot", "take", box, "--name", "ready")
    assert snapshot in torpor("snapshots", box)
    torpor("snapshot", "show", snapshot)
    assert "ok" in torpor("snapshot", "verify", snapshot)
    torpor("rollback", box, snapshot)
    torpor("rm", torpor("restore", snapshot, "--ttl", "5m"), box)
    torpor("template", "build", "surface-cli", "--snapshot", snapshot)
    assert "surface-cli" in torpor("template", "list")
    torpor("template", "show", "surface-cli")
    (build, *_) = [one for one in json.loads(torpor("template", "builds", "--json")) if one["name"] == "surface-cli"]
    assert torpor("template", "logs", build["id"])
    torpor("template", "cancel", build["id"])
    torpor("template", "rm", "surface-cli")
    torpor("snapshot", "rm", snapshot)
    torpor("volume", "create", "surface-cli", "--size", "64m")
    assert "surface-cli" in torpor("volume", "list")
    torpor("volume", "show", "surface-cli")
    torpor("volume", "rm", "surface-cli")
    key = json.loads(torpor("token", "create", "surface-cli", "--json"))
    assert key["prefix"] in torpor("token", "list")
    torpor("token", "revoke", key["prefix"])


def test_commands_for_the_server(
    torpor: Any, template_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert torpor("version").startswith("torpor")
    torpor("capacity")
    assert torpor("audit")
    home = str(home_sharing_templates(template_home, tmp_path / "home"))
    torpor("doctor", "--home", home, "--json")
    for variable in ("TORPOR_API", "TORPOR_API_KEY"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("TORPOR_HOME", home)
    torpor("up", "--home", home, "--port", "0")
    try:
        assert torpor("list", "--json") == "[]"
    finally:
        torpor("down", "--home", home)
