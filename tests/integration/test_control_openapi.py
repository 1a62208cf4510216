"""The API answers as its description says, whatever it is asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    response_schema_conformance,
    status_code_conformance,
)

from control_rig import KEY
from torpor.control.access import AccessConfig
from torpor.control.api.app import create_app
from torpor.control.hosts import HostClient
from torpor.control.service.plane import DEFAULT_WORKSPACE, plane_of
from torpor.control.service.shelf import record_of
from torpor.kit.clock import SystemClock
from torpor.model.ids import SandboxId, SnapshotId, TemplateName
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.testing.host import FakeHost
from torpor.testing.store import MemoryStore
from torpor.wire.host import Freeze

ID = SandboxId("sbx-1111111111111111")
SNAPSHOT = SnapshotId("snp-1111111111111111")
HOST = FakeHost()
STORE = MemoryStore()
CLOCK = SystemClock()
# Schemathesis calls the server so, and asks more often than anybody should.
ACCESS = AccessConfig(rate_per_second=0, failures_per_minute=0, hosts=frozenset({"testserver"}))
APP = create_app(plane_of(STORE, HostClient(HOST.transport()), CLOCK), KEY, ACCESS)
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)
EXAMPLES = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    ignored_auth,
]
# Commands that are strings run in the fake's shell, which has a command that never ends.
BOUND_S = 1


def one_runs() -> None:
    """Make sure that the sandbox ID runs and has a snapshot, whatever the last example did to it."""
    sandbox = Sandbox(
        id=ID,
        workspace=DEFAULT_WORKSPACE,
        template=TemplateName("base"),
        state=State.RUNNING,
        created_at=CLOCK.now(),
        cpu=1,
        memory_mb=512,
        disk_gb=8,
    )
    asyncio.run(STORE.add(sandbox))
    HOST.begin(ID)
    HOST.snapshots.pop(SNAPSHOT, None)
    frozen = HOST.freeze(ID, Freeze(id=SNAPSHOT, kind="checkpoint"))
    asyncio.run(STORE.add_snapshot(record_of(frozen, sandbox)))


@SCHEMA.parametrize()
@EXAMPLES
@pytest.mark.parametrize("known", [True, False])
def test_every_answer_is_one_that_is_described(case: schemathesis.Case[Any], known: bool) -> None:
    one_runs()
    if known and case.path_parameters and "id" in case.path_parameters:
        case.path_parameters["id"] = SNAPSHOT if case.path.startswith("/v1/snapshots") else ID
    body: Any = case.body
    if case.path.endswith(("/exec", "/exec/stream")) and isinstance(body, dict) and "cmd" in body:
        body["timeout_seconds"] = BOUND_S
    if case.path.endswith(("/events", "/logs")) and case.query:
        case.query.pop("follow", None)  # it would not end
    headers = {"Authorization": f"Bearer {KEY}"} if case.path.startswith("/v1/") else {}
    case.call_and_validate(headers=headers, checks=CHECKS)
    for job in HOST.machines[ID].jobs.values() if ID in HOST.machines else ():
        if job.interpreter is not None:
            job.interpreter.kill()
