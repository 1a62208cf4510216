"""Code contexts: interpreters that keep their variables from cell to cell, over the real interpreter's program."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from control_rig import NOBODY, PATIENCE_S, Rig, control_rig, events_of
from torpor.control.api.answers import PATIENCE_S as ANSWER_S
from torpor.control.api.stream import START_S
from torpor.model.ids import is_context_id
from torpor.wire.repl import MAX_CODE

UNKNOWN = "ctx-0000000000000000"


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


@pytest.fixture
async def made(rig: Rig) -> str:
    return await rig.create(env={"GREETING": "hello"})


class Context:
    """A code context of a test."""

    def __init__(self, rig: Rig, sandbox: str, view: Any) -> None:
        self.rig, self.view = rig, view
        self.path = f"/v1/sandboxes/{sandbox}/repl/sessions/{view['id']}"

    async def run(self, code: str, key: str | None = None, **body: Any) -> Any:
        headers = {} if key is None else {"idempotency-key": key}
        async with asyncio.timeout(PATIENCE_S):
            answer = await self.rig.http.post(f"{self.path}/run", json={"code": code, **body}, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def refused(self, code: str, **body: Any) -> tuple[int, Any]:
        async with asyncio.timeout(PATIENCE_S):
            answer = await self.rig.http.post(f"{self.path}/run", json={"code": code, **body})
        return answer.status_code, answer.json()

    async def show(self) -> Any:
        return (await self.rig.http.get(self.path)).json()


async def context(rig: Rig, made: str, key: str | None = None, **body: Any) -> Context:
    headers = {} if key is None else {"idempotency-key": key}
    answer = await rig.http.post(f"/v1/sandboxes/{made}/repl/sessions", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return Context(rig, made, answer.json())


async def test_variables_live_from_cell_to_cell_and_the_last_value_is_shown(rig: Rig, made: str) -> None:
    ctx = await context(rig, made, language="python")
    assert is_context_id(ctx.view["id"])
    assert (ctx.view["language"], ctx.view["status"]) == ("python", "idle")
    first = await ctx.run("import sys\nx = 41\nprint('out')\nprint('err', file=sys.stderr)")
    assert (first["stdout"], first["stderr"], first["exit"], first["error"]) == ("out\n", "err\n", 0, None)
    assert (first["results"], first["execution_count"], first["truncated"]) == ([], 1, False)
    second = await ctx.run("x + 1")
    assert (second["results"], second["execution_count"]) == ([{"text/plain": "42"}], 2)
    assert (await ctx.run("x + 1;"))["results"] == []
    assert (await ctx.run("# nothing"))["results"] == []


async def test_an_error_is_a_result_with_the_traceback_of_the_cell(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    await ctx.run("def divide(a, b):\n    return a / b")
    failed = await ctx.run("print('before')\ndivide(1, 0)")
    assert (failed["exit"], failed["error_name"], failed["stdout"]) == (1, "ZeroDivisionError", "before\n")
    assert "return a / b" in failed["error"]
    assert '<cell 1>", line 2, in divide' in failed["error"]
    assert "torpor_kernel" not in failed["error"]
    wrong = await ctx.run("x = = 1")
    assert (wrong["error_name"], wrong["exit"]) == ("SyntaxError", 1)
    assert "subprocess runs commands" in (await ctx.run("!ls"))["error"]
    asked = await ctx.run("input('name? ')")
    assert "input() has nobody to ask" in asked["error"]
    deep = await ctx.run("def again():\n    again()\nagain()")
    assert deep["error_name"] == "RecursionError"
    assert (await ctx.run("1"))["results"] == [{"text/plain": "1"}]


async def test_sys_exit_ends_the_cell_and_not_the_context(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    left = await ctx.run("import sys\nkept = 5\nsys.exit(3)\nkept = 6")
    assert (left["exit"], left["error"]) == (3, None)
    told = await ctx.run("sys.exit('no more')")
    assert (told["exit"], told["stderr"]) == (1, "no more\n")
    assert (await ctx.run("kept"))["results"] == [{"text/plain": "5"}]


async def test_a_cell_may_await_and_what_it_began_goes_on_in_the_next(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    begun = "import asyncio\nbegan = asyncio.create_task(asyncio.sleep(0, 'done'))\nawait asyncio.sleep(0, 7)"
    assert (await ctx.run(begun))["results"] == [{"text/plain": "7"}]
    assert (await ctx.run("await began"))["results"] == [{"text/plain": "'done'"}]


async def test_values_are_shown_in_the_forms_that_they_have(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    code = """
class Table:
    def __repr__(self): return "a table"
    def _repr_html_(self): return "<table>"
    def _repr_png_(self): return b"\\x89PNG"
    def _repr_json_(self): return {"rows": 1}
    def _repr_svg_(self): raise ValueError("no picture")
class Bundle:
    def _repr_mimebundle_(self, include=None, exclude=None): return {"text/x": "y"}, {"meta": 1}
display(Table(), 5)
Bundle()
"""
    shown = await ctx.run(code)
    table, five, bundle = shown["results"]
    png = base64.b64encode(b"\x89PNG").decode()
    expected = {"text/plain": "a table", "text/html": "<table>", "image/png": png}
    assert {name: table[name] for name in expected} == expected
    assert json.loads(table["application/json"]) == {"rows": 1}
    assert "image/svg+xml" not in table
    assert "no picture" in shown["stderr"]
    assert five == {"text/plain": "5"}
    assert bundle["text/x"] == "y"


async def test_results_are_bounded_and_what_is_left_out_is_told(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    shown = await ctx.run("class Big:\n    def _repr_html_(self): return 'x' * 17_000_000\nBig()")
    (left,) = shown["results"]
    assert shown["truncated"]
    assert "is left out: it is too large" in left["text/plain"]
    long = await ctx.run("'y' * 3_000_000")
    assert len(long["results"][0]["text/plain"]) < 1_100_000
    assert "characters are left out" in long["results"][0]["text/plain"]


async def test_what_children_and_other_processes_write_comes_with_the_cell_and_spoils_nothing(
    rig: Rig, made: str
) -> None:
    ctx = await context(rig, made)
    code = "import os, subprocess\nsubprocess.run(['sh', '-c', 'echo from a child; echo and err >&2'], check=True)\n"
    told = await ctx.run(code + 'os.write(1, b\'{"kind": "done"}\\n\\xff\\n\');')
    assert told["stdout"] == 'from a child\n{"kind": "done"}\n\ufffd\n'
    assert told["stderr"] == "and err\n"
    forked = await ctx.run("pid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('parent' if pid else 'child')")
    assert forked["stdout"] == "child\nparent\n"
    assert (await ctx.run("1"))["execution_count"] == 3


async def test_the_environment_and_the_folder_are_the_contexts_own(rig: Rig, made: str) -> None:
    ctx = await context(rig, made, env={"MORE": "1"})
    told = await ctx.run("import os\nos.environ['GREETING'] + os.environ['MORE']")
    assert told["results"] == [{"text/plain": "'hello1'"}]
    other = await context(rig, made)
    assert (await other.run("'MORE' in os.environ"))["error_name"] == "NameError"


async def test_a_timeout_interrupts_the_cell_and_the_context_goes_on(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    status, body = await ctx.refused("x = 1\nprint('so far')\nwhile True: pass", timeout_ms=300)
    assert (status, body["code"]) == (504, "exec_timeout")
    assert "timeout after 0.3 s" in body["error"]
    assert body["details"]["stdout"] == "so far\n"
    assert body["hint"] == "the code context goes on"
    assert (await ctx.run("x"))["results"] == [{"text/plain": "1"}]
    status, body = await ctx.refused("import asyncio\nawait asyncio.sleep(600)", timeout_seconds=0.3)
    assert status == 504
    assert (await ctx.run("x"))["results"] == [{"text/plain": "1"}]


async def test_a_cell_that_does_not_heed_the_interrupt_ends_its_context_and_that_is_said(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    stubborn = "import time\nwhile True:\n    try: time.sleep(600)\n    except BaseException: pass"
    status, body = await ctx.refused(stubborn, timeout_seconds=2)
    assert status == 504
    assert "did not heed the interrupt" in body["error"]
    status, body = await ctx.refused("1")
    assert (status, body["code"]) == (410, "interpreter_lost")


async def test_an_interpreter_that_dies_is_told_with_what_the_cell_wrote_and_so_is_every_cell_after(
    rig: Rig, made: str
) -> None:
    ctx = await context(rig, made)
    status, body = await ctx.refused("import os\nprint('last words')\nos._exit(3)")
    assert (status, body["code"]) == (410, "interpreter_lost")
    assert "ended with code 3" in body["error"]
    assert body["details"]["stdout"] == "last words\n"
    status, body = await ctx.refused("1")
    assert (status, body["code"]) == (410, "interpreter_lost")
    assert "make another code context" in body["hint"]
    assert (await ctx.show())["status"] == "ended"
    interrupted = await rig.http.post(f"{ctx.path}/interrupt")
    assert interrupted.status_code == 410
    assert (await rig.http.get(f"/v1/sandboxes/{made}/repl/sessions")).json() == {"items": []}


async def test_a_cell_is_interrupted_as_by_ctrl_c(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    running = asyncio.create_task(ctx.run("print('begun')\nimport time\ntime.sleep(600)"))
    await wait_busy(ctx)
    assert (await rig.http.post(f"{ctx.path}/interrupt")).status_code == 204
    told = await running
    assert (told["exit"], told["error_name"]) == (130, "KeyboardInterrupt")
    assert (await rig.http.post(f"{ctx.path}/interrupt")).status_code == 204  # nothing runs
    assert (await ctx.run("1 + 1"))["results"] == [{"text/plain": "2"}]


async def wait_busy(ctx: Context) -> None:
    """Return when a cell runs. Its first output is the sign."""
    process = f"/v1/sandboxes/{ctx.view['sandbox_id']}/processes/{ctx.view['id']}/stream"
    async with asyncio.timeout(PATIENCE_S), ctx.rig.http.stream("GET", process) as stream:
        async for chunk in stream.aiter_text():
            if "begun" in chunk:
                return


async def test_cells_of_one_context_run_one_after_another(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    await ctx.run("seen = []")
    await asyncio.gather(*(ctx.run(f"seen.append({number}); seen.append({number})") for number in range(8)))
    seen = json.loads((await ctx.run("seen"))["results"][0]["text/plain"])
    assert sorted(seen) == sorted([*range(8)] * 2)
    assert all(seen[at] == seen[at + 1] for at in range(0, 16, 2))


async def test_a_cell_that_is_sent_again_under_its_key_runs_once_and_is_told_again(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    await ctx.run("count = 0")
    code = "count += 1\nprint('counted')\ncount"
    first = await ctx.run(code, key="k")
    await ctx.run("print('in between')")
    assert await ctx.run(code, key="k") == first
    assert (await ctx.run("count"))["results"] == [{"text/plain": "1"}]
    assert (await context(rig, made, key="c")).view == (await context(rig, made, key="c")).view


async def test_a_client_that_goes_leaves_the_cell_alone_and_finds_it_again(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    running = asyncio.create_task(ctx.run("import os, time\nprint('begun')\nwhile not os.path.exists(gate): pass", "k"))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    told = await ctx.run("import tempfile; gate = tempfile.gettempdir()")
    assert told["exit"] == 0


async def test_a_stream_tells_of_output_as_it_comes_and_ends_with_exit(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    answer = await rig.http.post(f"{ctx.path}/run/stream", json={"code": "print('é')\ndisplay(1)\n1/0"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.text)
    assert events[:2] == [("stdout", {"chunk": "é\n"}), ("result", {"data": {"text/plain": "1"}})]
    assert (events[-1][0], events[-1][1]["error_name"]) == ("exit", "ZeroDivisionError")
    lost = await rig.http.post(f"{ctx.path}/run/stream", json={"code": "print(1)\nimport os; os._exit(0)"})
    assert [name for name, _ in events_of(lost.text)] == ["stdout", "error"]
    refused = await rig.http.post(f"{ctx.path}/run/stream", json={"code": "1"})
    assert refused.status_code == 410


async def test_a_long_cell_keeps_the_line_alive_and_its_late_timeout_is_in_the_answer(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    asked = asyncio.create_task(
        rig.http.post(f"{ctx.path}/run", json={"code": "print('begun')\nwhile True: pass", "timeout_ms": 1500})
    )
    await wait_busy(ctx)
    await rig.clock.wait_sleepers(1)
    await rig.clock.jump(ANSWER_S + 1)
    answer = await asked
    assert answer.status_code == 200
    assert answer.text.startswith(" ")
    body = answer.json()
    assert (body["exit"], body["stdout"]) == (124, "begun\n")
    assert "timeout after 1.5 s" in body["error"]


async def test_closing_is_done_once_and_asked_for_as_often_as_one_likes(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    assert len((await rig.http.get(f"/v1/sandboxes/{made}/repl/sessions")).json()["items"]) == 1
    for _ in range(2):
        assert (await rig.http.delete(ctx.path)).status_code == 204
    assert (await rig.http.delete(f"/v1/sandboxes/{made}/repl/sessions/{UNKNOWN}")).status_code == 204
    assert (await rig.http.delete(f"/v1/sandboxes/{NOBODY}/repl/sessions/{UNKNOWN}")).status_code == 404
    await rig.http.get(f"/v1/sandboxes/{made}/processes/{ctx.view['id']}/stream")  # to its end
    assert (await ctx.show())["status"] == "ended"
    status, body = await ctx.refused("1")
    assert (status, body["code"]) == (410, "interpreter_lost")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"language": "ruby"}, "'ruby'"),
        ({"language": 1}, "language"),
        ({"cwd": "work"}, "cwd"),
        ({"env": {"a": 1}}, "env"),
    ],
)
async def test_a_context_that_cannot_be_made_is_refused(rig: Rig, made: str, body: Any, said: str) -> None:
    answer = await rig.http.post(f"/v1/sandboxes/{made}/repl/sessions", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert said in answer.json()["error"]
    assert (await rig.http.get(f"/v1/sandboxes/{made}/processes")).json()["items"] == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"code": 1},
        {"code": "1", "timeout_ms": 0},
        {"code": "1", "timeout_seconds": -1},
        {"code": "1", "timeout_seconds": 1, "timeout_ms": 1},
        {"code": "a\0b"},
        {"code": "x" * (MAX_CODE + 1)},
    ],
)
async def test_a_cell_that_makes_no_sense_is_refused(rig: Rig, made: str, body: Any) -> None:
    ctx = await context(rig, made)
    answer = await rig.http.post(f"{ctx.path}/run", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


async def test_an_unknown_context_is_not_found(rig: Rig, made: str) -> None:
    for sid in (UNKNOWN, "nonsense"):
        path = f"/v1/sandboxes/{made}/repl/sessions/{sid}"
        assert (await rig.http.get(path)).status_code == 404
        assert (await rig.http.post(f"{path}/run", json={"code": "1"})).status_code == 404
        assert (await rig.http.post(f"{path}/interrupt")).status_code == 404


async def test_what_another_program_writes_in_the_interpreters_place_is_told_and_ends_it(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    # Again and again, as what comes before the cell is known to be taken is nobody's.
    forged = """
import os
with open(f"/proc/{os.getppid()}/fd/1", "wb", 0) as out:
    while True:
        out.write(b"rubbish\\n")
"""
    status, body = await ctx.refused(forged)
    assert (status, body["code"]) == (500, "failed")
    assert "nothing that one says" in body["error"]
    status, body = await ctx.refused("1")
    assert status == 410


async def test_what_is_shown_beyond_all_bounds_is_left_out(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    forged = """
import sys
frame = sys._getframe()
while not hasattr(frame.f_locals.get("self"), "_say"):
    frame = frame.f_back
for _ in range(5):
    frame.f_locals["self"]._say({"result": {"text/plain": "x" * 9_000_000}})
"""
    told = await ctx.run(forged)
    assert (len(told["results"]), told["truncated"]) == (3, True)


async def test_an_interpreter_that_nobody_is_told_of_is_ended(rig: Rig, made: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello', flush=True)")
    path = f"/v1/sandboxes/{made}/repl/sessions"
    answer = await rig.http.post(path, json={"env": {"PYTHONPATH": str(tmp_path)}})
    assert (answer.status_code, answer.json()["code"]) == (500, "failed")
    (job,) = rig.host.machines[made].jobs.values()
    await rig.http.get(f"/v1/sandboxes/{made}/processes/{job.order.job}/stream")  # to its end
    assert (await rig.http.get(path)).json()["items"] == []


async def test_a_context_is_a_process_that_is_told_apart(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    (process,) = (await rig.http.get(f"/v1/sandboxes/{made}/processes")).json()["items"]
    assert (process["id"], process["kind"]) == (ctx.view["id"], "repl")
    assert process["command"] == "python3 (a code context)"
    await ctx.run("1 + 1")
    assert [data["kind"] for _, data in await rig.told(made, "exec")] == ["cell"]


async def test_first_silence_of_a_stream_is_a_beat(rig: Rig, made: str) -> None:
    ctx = await context(rig, made)
    code = {"code": "import time\nprint('begun')\nimport sys\nwhile True: pass", "timeout_seconds": 1}
    asked = asyncio.create_task(rig.http.post(f"{ctx.path}/run/stream", json=code))
    await rig.clock.wait_sleepers(1)
    await rig.clock.jump(START_S)
    answer = await asked
    assert answer.status_code == 200
    assert events_of(answer.text)[-1][0] == "error"
