"""The client of a host: what it asks, and what becomes of answers that are lost, broken or refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import pytest
from starlette.responses import Response

from torpor.control.hosts import HostClient
from torpor.errors import (
    Busy,
    Conflict,
    HostUnreachable,
    NotFound,
    OutcomeUnknown,
    SandboxLost,
    TorporError,
)
from torpor.testing.host import FakeHost
from torpor.wire import frames, host
from torpor.wire.frames import Frame, Kind
from torpor.wire.memory import MemoryTransport

ID = "sbx-1111111111111111"
OLD, NEW = "snp-1111111111111111", "snp-2222222222222222"


@pytest.fixture
async def fake() -> FakeHost:
    made = FakeHost()
    made.begin(ID)
    made.freeze(ID, host.Freeze(id=OLD, kind="checkpoint"))
    return made


@pytest.fixture
async def client(fake: FakeHost) -> AsyncIterator[HostClient]:
    made = HostClient(fake.transport())
    yield made
    await made.aclose()


async def _chunks() -> AsyncIterator[bytes]:
    yield b"one"
    yield b"two"


QUESTIONS: dict[str, Callable[[HostClient], Awaitable[object]]] = {
    "capabilities": lambda client: client.capabilities(),
    "list": lambda client: client.incarnations(),
    "network": lambda client: client.network(ID),
    "stat": lambda client: client.stat(ID, "/tmp"),
    "dir": lambda client: client.dir(ID, "/"),
    "templates": lambda client: client.templates(),
    "snapshots": lambda client: client.snapshots(),
}
ORDERS: dict[str, Callable[[HostClient], Awaitable[object]]] = {
    "restore": lambda client: client.restore(host.Restore(id="sbx-2222222222222222", template="base")),
    "close": lambda client: client.close(ID),
    "pause": lambda client: client.pause(ID),
    "resume": lambda client: client.resume(ID),
    "hibernate": lambda client: client.hibernate(ID, host.Freeze(id=NEW, kind="hibernation")),
    "wake": lambda client: client.wake(ID, host.Wake()),
    "set_network": lambda client: client.set_network(ID, host.Network(mode="none")),
    "snapshot": lambda client: client.snapshot(ID, host.Freeze(id=NEW, kind="checkpoint", name="a")),
    "rollback": lambda client: client.rollback(ID, host.Rollback(snapshot=OLD)),
    "remove_snapshot": lambda client: client.remove_snapshot(OLD),
    "verify_snapshot": lambda client: client.verify_snapshot(OLD),
    "write": lambda client: client.write(ID, {"path": "/tmp/f"}, _chunks(), 6),
    "mkdir": lambda client: client.mkdir(ID, "/tmp/d", "700", None),
    "remove_template": lambda client: client.remove_template("agent"),
}
BOTH = QUESTIONS | ORDERS


@pytest.mark.parametrize("verb", QUESTIONS)
async def test_a_lost_answer_to_a_question_can_be_asked_again(fake: FakeHost, client: HostClient, verb: str) -> None:
    fake.lose_answer(verb)
    with pytest.raises(HostUnreachable):
        await QUESTIONS[verb](client)
    await QUESTIONS[verb](client)


@pytest.mark.parametrize("verb", ORDERS)
async def test_a_lost_answer_to_an_order_is_an_unknown_outcome(fake: FakeHost, client: HostClient, verb: str) -> None:
    fake.lose_answer(verb)
    with pytest.raises(OutcomeUnknown) as unknown:
        await ORDERS[verb](client)
    assert isinstance(unknown.value.__cause__, httpx2.TransportError)


@pytest.mark.parametrize("verb", BOTH)
async def test_a_host_that_is_down_received_nothing(fake: FakeHost, client: HostClient, verb: str) -> None:
    fake.down = True
    with pytest.raises(HostUnreachable):
        await BOTH[verb](client)
    assert fake.calls[verb] == 0


@pytest.mark.parametrize("verb", BOTH)
@pytest.mark.parametrize(
    "error", [Busy("b"), NotFound("n"), SandboxLost("s", last_snapshot="snp"), Conflict("c", seen="x", needed=["y"])]
)
async def test_what_the_host_refused_is_raised_as_it_was(
    fake: FakeHost, client: HostClient, verb: str, error: TorporError
) -> None:
    fake.fail(verb, error)
    with pytest.raises(type(error)) as raised:
        await BOTH[verb](client)
    assert (raised.value.message, raised.value.details()) == (error.message, error.details())


async def test_bytes_pass_both_ways(client: HostClient) -> None:
    assert (await client.write(ID, {"path": "/tmp/f", "mode": "640"}, _chunks(), None)).bytes == 6
    async with client.read(ID, "/tmp/f", None) as source:
        assert source.size == 6
        assert b"".join([chunk async for chunk in source.chunks]) == b"onetwo"
    assert (await client.stat(ID, "/tmp/f")).mode == 0o640


async def test_a_command_ends_with_its_exit_frame(client: HostClient) -> None:
    async with client.exec(ID, host.ExecOrder(argv=["/bin/sh", "-c", "echo a; exit 4"])) as running:
        kinds = [(kind, payload if kind is Kind.STDOUT else b"") async for kind, payload in running]
    assert kinds == [(Kind.STDOUT, b"a\n"), (Kind.EXIT, b"")]


async def test_leaving_a_command_kills_it(fake: FakeHost, client: HostClient) -> None:
    async with client.exec(ID, host.ExecOrder(argv=["hang"])):
        await fake.machines[ID].started.wait()
    assert fake.machines[ID].killed.get_nowait() == ["hang"]


async def test_a_command_whose_machine_dies_is_lost(fake: FakeHost, client: HostClient) -> None:
    async with client.exec(ID, host.ExecOrder(argv=["hang"])) as running:
        await fake.machines[ID].started.wait()
        fake.die(ID, "SIGKILL")
        with pytest.raises(SandboxLost, match="SIGKILL"):
            await anext(running)


def answering(status: int, body: bytes) -> HostClient:
    return HostClient(MemoryTransport(Response(body, status)))


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"items": 3}'])
async def test_an_answer_in_another_form_is_an_unknown_outcome(body: bytes) -> None:
    with pytest.raises(OutcomeUnknown):
        await answering(200, body).incarnations()


@pytest.mark.parametrize("status", [400, 404, 500, 502])
async def test_a_refusal_in_another_form_is_an_unknown_outcome(status: int) -> None:
    with pytest.raises(OutcomeUnknown, match=str(status)):
        await answering(status, b"<html>").incarnations()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        frames.encode(Frame(Kind.STDOUT, b"x")),
        frames.encode(Frame(Kind.EXIT, b"{}"))[:-1],
        b"\x09\x00\x00\x00\x00",
        b"\x01\xff\xff\xff\xff",
    ],
    ids=["nothing", "no exit", "cut", "unknown kind", "too long"],
)
async def test_output_that_breaks_off_or_is_malformed_is_an_unknown_outcome(body: bytes) -> None:
    async with answering(200, body).exec(ID, host.ExecOrder(argv=["x"])) as running:
        with pytest.raises(OutcomeUnknown):
            [frame async for frame in running]


@pytest.mark.parametrize("size", [1, 2, 5, 6, 1000])
async def test_frames_survive_any_cut(size: int) -> None:
    sent = [
        Frame(Kind.STDOUT, bytes(range(256)) * 7),
        Frame(Kind.STDOUT),
        Frame(Kind.STDERR, b"e"),
        Frame(Kind.EXIT, b"{}"),
    ]
    whole = b"".join(map(frames.encode, sent))

    async def cut() -> AsyncIterator[bytes]:
        for start in range(0, len(whole), size):
            yield whole[start : start + size]

    assert [frame async for frame in frames.decode(cut())] == sent
