"""Machines that are prepared ahead, on a fake VMM: who gets them, and that none is left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from host_rig import BASE, new_rig
from torpor.errors import RestoreFailed
from torpor.host.flow.create import Source, create
from torpor.host.flow.delete import delete
from torpor.model.capacity import NOTHING
from torpor.model.identity import NOBODY
from torpor.model.ids import new_sandbox_id
from torpor.testing.fake_guest import FakeGuest
from torpor.vmm.driver import Place


async def test_the_second_create_takes_the_machine_that_was_prepared_ahead(tmp_path: Path) -> None:
    rig = new_rig(tmp_path, keep_s=60)
    await rig.bake()
    first, second = new_sandbox_id(), new_sandbox_id()
    await create(rig.host, first, Source(template=BASE))
    await rig.host.spares.wait_settled()
    assert len(rig.driver.running) == 2
    rig.driver.failures.append(RestoreFailed("nothing can be loaded now"))
    incarnation = await create(rig.host, second, Source(template=BASE))
    assert incarnation.place.folder == rig.layout.sandboxes / second
    for sandbox in (first, second):
        await delete(rig.host, sandbox)
    await rig.host.spares.aclose()
    assert rig.left == []


async def test_a_spare_that_is_still_being_prepared_is_waited_for_by_one_create(tmp_path: Path) -> None:
    rig = new_rig(tmp_path, keep_s=60)
    await rig.bake()
    ids = [new_sandbox_id() for _ in range(3)]
    await create(rig.host, ids[0], Source(template=BASE))  # a spare is begun
    await asyncio.gather(*(create(rig.host, sandbox, Source(template=BASE)) for sandbox in ids[1:]))
    await rig.host.spares.aclose()
    assert len(rig.driver.running) == 3
    for sandbox in ids:
        await delete(rig.host, sandbox)
    assert rig.left == []


async def test_a_create_cancelled_while_it_waits_for_the_spare_leaves_no_machine(tmp_path: Path) -> None:
    rig = new_rig(tmp_path, keep_s=60)
    await rig.bake()
    rig.guests += [FakeGuest(), FakeGuest(silent=True)]  # whose machine is waited for
    first = new_sandbox_id()
    await create(rig.host, first, Source(template=BASE))
    creating = asyncio.ensure_future(create(rig.host, new_sandbox_id(), Source(template=BASE)))
    async with asyncio.timeout(10):
        while rig.host.spares.needs() != NOTHING:  # noqa: ASYNC110 - it is taken in the background
            await asyncio.sleep(0)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    await delete(rig.host, first)
    assert rig.left == []


async def test_a_spare_was_nobody_and_stood_still_before_it_is_somebody(tmp_path: Path) -> None:
    rig = new_rig(tmp_path, keep_s=60)
    await rig.bake()
    guest = FakeGuest()
    rig.guests += [FakeGuest(), guest]
    first, second = new_sandbox_id(), new_sandbox_id()
    await create(rig.host, first, Source(template=BASE))
    await rig.host.spares.wait_settled()
    assert rig.driver.machines[-1].paused
    await create(rig.host, second, Source(template=BASE))
    assert [identity["sandbox_id"] for identity in guest.identities] == [NOBODY.sandbox_id, second]
    assert len({identity["entropy"] for identity in guest.identities}) == 2
    assert not rig.driver.running[-1].paused
    for sandbox in (first, second):
        await delete(rig.host, sandbox)
    await rig.host.spares.aclose()
    assert rig.left == []


async def test_a_spare_that_is_not_wanted_at_once_runs_a_command_for_practice(tmp_path: Path) -> None:
    rig = new_rig(tmp_path, keep_s=60)
    await rig.bake()
    preparer = rig.preparer
    place = Place("spare-1", rig.layout.sandboxes / "spare-1")
    prepared = await preparer.prepare_ahead(rig.host.templates.open(BASE), place)
    await prepared.practise()
    assert rig.driver.machines[-1].paused
    prepared.settle(Place("after", rig.layout.sandboxes / "after"))
    await prepared.machine.resume()
    await prepared.guest.ping()
    await prepared.aclose()
    assert rig.left == []


async def test_a_spare_whose_guest_does_not_take_a_name_is_not_kept(tmp_path: Path) -> None:
    rig = new_rig(tmp_path, keep_s=60)
    await rig.bake()
    rig.guests += [FakeGuest(), FakeGuest(refuse_adopt="the clock cannot be set")]
    first = new_sandbox_id()
    await create(rig.host, first, Source(template=BASE))
    await rig.host.spares.wait_settled()
    assert len(rig.driver.running) == 1
    await delete(rig.host, first)
    assert rig.left == []


async def test_a_spare_that_died_or_is_of_an_older_bake_is_not_used(tmp_path: Path) -> None:
    rig = new_rig(tmp_path, keep_s=60)
    await rig.bake()
    ids = [new_sandbox_id() for _ in range(3)]
    await create(rig.host, ids[0], Source(template=BASE))
    await rig.host.spares.wait_settled()
    rig.driver.running[-1].die("it crashed")
    assert (await create(rig.host, ids[1], Source(template=BASE))).machine.alive
    await rig.host.spares.wait_settled()
    await rig.bake("newer")
    assert (await create(rig.host, ids[2], Source(template=BASE))).base.template.digest == "newer"
    for sandbox in ids:
        await delete(rig.host, sandbox)
    await rig.host.spares.aclose()
    assert rig.left == []


async def test_a_spare_that_nobody_takes_is_ended(tmp_path: Path) -> None:
    rig = new_rig(tmp_path, keep_s=0.001)
    await rig.bake()
    sandbox = new_sandbox_id()
    await create(rig.host, sandbox, Source(template=BASE))
    await rig.host.spares.wait_settled()
    await rig.driver.machines[-1].wait_gone()
    await delete(rig.host, sandbox)
    await rig.host.spares.aclose()
    assert len(rig.driver.machines) == 3  # the bake's, the sandbox's, the spare
    assert rig.left == []


async def test_removing_a_template_ends_its_spare(tmp_path: Path) -> None:
    rig = new_rig(tmp_path, keep_s=60)
    await rig.bake()
    async with rig.client() as client:
        sandbox = new_sandbox_id()
        await create(rig.host, sandbox, Source(template=BASE))
        assert (await client.delete("/host/v1/templates/base")).status_code == 204
        await delete(rig.host, sandbox)
        assert rig.left == []
