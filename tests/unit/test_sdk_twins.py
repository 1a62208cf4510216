"""The synchronous SDK is what the generator makes of the asynchronous one, and the package's front door is whole."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import make_sync
import torpor
from torpor import AsyncClient, AsyncSandbox, AsyncSnapshot, Client, Sandbox, Snapshot
from torpor.sdk._async.filesystem import AsyncFilesystem
from torpor.sdk._sync.filesystem import Filesystem


def test_the_twins_have_not_drifted_apart() -> None:
    assert make_sync.differing(make_sync.made()) == []


@pytest.mark.parametrize(
    ("later", "now"), [(AsyncSandbox, Sandbox), (AsyncSnapshot, Snapshot), (AsyncFilesystem, Filesystem)]
)
def test_every_call_exists_on_both_with_the_same_parameters(later: type, now: type) -> None:
    names = {name for name in dir(now) if not name.startswith("_")}
    assert names == {name for name in dir(later) if not name.startswith("_")}
    for name in names:
        if callable(getattr(now, name)):
            parameters = inspect.signature(getattr(now, name)).parameters
            assert list(parameters) == list(inspect.signature(getattr(later, name)).parameters)


def test_clients_differ_in_how_they_are_closed_only() -> None:
    names = {name for name in dir(Client) if not name.startswith("_")}
    assert names - {"close"} == {name for name in dir(AsyncClient) if not name.startswith("_")} - {"aclose"}


def test_the_synchronous_twin_waits_for_nothing() -> None:
    for name, text in make_sync.made().items():
        assert "await " not in text, name
        assert "async " not in text, name


def test_every_public_name_is_there_and_no_other_is() -> None:
    assert [name for name in torpor.__all__ if not hasattr(torpor, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = torpor.Nonsense


def test_the_package_loads_without_the_http_client() -> None:
    seen = "import sys, torpor.errors; sys.exit('httpx2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", seen], check=False).returncode == 0
