"""The host's verbs on a fake VMM: each step of them failing in turn, and nothing left."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from host_rig import BASE, HostRig, new_rig
from stand_in import SANDBOX, StandIn, machine_in
from torpor.errors import (
    BootFailed,
    Busy,
    Conflict,
    NotFound,
    OutcomeUnknown,
    RestoreFailed,
    SandboxLost,
    SnapshotCorrupt,
    TorporError,
    Unsupported,
)
from torpor.host.config import HostConfig
from torpor.host.flow.ask import guest_of
from torpor.host.flow.create import Source, create
from torpor.host.flow.delete import delete
from torpor.host.lock import locked
from torpor.host.main import host_agent
from torpor.host.recover import recover
from torpor.kit.files import DRAFT_PREFIX
from torpor.model.ids import TemplateName, new_sandbox_id
from torpor.network.config import NetworkConfig
from torpor.storage.frozen import DISK, STATE
from torpor.storage.layout import Layout
from torpor.storage.snapshots import Snapshots
from torpor.testing.fake_guest import FakeGuest
from torpor.vmm.qemu.survivors import QemuSurvivors


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[HostRig]:
    rig = new_rig(tmp_path)
    await rig.bake()
    yield rig
    for incarnation in rig.host.live.all():
        await delete(rig.host, incarnation.id)
    assert rig.left == []


async def test_a_created_sandbox_has_its_own_identity_and_answers(rig: HostRig) -> None:
    guest = FakeGuest()
    rig.guests.append(guest)
    sandbox = new_sandbox_id()
    incarnation = await create(rig.host, sandbox, Source(template=BASE, env={"A": "1"}))
    assert [identity["hostname"] for identity in guest.identities] == [sandbox]
    assert rig.host.live.get(sandbox) is incarnation
    async with guest_of(rig.host, sandbox) as asked:
        await asked.ping()


async def test_a_deleted_sandbox_leaves_nothing_and_deleting_again_is_success(rig: HostRig) -> None:
    sandbox = new_sandbox_id()
    await create(rig.host, sandbox, Source(template=BASE))
    await delete(rig.host, sandbox)
    assert rig.left == []
    await delete(rig.host, sandbox)
    with pytest.raises(NotFound):
        rig.host.live.get(sandbox)


async def test_many_sandboxes_are_made_and_ended_at_once(rig: HostRig) -> None:
    ids = [new_sandbox_id() for _ in range(20)]
    await asyncio.gather(*(create(rig.host, sandbox, Source(template=BASE)) for sandbox in ids))
    assert {each.id for each in rig.host.live.all()} == set(ids)
    await asyncio.gather(*(delete(rig.host, sandbox) for sandbox in ids))
    assert rig.left == []


async def test_an_id_lives_once(rig: HostRig) -> None:
    sandbox = new_sandbox_id()
    await create(rig.host, sandbox, Source(template=BASE))
    with pytest.raises(Conflict, match="already on this host"):
        await create(rig.host, sandbox, Source(template=BASE))
    assert rig.host.live.get(sandbox).machine.alive


def lose_disk(rig: HostRig) -> None:
    (rig.host.templates.path(BASE) / DISK).unlink()


def replace_disk(rig: HostRig) -> None:
    lose_disk(rig)
    (rig.host.templates.path(BASE) / DISK).mkdir()


def damage_state(rig: HostRig) -> None:
    state = rig.host.templates.path(BASE) / STATE
    state.chmod(0o600)
    state.write_text("damaged")


def fail_load(rig: HostRig) -> None:
    rig.driver.failures.append(RestoreFailed("the machine did not start"))


def other_accelerator(rig: HostRig) -> None:
    rig.driver.fingerprint = dataclasses.replace(rig.driver.fingerprint, accelerator="kvm")


def no_answer(rig: HostRig) -> None:
    rig.connect_s = 2
    rig.guests.append(FakeGuest(silent=True))


def garbage(rig: HostRig) -> None:
    rig.guests.append(FakeGuest(garbage=b"\xff" * 4096))


def no_adoption(rig: HostRig) -> None:
    rig.guests.append(FakeGuest(refuse_adopt="the clock cannot be set"))


@pytest.mark.parametrize(
    ("breaks", "error"),
    [
        (lose_disk, SnapshotCorrupt),
        (replace_disk, SnapshotCorrupt),
        (damage_state, SnapshotCorrupt),
        (fail_load, RestoreFailed),
        (other_accelerator, Unsupported),
        (no_answer, RestoreFailed),
        (garbage, RestoreFailed),
        (no_adoption, RestoreFailed),
    ],
)
async def test_whichever_step_of_a_restore_fails_nothing_is_left(
    rig: HostRig, breaks: Callable[[HostRig], None], error: type[TorporError]
) -> None:
    breaks(rig)
    with pytest.raises(error):
        await create(rig.host, new_sandbox_id(), Source(template=BASE))
    assert rig.left == []


@pytest.mark.parametrize("turns", range(0, 60, 3))
async def test_a_create_cancelled_at_any_point_leaves_nothing_or_a_whole_sandbox(rig: HostRig, turns: int) -> None:
    sandbox = new_sandbox_id()
    creating = asyncio.ensure_future(create(rig.host, sandbox, Source(template=BASE)))
    for _ in range(turns):
        await asyncio.sleep(0)
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)
    if creating.cancelled():
        assert rig.left == []
    else:
        assert rig.host.live.get(sandbox).machine.alive


async def test_an_unknown_template_makes_nothing(rig: HostRig) -> None:
    with pytest.raises(NotFound, match="no template 'other'"):
        await create(rig.host, new_sandbox_id(), Source(template=TemplateName("other")))
    assert rig.left == []


async def test_a_dead_machine_is_a_lost_sandbox_and_can_be_deleted(rig: HostRig) -> None:
    sandbox = new_sandbox_id()
    await create(rig.host, sandbox, Source(template=BASE))
    rig.driver.running[0].die("it crashed")
    with pytest.raises(SandboxLost):
        rig.host.live.get(sandbox)
    await delete(rig.host, sandbox)
    assert rig.left == []


async def test_a_machine_that_dies_while_it_is_asked_is_a_lost_sandbox(rig: HostRig) -> None:
    sandbox = new_sandbox_id()
    await create(rig.host, sandbox, Source(template=BASE))

    async def ask() -> None:
        async with guest_of(rig.host, sandbox) as guest:
            rig.driver.running[0].die("it crashed")
            await guest.ping()

    with pytest.raises(SandboxLost):
        await ask()


async def test_a_line_that_breaks_before_the_machine_is_heard_to_have_ended_is_a_lost_sandbox(rig: HostRig) -> None:
    sandbox = new_sandbox_id()
    await create(rig.host, sandbox, Source(template=BASE))

    async def ask() -> None:
        async with guest_of(rig.host, sandbox) as guest:
            await guest.aclose()
            asyncio.get_running_loop().call_soon(rig.driver.running[0].die, "it crashed")
            raise OutcomeUnknown("the line broke off")

    with pytest.raises(SandboxLost, match="it crashed"):
        await ask()


async def test_a_line_that_broke_off_is_made_anew_while_the_machine_lives(rig: HostRig) -> None:
    sandbox = new_sandbox_id()
    incarnation = await create(rig.host, sandbox, Source(template=BASE))
    await incarnation.guest.aclose()
    async with guest_of(rig.host, sandbox) as guest:
        await guest.ping()
    await delete(rig.host, sandbox)
    assert rig.left == []


async def test_a_guest_that_does_not_come_up_is_booted_once_more(tmp_path: Path) -> None:
    rig = new_rig(tmp_path)
    rig.driver.failures.append(BootFailed("it hangs"))
    template = await rig.bake()
    assert rig.host.templates.get(BASE) == template


async def test_a_failed_bake_leaves_the_older_template_and_no_draft(rig: HostRig) -> None:
    rig.driver.failures += [BootFailed("it hangs"), BootFailed("it hangs again")]
    with pytest.raises(BootFailed, match="it hangs again"):
        await rig.bake("newer")
    assert rig.host.templates.get(BASE).digest == "digest"
    assert [entry.name for entry in rig.layout.templates.iterdir()] == [BASE]
    assert rig.left == []


async def test_a_new_bake_replaces_the_template_and_living_sandboxes_run_on(rig: HostRig) -> None:
    sandbox = new_sandbox_id()
    await create(rig.host, sandbox, Source(template=BASE))
    await rig.bake("newer")
    assert rig.host.templates.get(BASE).digest == "newer"
    async with guest_of(rig.host, sandbox) as guest:
        await guest.ping()


async def test_recovery_ends_the_machines_of_its_own_data_directory_only(tmp_path: Path) -> None:
    mine, other = Layout(tmp_path / "mine"), Layout(tmp_path / "other")
    mine.make()
    other.make()
    (mine.sandboxes / SANDBOX).mkdir()
    with ExitStack() as undo:
        lost, theirs = machine_in(mine, SANDBOX), machine_in(other, SANDBOX)
        reader = StandIn(tmp_path, f"{mine.sandboxes}/{SANDBOX}/disk.qcow2", name="less")
        for process in (lost, theirs, reader):
            undo.callback(process.end)
        survivors = QemuSurvivors()
        assert [process.pid for process in survivors.below(mine.sandboxes)] == [lost.process.pid]
        await recover(mine, Snapshots(mine), survivors)
        assert lost.process.wait(10) < 0
        assert theirs.lives
        assert reader.lives
        assert list(mine.sandboxes.iterdir()) == []


async def test_recovery_removes_drafts_but_not_those_of_a_bake_under_way(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "home")
    layout.make()
    draft = layout.images / f"{DRAFT_PREFIX}root-1"
    draft.mkdir()
    with locked(layout.bake_lock, what="the folder of templates"):
        await recover(layout, Snapshots(layout), QemuSurvivors())
        assert draft.exists()
    await recover(layout, Snapshots(layout), QemuSurvivors())
    assert not draft.exists()


async def test_a_data_directory_has_one_server(tmp_path: Path) -> None:
    config = HostConfig(tmp_path / "home", network=NetworkConfig(use="off"))
    async with host_agent(config):
        with pytest.raises(Busy, match="in use by process"):
            async with host_agent(config):
                pass
    async with host_agent(config):
        pass
