"""Jobs on the host's side of the wire, over a fake VMM."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from host_rig import BASE, HostRig, new_rig
from torpor.model.ids import new_job_id, new_sandbox_id, new_snapshot_id
from torpor.wire import frames
from torpor.wire.errors import ErrorBody
from torpor.wire.frames import Frame, Kind
from torpor.wire.host import ExecOutcome, Fed, Job, JobList

ROOT = "/host/v1/incarnations"


@pytest.fixture
async def rig(tmp_path: Path) -> HostRig:
    rig = new_rig(tmp_path)
    await rig.bake()
    return rig


@pytest.fixture
async def client(rig: HostRig) -> AsyncIterator[httpx2.AsyncClient]:
    async with rig.client() as client:
        yield client


@pytest.fixture
async def one(client: httpx2.AsyncClient) -> str:
    sandbox = new_sandbox_id()
    assert (await client.post(ROOT, json={"id": sandbox, "template": BASE})).status_code == 201
    return f"{ROOT}/{sandbox}"


async def start(client: httpx2.AsyncClient, one: str, script: str, **more: object) -> Job:
    """Start a job; the answer tells what it is."""
    body = {"job": new_job_id(), "argv": ["/bin/sh", "-c", script], **more}
    answer = await client.post(f"{one}/jobs", json=body)
    assert answer.status_code == 201, answer.text
    return Job.model_validate_json(answer.content)


async def told(client: httpx2.AsyncClient, url: str) -> tuple[bytes, ExecOutcome]:
    """Return what the frames at a URL say."""
    async with client.stream("GET", url) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"] == frames.MEDIA_TYPE
        return joined([frame async for frame in frames.decode(answer.aiter_raw())])


def joined(received: list[Frame]) -> tuple[bytes, ExecOutcome]:
    *output, end = received
    assert end.kind is Kind.EXIT
    return b"".join(frame.payload for frame in output), ExecOutcome.model_validate_json(end.payload)


async def execute(client: httpx2.AsyncClient, one: str, **order: object) -> tuple[bytes, ExecOutcome]:
    async with client.stream("POST", f"{one}/exec", json=order) as answer:
        assert answer.status_code == 200, await answer.aread()
        return joined([frame async for frame in frames.decode(answer.aiter_raw())])


def refused(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, ErrorBody.model_validate_json(answer.content).error


async def test_a_job_is_started_listed_described_and_heard_from_any_offset(
    client: httpx2.AsyncClient, one: str
) -> None:
    job = await start(client, one, "echo hello; exit 3", user="root")
    assert (job.command, job.user, job.waited_for) == ("echo hello; exit 3", "root", False)
    url = f"{one}/jobs/{job.id}"
    assert await told(client, f"{url}/output") == await told(client, f"{url}/output?stdout_from=0")
    stdout, outcome = await told(client, f"{url}/output?stdout_from=2&stderr_from=0")
    assert (stdout, outcome.exit_code) == (b"llo\n", 3)
    listed = JobList.model_validate_json((await client.get(f"{one}/jobs")).content).items
    described = Job.model_validate_json((await client.get(url)).content)
    assert listed == [described]
    assert described.outcome == outcome
    assert described.stdout_bytes == 6


async def test_an_exec_with_an_id_is_found_again_by_its_order_and_no_other(
    client: httpx2.AsyncClient, one: str
) -> None:
    order = {"job": new_job_id(), "argv": ["count", "runs"]}
    assert [await execute(client, one, **order) for _ in range(2)][1][0] == b"1\n"
    assert (await execute(client, one, **order, stdout_from=1))[0] == b"\n"
    assert refused(await client.post(f"{one}/exec", json=order | {"argv": ["true"]}))[0] == 409
    assert refused(await client.post(f"{one}/jobs", json=order))[0] == 409


async def test_hanging_up_leaves_a_job_alone(client: httpx2.AsyncClient, one: str) -> None:
    job = new_job_id()
    order = {"job": job, "argv": ["/bin/sh", "-c", "echo on; hang"]}
    async with client.stream("POST", f"{one}/exec", json=order) as answer:
        await anext(frames.decode(answer.aiter_raw()))
    async with client.stream("GET", f"{one}/jobs/{job}/output") as answer:
        assert (await anext(frames.decode(answer.aiter_raw()))).payload == b"on\n"
    assert (await client.post(f"{one}/jobs/{job}/signal", json={"signal": "SIGTERM"})).status_code == 204
    assert (await told(client, f"{one}/jobs/{job}/output"))[1].signal == "SIGTERM"
    assert refused(await client.post(f"{one}/jobs/{job}/signal", json={}))[0] == 409


async def test_input_comes_in_parts(client: httpx2.AsyncClient, one: str) -> None:
    job = await start(client, one, "cat", stdin=base64.b64encode(b"a").decode(), open_stdin=True)
    for part, close in ((b"\0\xff" * 100_000, "false"), (b"end", "true")):
        answer = await client.post(f"{one}/jobs/{job.id}/stdin?close={close}", content=part)
        assert Fed.model_validate_json(answer.content).bytes == len(part)
    assert (await told(client, f"{one}/jobs/{job.id}/output"))[0] == b"a" + b"\0\xff" * 100_000 + b"end"
    assert refused(await client.post(f"{one}/jobs/{job.id}/stdin", content=b"x"))[0] == 409


async def test_a_job_goes_on_over_a_hibernation_and_in_what_comes_of_a_snapshot(
    rig: HostRig, client: httpx2.AsyncClient, one: str
) -> None:
    job = await start(client, one, "echo before; count runs; sleep 0.05; echo after")
    snapshot = new_snapshot_id()
    answer = await client.post(f"{one}/snapshots", json={"id": snapshot, "kind": "checkpoint"})
    assert answer.status_code == 201, answer.text
    frozen = await client.post(f"{one}/hibernate", json={"id": new_snapshot_id(), "kind": "hibernation"})
    assert frozen.status_code == 200, frozen.text
    assert refused(await client.get(f"{one}/jobs"))[0] == 503
    assert (await client.post(f"{one}/wake")).status_code == 200
    copy = new_sandbox_id()
    assert (await client.post(ROOT, json={"id": copy, "snapshot": snapshot})).status_code == 201
    for url in (one, f"{ROOT}/{copy}"):
        stdout, outcome = await told(client, f"{url}/jobs/{job.id}/output")
        assert (stdout, outcome.exit_code) == (b"before\n1\nafter\n", 0)
    assert rig.state_of(copy) == "running"


@pytest.mark.parametrize("job", ["job-x", "exec-1", "job-0123456789bcdfgh/../../x"])
async def test_what_is_no_job_s_id_is_not_found_or_refused(client: httpx2.AsyncClient, one: str, job: str) -> None:
    assert (await client.get(f"{one}/jobs/{job}")).status_code == 404
    for path in ("exec", "jobs"):
        status, message = refused(await client.post(f"{one}/{path}", json={"job": job, "argv": ["true"]}))
        assert (status, "job" in message) == (400, True)


async def test_what_makes_no_sense_is_refused_by_name(client: httpx2.AsyncClient, one: str) -> None:
    job = new_job_id()
    status, message = refused(await client.post(f"{one}/jobs", json={"argv": ["true"]}))
    assert (status, message[:4]) == (400, "job:")
    for text in ("-1", "x", "1.5", "9" * 20, "%D9%A1"):
        status, message = refused(await client.get(f"{one}/jobs/{job}/output?stdout_from={text}"))
        assert (status, message[:12]) == (400, "stdout_from:")
    assert refused(await client.get(f"{one}/jobs/{job}/output"))[0] == 404
    assert refused(await client.get(f"{one}/jobs/{job}"))[0] == 404
    started = await start(client, one, "hang")
    for name in ("SIGNONE", "9", "KILL", ""):
        status, _ = refused(await client.post(f"{one}/jobs/{started.id}/signal", json={"signal": name}))
        assert status == 400
    await client.post(f"{one}/jobs/{started.id}/signal", json={})
    assert refused(await client.get(f"{ROOT}/{new_sandbox_id()}/jobs"))[0] == 404
