"""What a user of the SDK hears from a server without room, and from one whose quota is used up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torpor import Client, Retry, Sandbox
from torpor.errors import NoCapacity
from torpor.model.capacity import Limits
from torpor.testing.host import FakeHost
from torpor.testing.server import running_server
from torpor.wire.errors import NO_CAPACITY_RETRY_AFTER_S


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def client(host: FakeHost, tmp_path: Path) -> Iterator[Client]:
    with (
        running_server(tmp_path / "home", host) as (url, key),
        Client(url, key, retry=Retry(patience_s=1)) as client,
    ):
        yield client


def test_a_full_host_is_a_typed_error_with_figures_after_the_usual_patience(client: Client, host: FakeHost) -> None:
    with Sandbox.create(client=client) as sandbox:
        host.room.limits = Limits(machines=1)
        for refused in (lambda: Sandbox.create(client=client), lambda: sandbox.fork(2)):
            with pytest.raises(NoCapacity, match="1 of 1 machines are there") as caught:
                refused()
            error = caught.value
            assert (error.resource, error.used, error.limit) == ("machines", 1, 1)
            assert error.hint
            assert error.retry_after_s == NO_CAPACITY_RETRY_AFTER_S
        assert [one.id for one in Sandbox.list(client=client)] == [sandbox.id]


def test_who_is_patient_gets_the_room_that_comes_free(client: Client, host: FakeHost, tmp_path: Path) -> None:
    host.fail("restore", NoCapacity("full"))
    key = (tmp_path / "home" / "key").read_text().strip()
    began = time.monotonic()
    with Client(client.api, key, retry=Retry(patience_s=60)) as patient, Sandbox.create(client=patient):
        assert time.monotonic() - began >= NO_CAPACITY_RETRY_AFTER_S


def test_what_is_limited_and_used_can_be_asked_for(client: Client, host: FakeHost) -> None:
    host.room.limits = Limits(machines=5)
    with Sandbox.create(client=client):
        assert client.quota().sandboxes.used == 1
        assert client.capacity().machines.model_dump() == {"limit": 5, "used": 1}
    assert client.quota().sandboxes.used == 0
