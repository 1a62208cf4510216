"""Templates are built, followed and cancelled from Python and from the command line, at a server over a fake host."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandastack  # type: ignore[import-untyped]  # it comes without types
import pytest

from torpor import AsyncClient, BuildFailed, Client, Sandbox, errors
from torpor.cli.app import run
from torpor.testing.host import FakeHost
from torpor.testing.server import running_server

IMAGE = "registry.example/tools:1"
LINES = ["step 1/2: FROM base", "", "end", "step 2/2: RUN make"]


@pytest.fixture(scope="module")
def host() -> FakeHost:
    host = FakeHost()
    host.builds.lines = LINES
    return host


@pytest.fixture(scope="module")
def server(host: FakeHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with running_server(tmp_path_factory.mktemp("server") / "home", host) as told:
        yield told


@pytest.fixture
def client(server: tuple[str, str]) -> Iterator[Client]:
    with Client(*server) as client:
        yield client


@pytest.fixture
def torpor(
    server: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run one command line and return its code, stdout and stderr."""
    monkeypatch.setenv("TORPOR_API", server[0])
    monkeypatch.setenv("TORPOR_API_KEY", server[1])

    def call(*argv: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(argv)
        sys.stdout.flush()
        sys.stderr.flush()
        return (code, *capfd.readouterr())

    return call


@pytest.fixture
def context(tmp_path: Path) -> Path:
    (tmp_path / "Dockerfile").write_text("FROM base\nCOPY big /big\n")
    (tmp_path / "big").write_bytes(bytes(range(256)) * 20_000)
    return tmp_path


def test_a_template_is_built_with_its_log_and_a_sandbox_made_of_it(client: Client, context: Path) -> None:
    said: list[str] = []
    view = client.templates.build("built", context=context, cpu=2, on_log=said.append)
    assert (view.name, view.cpu, view.is_global) == ("built", 2, True)
    assert said[: len(LINES)] == LINES
    assert client.templates.get("built") == view
    build = client.templates.builds()[0]
    assert (build.name, build.status, build.kind) == ("built", "done", "dockerfile")
    assert list(client.templates.build_logs(build.id, follow=False)) == said
    with Sandbox.create("built", client=client) as sandbox:
        assert sandbox.info.template == "built"
    client.templates.delete("built")
    assert "built" not in [template.name for template in client.templates.list()]


async def test_the_same_from_asynchronous_code(server: tuple[str, str]) -> None:
    async with AsyncClient(*server) as client:
        ordered = await client.templates.build("later", image=IMAGE, wait=False)
        assert ordered.image_ref == IMAGE
        assert (await client.templates.wait_for_build(ordered.id)).name == "later"
        await client.templates.cancel_build(ordered.id)
        assert (await client.templates.get_build(ordered.id)).status == "done"


def test_a_snapshot_becomes_a_template(client: Client) -> None:
    with Sandbox.create("base", client=client) as sandbox:
        view = sandbox.snapshot().to_template("warm")
    assert view.name == "warm"
    assert client.templates.builds()[0].kind == "snapshot"


def test_a_build_that_fails_raises_what_it_failed_by(client: Client, host: FakeHost) -> None:
    host.builds.failure = errors.Failed("step 2/2: RUN make ended with 2")
    try:
        with pytest.raises(
            BuildFailed, match="template 'broken' was not made: step 2/2: RUN make ended with 2"
        ) as failed:
            client.templates.build("broken", image=IMAGE)
    finally:
        host.builds.failure = None
    assert failed.value.build_id == client.templates.builds()[0].id


def test_a_build_is_cancelled_from_python_and_told_as_cancelled(tmp_path: Path) -> None:
    host = FakeHost()
    host.builds.hold()
    with running_server(tmp_path / "home", host) as server, Client(*server) as client:
        running = client.templates.build("first", image=IMAGE, wait=False)
        waiting = client.templates.build("second", image=IMAGE, wait=False)
        for build in (waiting, running):
            client.templates.cancel_build(build.id)
            ended = client.templates.get_build(build.id)
            assert (ended.status, ended.error, ended.cancelled) == ("failed", "cancelled", True)
        with pytest.raises(BuildFailed, match="cancelled"):
            client.templates.wait_for_build(running.id)


def test_the_command_line_builds_with_a_live_log(torpor: Callable[..., tuple[int, str, str]], context: Path) -> None:
    code, out, err = torpor("template", "build", "app", "--context", str(context), "--arg", "A=1", "--memory", "512")
    assert (code, "\ntemplate app is ready: " in f"\n{out}") == (0, True), (out, err)
    assert err.splitlines()[: len(LINES)] == LINES
    code, out, _ = torpor("template", "show", "app", "--json")
    assert json.loads(out)["memory_mb"] == 512
    _, out, _ = torpor("template", "builds", "--json")
    build = json.loads(out)[0]
    assert (build["name"], build["status"]) == ("app", "done")
    code, out, _ = torpor("template", "logs", build["id"])
    assert out.splitlines()[: len(LINES)] == LINES
    assert torpor("template", "rm", "app")[0] == 0
    code, _, err = torpor("template", "show", "app")
    assert (code, "there is no template 'app'" in err) == (1, True)


def test_the_command_line_orders_one_of_the_servers_own_without_waiting(
    torpor: Callable[..., tuple[int, str, str]], host: FakeHost
) -> None:
    code, out, err = torpor("template", "build", "base", "--no-wait", "--force")
    assert (code, "bld-" in out) == (0, True), err
    code, out, _ = torpor("template", "logs", "-f", out.split()[-1])
    assert code == 0
    code, out, _ = torpor("template", "list")
    assert "everybody" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["build", "t", "--image", "x", "--rootfs", "nowhere.tar"], "there is no file nowhere.tar"),
        (["build", "Bad Name", "--image", "x"], "cannot name a template"),
        (["build", "t", "--image", "x", "--arg", "A=1"], "only a Dockerfile has a use for them"),
        (["build", "t", "--image", "x", "--arg", "A"], "--arg takes NAME=VALUE"),
        (["logs", "bld-0000000000000000"], "there is no build bld-0000000000000000"),
        (["cancel", "../up"], "is not the id of a build"),
    ],
)
def test_the_command_line_refuses_in_one_line(
    torpor: Callable[..., tuple[int, str, str]], argv: list[str], said: str
) -> None:
    code, out, err = torpor("template", *argv)
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert said in err


def test_a_client_that_nobody_here_wrote_builds_follows_and_waits(
    server: tuple[str, str], context: Path, tmp_path: Path
) -> None:
    elsewhere = pandastack.Client(server[0], server[1])
    registered = elsewhere.templates.register("theirs", IMAGE, cpu=2)
    assert elsewhere.templates.wait_for_build(registered.id, poll_interval=0.05).is_done
    assert list(elsewhere.templates.build_logs(registered.id))[:4] == ["step 1/2: FROM base", "", "end\u200b", LINES[3]]
    dockerfile = str(context / "Dockerfile")
    built = elsewhere.templates.build_from_dockerfile("theirs", dockerfile, context_dir=str(context))
    assert elsewhere.templates.wait_for_build(built.id, poll_interval=0.05).is_done
    (tmp_path / "r.tar").write_bytes(b"tar")
    assert elsewhere.templates.build("theirs", rootfs_tar=str(tmp_path / "r.tar"), poll_interval=0.05).is_done
    assert [build.name for build in elsewhere.templates.builds()][:3] == ["theirs"] * 3
    assert elsewhere.templates.get("theirs").is_global
    elsewhere.templates.delete("theirs")
    assert "theirs" not in [template.name for template in elsewhere.templates.list()]
