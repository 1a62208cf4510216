"""A real server on real guests: one for the whole run, and sandboxes on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from running_server import RunningServer, home_sharing_templates, serving
from torpor import Client, Sandbox


@pytest.fixture(scope="session")
def server(template_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The server that the tests of this run share."""
    with serving(home_sharing_templates(template_home, tmp_path_factory.mktemp("server") / "home")) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: RunningServer) -> Iterator[Client]:
    """A client of the shared server."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def sandbox(client: Client) -> Iterator[Sandbox]:
    """A sandbox that the tests of one file share: they leave it as they found it."""
    with Sandbox.create(client=client, ttl_seconds=1800) as sandbox:
        yield sandbox


@pytest.fixture
def fresh_sandbox(client: Client) -> Iterator[Sandbox]:
    """A sandbox of the test's own."""
    with Sandbox.create(client=client, ttl_seconds=1800) as sandbox:
        yield sandbox
