"""Records as clients see them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from torpor.control.service.reach import spoken
from torpor.control.service.usage import Live, SandboxSpent, Spent
from torpor.control.store.contract import Event, SnapshotRecord
from torpor.model.ids import is_context_id
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.model.usage import Prices
from torpor.model.volume import Attachment
from torpor.wire import host
from torpor.wire.events import EventView
from torpor.wire.processes import ProcessView, TerminalSize
from torpor.wire.public import Forked, Lifecycle, SandboxView, SnapshotView
from torpor.wire.reach import DeniedView, NetworkView
from torpor.wire.usage import LiveView, PriceList, SandboxUsage, UsageView
from torpor.wire.volumes import AttachedView


def lifecycle_view(sandbox: Sandbox) -> Lifecycle:
    """Return how long a sandbox lives, as clients see it."""
    return Lifecycle(
        ttl_seconds=sandbox.ttl_seconds,
        persistent=sandbox.expires_at is None,
        idle_seconds=sandbox.care.idle_timeout_seconds,
        expires_at=sandbox.expires_at,
    )


def view(sandbox: Sandbox) -> SandboxView:
    """Return a sandbox as clients see it."""
    return SandboxView(
        id=sandbox.id,
        name=sandbox.name,
        template=sandbox.template,
        status=sandbox.state.value,
        cpu=sandbox.cpu,
        memory_mb=sandbox.memory_mb,
        disk_gb=sandbox.disk_gb,
        network=spoken(sandbox.network),
        guest_ip=sandbox.guest_ip,
        secret_names=list(sandbox.secret_names),
        created_at=sandbox.created_at,
        expires_at=sandbox.expires_at,
        ttl_seconds=sandbox.ttl_seconds,
        persistent=sandbox.expires_at is None,
        metadata=dict(sandbox.metadata),
        from_snapshot=sandbox.from_snapshot,
        parent_id=sandbox.parent,
        last_snapshot_id=sandbox.last_snapshot,
        boot_ms=sandbox.boot_ms,
        reason=sandbox.reason,
        idle_timeout_seconds=sandbox.care.idle_timeout_seconds,
        on_idle=sandbox.care.on_idle.value,
        on_crash=sandbox.care.on_crash.value,
        checkpoint_every_seconds=sandbox.care.checkpoint_every_seconds,
        checkpoint_every_execs=sandbox.care.checkpoint_every_execs,
        checkpoint_keep=sandbox.care.checkpoint_keep,
        volumes=[attached_view(each) for each in sandbox.volumes],
    )


def attached_view(attachment: Attachment) -> AttachedView:
    """Return a sandbox's volume as clients see it."""
    name, path = attachment.name, attachment.path
    return AttachedView(name=name, path=path, read_only=attachment.read_only, is_copy=attachment.is_copy)


def snapshot_view(record: SnapshotRecord) -> SnapshotView:
    """Return a snapshot as clients see it."""
    return SnapshotView(
        id=record.id,
        sandbox_id=record.sandbox,
        kind=record.kind.value,
        name=record.name,
        template=record.template,
        created_at=record.created_at,
        cpu=record.cpu,
        memory_mb=record.memory_mb,
        disk_gb=record.disk_gb,
        size_bytes=record.size_bytes,
        parent_id=record.parent,
        pause_ms=record.cost.pause_ms,
        took_ms=record.cost.took_ms,
        dirty_bytes=record.cost.dirty_bytes,
        written_bytes=record.cost.written_bytes,
        network=spoken(record.network),
        secret_names=list(record.secret_names),
    )


def network_view(sandbox: Sandbox, state: host.NetworkState) -> NetworkView:
    """Return what a sandbox may reach, and could not, as clients see it."""
    denied = [DeniedView(**one.model_dump()) for one in state.denied]
    # One that sleeps has no address on its host now, and will have the one it had.
    address = sandbox.guest_ip if sandbox.state is State.HIBERNATED else state.guest_ip
    return NetworkView(network=spoken(sandbox.network), guest_ip=address, denied=denied)


def process_view(sandbox_id: str, job: host.Job) -> ProcessView:
    """Return a command as clients see it."""
    outcome = job.outcome
    return ProcessView(
        id=job.id,
        sandbox_id=sandbox_id,
        command="python3 (a code context)" if is_context_id(job.id) else job.command,
        kind="repl" if is_context_id(job.id) else "exec" if job.waited_for else "process",
        state="running" if outcome is None else "ended",
        user=job.user,
        pid=job.pid,
        started_at=datetime.fromtimestamp(job.started_at, UTC),
        stdout_bytes=job.stdout_bytes,
        stderr_bytes=job.stderr_bytes,
        stdout_start=job.stdout_start,
        stderr_start=job.stderr_start,
        terminal=None if job.terminal is None else TerminalSize(rows=job.terminal.rows, cols=job.terminal.cols),
        exit_code=None if outcome is None else outcome.exit_code,
        signal=None if outcome is None else outcome.signal,
        oom_killed=None if outcome is None else outcome.oom_killed,
        timed_out=None if outcome is None else outcome.timed_out,
        duration_ms=None if outcome is None else outcome.duration_ms,
    )


def forked_view(parent_id: str, children: list[Sandbox]) -> Forked:
    """Return the children of one fork as clients see them."""
    first = children[0]
    return Forked(
        sandbox=view(first),
        children=[view(child) for child in children],
        parent_id=parent_id,
        snapshot_id=first.from_snapshot,
        at=first.created_at,
    )


def event_view(event: Event) -> EventView:
    """Return an event as clients see it."""
    return EventView(
        cursor=str(event.number), at=event.at, type=event.type, sandbox_id=event.sandbox, data=dict(event.data)
    )


def usage_view(spent: Spent) -> UsageView:
    """Return what was used as clients see it."""
    return UsageView(**_figures(spent))


def sandbox_usage_view(one: SandboxSpent) -> SandboxUsage:
    """Return what one sandbox used as clients see it."""
    sandbox = one.account.sandbox
    return SandboxUsage(
        sandbox_id=sandbox.id,
        name=sandbox.name,
        template=sandbox.template,
        cpu=sandbox.cpu,
        memory_mb=sandbox.memory_mb,
        created_at=sandbox.created_at,
        deleted_at=one.account.deleted_at,
        metadata=dict(sandbox.metadata),
        **_figures(one.spent),
    )


def _figures(spent: Spent) -> dict[str, Any]:
    usage = spent.usage
    shares = {"active_share": usage.active_share, "saved_share": usage.saved_share}
    return {"since": spent.since, "until": spent.until, **asdict(usage), **shares}


def price_list(prices: Prices) -> PriceList:
    """Return the prices as clients see them."""
    return PriceList(vcpu_second=prices.vcpu_second, gib_second=prices.gib_second)


def live_view(one: Live) -> LiveView:
    """Return how a sandbox stands as clients see it."""
    sandbox, usage = one.sandbox, one.usage
    return LiveView(
        sandbox_id=sandbox.id,
        name=sandbox.name,
        template=sandbox.template,
        status=sandbox.state.value,
        cpu=sandbox.cpu,
        memory_mb=sandbox.memory_mb,
        cpu_seconds=usage.cpu_seconds,
        resident_bytes=usage.resident_bytes,
        disk_bytes=usage.disk_bytes,
        in_flight=one.in_flight,
        created_at=sandbox.created_at,
        expires_at=sandbox.expires_at,
    )
