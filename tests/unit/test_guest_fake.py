"""A fake guest's memory: saved, and taken up by another one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from guest_agent import get, put, run, sh
from torpor import errors
from torpor.guest.client import Guest, connect
from torpor.kit.shielded import wait_ended
from torpor.model.identity import Identity
from torpor.model.ids import new_sandbox_id
from torpor.testing.fake_guest import FakeGuest
from torpor.wire.frames import Kind
from torpor.wire.host import ExecOrder


class Machine:
    """What a fake machine does with its guest: serve it on one line, and end."""

    def __init__(self, fake: FakeGuest) -> None:
        self.fake = fake
        self.sock, theirs = socket.socketpair()
        self._serving = asyncio.create_task(fake.serve(theirs))

    async def end(self) -> bytes:
        """End it, and return the memory of its guest."""
        memory = self.fake.save()
        self._serving.cancel()
        await wait_ended(self._serving)
        return memory


def woken(memory: bytes) -> Machine:
    fake = FakeGuest()
    fake.load(memory)
    return Machine(fake)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Machine, Guest]]:
    machine = Machine(FakeGuest())
    async with await connect(machine.sock, timeout_s=10) as guest:
        yield machine, guest
    await machine.end()


async def _hibernate_and_wake(machine: Machine, guest: Guest) -> Machine:
    await guest.quiesce(timeout_s=10, leaving=True)
    memory = await machine.end()
    await guest.wait_suspended()
    another = woken(memory)
    await guest.continue_on(another.sock)
    await guest.adopt(Identity(new_sandbox_id()), thaw=False, event="wake")
    await guest.thaw()
    guest.release()
    return another


async def test_what_is_in_memory_goes_on_in_another_guest_and_its_copies_part_ways() -> None:
    async with connected() as (machine, guest):
        await guest.adopt(Identity(new_sandbox_id()), env={"A": "1"})
        await put(guest, "/work/deep/file", b"\0one", mode=0o640)
        assert (await run(guest, "count", "n")).stdout == b"1\n"
        await guest.quiesce(timeout_s=10)
        memory = machine.fake.save()
        assert b"\0" not in memory
    for turn in range(2):
        copy = woken(memory)
        async with await connect(copy.sock, timeout_s=10) as fork:
            identity = Identity(new_sandbox_id())
            await fork.adopt(identity, thaw=False)
            await fork.thaw()
            assert (await run(fork, "count", "n")).stdout == b"2\n"
            assert await get(fork, "/work/deep/file") == b"\0one"
            assert (await fork.stat("/work/deep/file")).mode == 0o640
            assert (await sh(fork, "echo $A $TORPOR_SANDBOX_ID")).stdout.decode() == f"1 {identity.sandbox_id}\n"
            await put(fork, "/work/deep/file", b"%d" % turn)
        await copy.end()


async def test_a_command_under_way_goes_on_and_says_nothing_twice() -> None:
    async with connected() as (machine, guest):
        order = ExecOrder(argv=["/bin/sh", "-c", "echo one; sleep 0.05; blob 600000; echo two; exit 3"])
        async with guest.exec(order) as frames:
            received = (await anext(frames)).payload
            there = machine
            for _ in range(4):
                there = await _hibernate_and_wake(there, guest)
            async for frame in frames:
                if frame.kind is Kind.EXIT:
                    assert b'"exit_code":3' in frame.payload
                else:
                    received += frame.payload
        assert received == b"one\n" + b"a" * 600_000 + b"two\n"
        await there.end()


async def test_an_upload_under_way_is_whole_and_happens_once() -> None:
    async with connected() as (machine, guest):
        sent, goes_on = asyncio.Event(), asyncio.Event()

        async def chunks() -> AsyncIterator[bytes]:
            yield b"x" * 300_000
            sent.set()
            await goes_on.wait()
            yield b"y" * 300_000

        upload = asyncio.create_task(guest.write("/work/file", chunks(), append=True))
        await sent.wait()
        there = await _hibernate_and_wake(machine, guest)
        goes_on.set()
        assert await upload == 600_000
        assert await get(guest, "/work/file") == b"x" * 300_000 + b"y" * 300_000
        await there.end()


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"format": "another"}', b"\xff"])
def test_what_is_no_memory_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"memory|Expecting|decode"):
        FakeGuest().load(data)


async def test_it_refuses_what_it_is_told_to_refuse() -> None:
    async with connected() as (machine, guest):
        machine.fake.refuse_quiesce = "a fork bomb"
        with pytest.raises(errors.Failed, match="a fork bomb"):
            await guest.quiesce(timeout_s=10)
        assert not machine.fake.frozen
        machine.fake.refuse_quiesce = None
        machine.fake.silent_quiesce = True
        asking = asyncio.create_task(guest.quiesce(timeout_s=1000))
        while not machine.fake.frozen and not asking.done():
            machine.fake.freeze()
            await asyncio.sleep(0)
        machine.fake.refuse_thaw = "the clock cannot be set"
        with pytest.raises(errors.Failed, match="the clock cannot be set"):
            await guest.thaw()
        assert machine.fake.frozen
        machine.fake.refuse_thaw = None
        await guest.thaw()
        assert not machine.fake.frozen
        asking.cancel()
        await asyncio.wait([asking])
        guest.release()
        machine.fake.silent_quiesce = False
        machine.fake.hooks, machine.fake.failing_hooks = 2, ["10-x"]
        await guest.quiesce(timeout_s=10, hooks=True)
        assert await guest.adopt(Identity(new_sandbox_id()), event="wake") == 2
        assert await guest.run_hooks("wake") == ["10-x"]
        assert machine.fake.hooks_run == ["freeze", "wake"]
