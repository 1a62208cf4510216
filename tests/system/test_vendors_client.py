"""The client `pandastack`, unchanged, on real guests: every call it has for sandboxes and for what belongs to them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pandastack  # type: ignore[import-untyped]  # it comes without types
import pytest

from running_server import RunningServer, home_sharing_templates, serving

PATIENCE_S = 240.0
PORT = 8000


@pytest.fixture(scope="module")
def vendor(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The client as it finds its server: by two variables of the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PANDASTACK_API", server.url)
        patch.setenv("PANDASTACK_API_KEY", server.key)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("vendors-home")))  # where it looks for settings of its own
        client = pandastack.Client()
        pandastack.set_default_client(client)
        yield client
        pandastack.set_default_client(None)
        client.session.close()


@pytest.fixture(scope="module")
def box(vendor: Any) -> Iterator[Any]:
    """A sandbox that the tests of this file share: they leave it as they found it."""
    made = vendor.sandboxes.create(template="base", metadata={"run": "vendor"}, ttl_seconds=1800)
    yield made
    made.kill()


def until(true: Any) -> None:
    """Ask again and again until something is so; it has no signal of its own."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_a_sandbox_is_made_found_looked_at_and_ended(vendor: Any) -> None:
    with pandastack.Sandbox.create("base", metadata={"a": "b"}, ttl_seconds=300) as sandbox:
        assert (sandbox.status, sandbox.metadata, sandbox.boot_mode) == ("running", {"a": "b"}, "restore")
        assert pandastack.Sandbox.get(sandbox.id).id == sandbox.id
        assert sandbox.id in [one.id for one in pandastack.Sandbox.list()]
        assert sandbox.refresh().status == "running"
        assert sandbox.lifecycle()["ttl_seconds"] == 300
        assert sandbox.set_ttl(600)["ttl_seconds"] == 600
        assert sandbox.set_persistent(True)["persistent"] is True
        assert sandbox.set_persistent(False)["persistent"] is False
    with pytest.raises(pandastack.NotFoundError):
        vendor.sandboxes.get(sandbox.id)
    sandbox.kill()


def test_commands_run_fail_and_are_timed_out(box: Any) -> None:
    result = box.exec("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    assert result.duration_ms >= 0
    with pytest.raises(pandastack.CommandFailed):
        box.exec("exit 3", check=True)
    with pytest.raises(pandastack.SandboxTimeout):
        box.exec("sleep 60", timeout_seconds=1)
    assert box.commands.run("echo hi", timeout=60).stdout == "hi\n"
    with pytest.raises(pandastack.BadRequestError):
        box.exec("")


def test_output_is_streamed_and_comes_with_the_exit_code(box: Any) -> None:
    out: list[str] = []
    err: list[str] = []
    code = box.exec_stream("printf 'é😀'; echo warn >&2; exit 5", on_stdout=out.append, on_stderr=err.append)
    assert (code, "".join(out), "".join(err)) == (5, "é😀", "warn\n")
    with pytest.raises(pandastack.SandboxTimeout):
        box.exec_stream("echo a; sleep 60", timeout_seconds=1)


def test_code_is_run_by_its_language(box: Any) -> None:
    assert box.run_code("print(6 * 7)").stdout == "42\n"
    assert box.run_code("echo ${BASH_VERSION%%.*}", language="bash").stdout.strip().isdecimal()
    with pytest.raises(ValueError, match="Unsupported language"):
        box.run_code("1", language="cobol")


def test_files_go_both_ways_to_the_byte(box: Any, tmp_path: Path) -> None:
    files, data = box.filesystem, bytes(range(256)) * 5000
    assert files.write("/work/v/bytes", data)["bytes"] == len(data)
    assert files.write("/work/v/text", "é\n") == {"path": "/work/v/text", "bytes": 3}
    assert files.write("/work/v/empty", b"")["bytes"] == 0
    assert (files.read("/work/v/bytes"), files.read("/work/v/empty")) == (data, b"")
    box.exec("mkdir -p /work/v/sub && echo x >/work/v/sub/x && ln -s sub /work/v/link")
    listed = {one.name: one for one in files.listdir("/work/v")}
    assert {name: one.is_dir for name, one in listed.items()} == {
        "bytes": False,
        "text": False,
        "empty": False,
        "sub": True,
        "link": False,
    }
    assert (listed["bytes"].size, listed["bytes"].path) == (len(data), "/work/v/bytes")
    told = files.stat("/work/v/text")
    assert (told.name, told.path, told.size, told.is_dir, told.mtime > 0) == ("text", "/work/v/text", 3, False, True)
    assert (files.exists("/work/v"), files.exists("/work/none")) == (True, False)
    assert [(where, [d.name for d in dirs]) for where, dirs, _ in files.walk("/work/v")] == [
        ("/work/v", ["sub"]),
        ("/work/v/sub", []),
    ]
    (tmp_path / "up").write_bytes(data)
    files.upload(tmp_path / "up", "/work/v/up")
    files.download("/work/v/up", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == data
    for ask in (files.read, files.stat, files.listdir):
        with pytest.raises(pandastack.NotFoundError):
            ask("/work/none")
    box.exec("rm -r /work/v", check=True)


def test_a_code_context_keeps_its_variables_and_tells_results_and_errors(box: Any) -> None:
    with box.create_code_context("python3") as context:
        assert context.run_code("x = 41").error is None
        ran = context.run_code("print('said'); x + 1")
        assert (ran.text, ran.stdout, ran.exit_code) == ("42", "said\n", 0)
        failed = context.run_code("1 / 0")
        assert "ZeroDivisionError" in failed.error
        with pytest.raises(pandastack.SandboxTimeout):
            context.run_code("import time\nwhile True: time.sleep(0.1)", timeout_seconds=2)
        html = context.run_code("class Row:\n    def _repr_html_(self): return '<b>x</b>'\nRow()")
        assert html.results[0].html == "<b>x</b>"
        box.hibernate()
        assert context.run_code("x").text == "41"
    with pytest.raises(pandastack.BadRequestError, match="language"):
        box.create_code_context("cobol")


def test_it_sleeps_and_goes_on(box: Any) -> None:
    box.exec("echo kept >/tmp/kept; nohup sleep 1000 >/dev/null 2>&1 & echo $! >/tmp/pid")
    for verb, status in (("pause", "paused"), ("resume", "running"), ("hibernate", "hibernated"), ("wake", "running")):
        for _ in range(2):
            getattr(box, verb)()
            assert box.refresh().status == status
    box.hibernate()
    assert box.exec("cat /tmp/kept && kill $(cat /tmp/pid) && echo lived").stdout == "kept\nlived\n"
    assert box.refresh().status == "running"


def test_snapshots_are_taken_restored_listed_and_deleted(vendor: Any, box: Any) -> None:
    box.exec("echo then >/work/when")
    snapshot = box.snapshot()
    box.exec("echo later >/work/when")
    with vendor.sandboxes.create(from_snapshot=snapshot, ttl_seconds=300) as restored:
        assert restored.exec("cat /work/when").stdout == "then\n"
        assert (restored.from_snapshot, restored.template) == (snapshot, "base")
    assert vendor.snapshots.get(snapshot)["sandbox_id"] == box.id
    assert snapshot in [one["id"] for one in vendor.snapshots.list()]
    assert snapshot in [one["id"] for one in vendor.snapshots.list(sandbox_id=box.id)]
    vendor.snapshots.delete(snapshot)
    with pytest.raises(pandastack.NotFoundError):
        vendor.snapshots.get(snapshot)
    with pytest.raises(pandastack.NotFoundError):
        vendor.sandboxes.create(from_snapshot=snapshot)


def test_it_forks_a_tree_and_promotes_a_child(box: Any) -> None:
    box.exec("echo common >/work/common")
    with box.fork(metadata={"role": "single"}) as single:
        assert single.exec("cat /work/common").stdout == "common\n"
        assert (single.metadata["role"], single.metadata["fork_parent_id"]) == ("single", box.id)
    children = box.fork_tree(2, metadata={"explore_ttl": "300"})
    assert [one.exec("cat /work/common; hostname").stdout.split() for one in children] == [
        ["common", one.id] for one in children
    ]
    told = children[1].promote(cleanup_siblings=True)
    assert (told["winner"], told["deleted"], told["failures"]) == (children[1].id, [children[0].id], {})
    assert children[1].lifecycle()["ttl_seconds"] == 1800
    children[1].kill()
    box.exec("rm /work/common")


def test_it_explores_and_promotes_the_best(vendor: Any, box: Any) -> None:
    found = box.explore(
        ["echo 3 | tee /work/a", "echo 7 | tee /work/b", "exit 2"],
        score_fn=lambda _, outcome: float(outcome.stdout_tail or 0),
        capture_files="/work",
    )
    assert (found.winner_outcome.label, found.errors) == ("echo 7 | tee /work/b", [])
    assert found.winner_outcome.files_changed == ["/work/b"]
    assert found.winner.exec("cat /work/b").stdout == "7\n"
    left = {one.id for one in vendor.sandboxes.list()}
    assert left.isdisjoint({one.sandbox_id for one in found.outcomes} - {found.winner.id})
    found.winner.kill()


def test_the_console_is_read_and_followed(box: Any) -> None:
    box.exec("echo first-mark >/dev/console", check=True)
    until(lambda: "first-mark" in list(box.logs()))
    followed = box.logs(follow=True)
    assert any(line == "first-mark" for line in followed)
    box.exec("echo second-mark >/dev/console", check=True)
    assert any(line == "second-mark" for line in followed)
    followed.close()


def test_previews_are_open_where_the_operator_says_so(
    template_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORPOR_PORTS_OPEN", "on")
    with serving(home_sharing_templates(template_home, tmp_path / "home")) as server:
        client = pandastack.Client(server.url, server.key)
        client.preview_host = server.url.removeprefix("http://127.0.0.1").replace(":", "localhost:", 1)
        with client.sandboxes.create("base", ttl_seconds=600) as sandbox:
            sandbox.filesystem.write("/work/page", "hello")
            sandbox.exec(f"cd /work && nohup python3 -m http.server {PORT} >/dev/null 2>&1 &")
            until(lambda: PORT in sandbox.preview_urls())
            url = httpx2.URL(sandbox.preview_url(PORT, scheme="http")).copy_with(path="/page")
            assert sandbox.preview_urls()[PORT] == f"https://{url.netloc.decode()}"
            here = httpx2.URL(server.url).copy_with(raw_path=url.raw_path)
            with httpx2.Client(timeout=PATIENCE_S, trust_env=False) as anybody:
                answer = anybody.get(here, headers={"host": url.netloc.decode()})
        assert (answer.status_code, answer.text) == (200, "hello")
        client.session.close()


def test_templates_are_listed_and_shown(vendor: Any) -> None:
    (base,) = [one for one in vendor.templates.list() if one.name == "base"]
    assert (base.cpu, base.memory_mb, base.is_global) == (1, 256, True)
    assert vendor.templates.get("base").name == "base"
    with pytest.raises(pandastack.NotFoundError):
        vendor.templates.get("none")


def test_a_template_is_built_of_a_dockerfile_used_and_deleted(vendor: Any, tmp_path: Path) -> None:
    (tmp_path / "context" / "sub").mkdir(parents=True)
    (tmp_path / "context" / "sub" / "greeting").write_text("hello\n")
    dockerfile = "FROM base\nCOPY sub/greeting /srv/greeting\nENV WHOM=world\nRUN cat /srv/greeting >/srv/built\n"
    build = vendor.templates.build_from_dockerfile("vendors", dockerfile, context_dir=str(tmp_path / "context"))
    try:
        assert build.status in ("queued", "running", "baking")
        lines = list(vendor.templates.build_logs(build.id))
        done = vendor.templates.wait_for_build(build.id, poll_interval=0.2, timeout_seconds=PATIENCE_S)
        assert (done.status, done.name, done.error) == ("done", "vendors", None)
        assert any("RUN" in line for line in lines)
        assert list(vendor.templates.build_logs(build.id, follow=False))
        assert vendor.templates.get_build(build.id).is_done
        assert build.id in [one.id for one in vendor.templates.builds()]
        with vendor.sandboxes.create("vendors", ttl_seconds=300) as sandbox:
            assert sandbox.exec("cat /srv/built; echo $WHOM").stdout == "hello\nworld\n"
    finally:
        vendor.templates.delete("vendors")
    with pytest.raises(pandastack.BadRequestError, match="vendors"):
        vendor.sandboxes.create("vendors")


def test_a_build_that_cannot_work_fails_and_says_why(vendor: Any) -> None:
    build = vendor.templates.build_from_dockerfile("vendors-bad", "FROM base\nSTOPSIGNAL 9\n")
    with pytest.raises(pandastack.TemplateBuildError, match="STOPSIGNAL"):
        vendor.templates.wait_for_build(build.id, poll_interval=0.2, timeout_seconds=PATIENCE_S)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}/image:1"
    build = vendor.templates.register("vendors-bad", nobody)
    with pytest.raises(pandastack.TemplateBuildError):
        vendor.templates.wait_for_build(build.id, poll_interval=0.2, timeout_seconds=PATIENCE_S)


def test_a_volume_outlives_the_sandboxes_that_it_is_attached_to(vendor: Any) -> None:
    made = vendor.volumes.create("vendors", 64)
    try:
        assert (made["name"], made["size_mb"]) == ("vendors", 64)
        with vendor.sandboxes.create("base", ttl_seconds=300, volumes=[{"name": "vendors"}]) as writer:
            writer.exec("echo kept >/volumes/vendors/note", check=True)
            with pytest.raises(pandastack.BadRequestError):
                vendor.volumes.delete("vendors")
        volumes = [{"name": "vendors", "readOnly": True}]
        with vendor.sandboxes.create("base", ttl_seconds=300, volumes=volumes) as reader:
            assert reader.exec("cat /volumes/vendors/note").stdout == "kept\n"
            assert reader.exec("echo no >/volumes/vendors/note").exit_code != 0
        assert vendor.volumes.get("vendors")["size_mb"] == 64
        assert "vendors" in [one["name"] for one in vendor.volumes.list()]
    finally:
        vendor.volumes.delete("vendors")
    with pytest.raises(pandastack.NotFoundError):
        vendor.volumes.get("vendors")


def test_keys_are_made_used_and_revoked(vendor: Any, box: Any) -> None:
    token = vendor.tokens.create("vendors", expires_in_days=1)
    other = pandastack.Client(vendor.api_url, token.token)
    assert box.id in [one.id for one in other.sandboxes.list()]
    assert token.prefix in [one.prefix for one in vendor.tokens.list()]
    assert other.me()["workspace"] == vendor.me()["workspace"]
    vendor.tokens.revoke(token.prefix)
    with pytest.raises(pandastack.AuthError):
        other.sandboxes.list()
    other.session.close()


def test_errors_are_told_apart(vendor: Any) -> None:
    with pytest.raises(pandastack.BadRequestError, match="none"):
        vendor.sandboxes.create("none")
    with pytest.raises(pandastack.NotFoundError):
        vendor.sandboxes.get("sbx-0000000000000000")
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(pandastack.CreateCancelled):
        vendor.sandboxes.create("base", cancel=cancel)
    with pytest.warns(DeprecationWarning, match="baked into the template"):
        vendor.sandboxes.create("base", cpu=8, ttl_seconds=60).kill()
