"""Code contexts by the SDK, against the real control plane over a fake host that runs the real interpreter."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from torpor import (
    AsyncClient,
    AsyncSandbox,
    Client,
    CodeContext,
    ExecTimeout,
    InterpreterLost,
    InvalidRequest,
    NotFound,
    Result,
    Retry,
    Sandbox,
)
from torpor.sdk.execution import Running, Watching, cell
from torpor.sdk.sse import Event
from torpor.testing.host import FakeHost
from torpor.testing.server import running_server
from torpor.wire.repl import CellEnd

HASTY = Retry(attempts=5, first_delay_s=0.0, longest_delay_s=0.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, str]]:
    with running_server(tmp_path / "home", FakeHost()) as (url, key):
        yield url, key


@pytest.fixture
def client(server: tuple[str, str]) -> Iterator[Client]:
    with Client(*server) as client:
        yield client


@pytest.fixture
def sandbox(client: Client) -> Sandbox:
    return Sandbox.create("agent", client=client)


def test_a_context_keeps_its_variables_and_ends_with_its_block(sandbox: Sandbox) -> None:
    with sandbox.code_context(env={"MORE": "1"}) as ctx:
        assert isinstance(ctx, CodeContext)
        ctx.run("import os, sys\nx = 41\nprint('out')\nprint('err', file=sys.stderr)")
        told = ctx.run("print(x)\nx + int(os.environ['MORE'])")
        assert (told.stdout, told.text, told.exit_code, told.error) == ("41\n", "42", 0, None)
        assert (told.html, told.png, told.execution_count, told.truncated) == (None, None, 2, False)
        (found,) = sandbox.code_contexts()
        assert (found.id, found.language, found.info.status) == (ctx.id, "python", "idle")
        assert sandbox.attach_code_context(ctx.id).run("x").text == "41"
    assert sandbox.code_contexts() == []
    assert sandbox.attach_code_context(ctx.id).info.status == "ended"
    ctx.close()


def test_what_a_cell_raises_is_in_its_result(sandbox: Sandbox) -> None:
    told = sandbox.run_code("print('before')\n1/0")
    assert (told.exit_code, told.error_name, told.stdout) == (1, "ZeroDivisionError", "before\n")
    assert told.error is not None
    assert told.error.startswith("Traceback")
    assert sandbox.run_code("import sys; sys.exit(3)").exit_code == 3


def test_results_have_their_forms_and_pictures_are_bytes(sandbox: Sandbox) -> None:
    code = """
class Picture:
    def __repr__(self): return "a picture"
    def _repr_png_(self): return b"\\x89PNG"
    def _repr_jpeg_(self): return b"JPEG"
    def _repr_html_(self): return "<img>"
    def _repr_svg_(self): return "<svg/>"
    def _repr_markdown_(self): return "*picture*"
    def _repr_json_(self): return [1]
display(1)
Picture()
"""
    told = sandbox.run_code(code)
    assert [result.text for result in told.results] == ["1", "a picture"]
    assert (told.png, told.html, told.text) == (b"\x89PNG", "<img>", "a picture")
    shown = told.results[1]
    assert (shown.jpeg, shown.svg, shown.markdown, shown.json) == (b"JPEG", "<svg/>", "*picture*", [1])
    assert told.results[0].json is None


def test_callbacks_are_given_what_comes_when_it_comes(sandbox: Sandbox) -> None:
    out: list[str] = []
    err: list[str] = []
    shown: list[Result] = []
    seen = threading.Event()

    def on_stdout(text: str) -> None:
        out.append(text)
        seen.set()

    code = "import sys\nprint('é'); print('!', file=sys.stderr)\ndisplay(7)"
    told = sandbox.run_code(code, on_stdout=on_stdout, on_stderr=err.append, on_result=shown.append)
    assert ("".join(out), "".join(err), [one.text for one in shown]) == ("é\n", "!\n", ["7"])
    assert (told.stdout, told.stderr) == ("é\n", "!\n")


def test_a_timeout_raises_with_the_output_so_far_and_the_context_goes_on(sandbox: Sandbox) -> None:
    with sandbox.code_context() as ctx:
        ctx.run("x = 1")
        with pytest.raises(ExecTimeout, match=r"timeout after 0\.5 s") as raised:
            ctx.run("print('so far')\nwhile True: pass", timeout_seconds=0.5)
        assert raised.value.stdout == "so far\n"
        assert ctx.run("x").text == "1"


def test_an_interpreter_that_dies_is_an_error_and_run_code_makes_another(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 1")
    with pytest.raises(InterpreterLost, match="ended with code 4") as raised:
        sandbox.run_code("print('last')\nimport os; os._exit(4)")
    assert raised.value.stdout == "last\n"
    assert sandbox.run_code("x").error_name == "NameError"


def test_who_fails_on_a_piece_interrupts_the_cell(sandbox: Sandbox) -> None:
    def fail(text: str) -> None:
        raise ValueError(text)

    with sandbox.code_context() as ctx:
        with pytest.raises(ValueError, match="begun"):
            ctx.run("print('begun')\nimport time\ntime.sleep(600)", on_stdout=fail)
        assert ctx.run("1").text == "1"


def test_an_error_of_a_callbacks_own_interrupts_the_cell_whatever_it_is(sandbox: Sandbox) -> None:
    def fail(text: str) -> None:
        raise NotFound(text)

    with sandbox.code_context() as ctx:
        with pytest.raises(NotFound, match="begun"):
            ctx.run("print('begun')\nimport time\ntime.sleep(600)", on_stdout=fail)
        assert ctx.run("1").text == "1"


def test_run_code_begins_anew_after_a_context_that_could_not_be_made(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(InterpreterLost, match="code 3"):
        sandbox.run_code("1")
    monkeypatch.delenv("PYTHONPATH")
    assert sandbox.run_code("1").text == "1"


def test_what_is_shown_beyond_all_bounds_is_handed_on_and_not_kept() -> None:
    shown: list[Result] = []
    running = Running("/path", cell("1", None), Watching(on_result=shown.append))
    for part in ("a", "b", "c"):
        event = Event("result", json.dumps({"data": {"text/plain": part * 15_000_000}}).encode())
        for callback, piece in running.take(event):
            callback(piece)
    told = running.execution(CellEnd(exit=0, duration_ms=1, execution_count=1))
    assert (len(shown), len(told.results), told.truncated) == (3, 2, True)
    running.call()
    assert list(running.take(event)) == []  # it is told again from the beginning


def test_bad_input_is_refused_before_anything_is_sent(sandbox: Sandbox) -> None:
    for language in ("ruby", ""):
        with pytest.raises(InvalidRequest, match="language has to be python"):
            sandbox.code_context(language)
    with pytest.raises(InvalidRequest, match="timeout_seconds"):
        sandbox.run_code("1", timeout_seconds=0)
    with pytest.raises(InvalidRequest, match="not the id"):
        sandbox.attach_code_context("nonsense")
    with pytest.raises(NotFound):
        sandbox.attach_code_context("ctx-0000000000000000")


class _CutOnce(httpx2.HTTPTransport):
    """Breaks the first stream of a cell off after its first bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts = 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = super().handle_request(request)
        if request.url.path.endswith("/run/stream") and not self.cuts:
            self.cuts += 1
            assert isinstance(answer.stream, httpx2.SyncByteStream)
            answer.stream = _Cut(answer.stream)
        return answer


class _Cut(httpx2.SyncByteStream):
    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            yield chunk
            if b"second" in chunk:
                raise httpx2.ReadError("cut")

    def close(self) -> None:
        self._stream.close()


def test_a_cell_whose_connection_breaks_runs_once_and_is_heard_to_its_end(server: tuple[str, str]) -> None:
    transport = _CutOnce()
    with Client(*server, retry=HASTY, transport=transport) as client:
        sandbox = Sandbox.create("agent", client=client)
        pieces: list[str] = []
        with sandbox.code_context() as ctx:
            ctx.run("import time\ncount = 0")
            transport.cuts = 0
            code = "count += 1\nprint('first')\ndisplay(1)\nprint('second')\ntime.sleep(0.2)\nprint('third')\ncount"
            told = ctx.run(code, on_stdout=pieces.append)
            assert transport.cuts == 1
            assert told.stdout == "".join(pieces) == "first\nsecond\nthird\n"
            assert [result.text for result in told.results] == ["1", "1"]
            assert ctx.run("count").text == "1"


async def test_the_async_twin_does_the_same(server: tuple[str, str]) -> None:
    async with AsyncClient(*server) as client:
        sandbox = await AsyncSandbox.create("agent", client=client)
        async with sandbox.code_context() as ctx:
            pieces: list[str] = []

            async def take(text: str) -> None:
                pieces.append(text)

            told = await ctx.run("print('hello')\n6 * 7", on_stdout=take)
            assert (told.text, pieces) == ("42", ["hello\n"])
        assert (await sandbox.run_code("2 + 2")).text == "4"
