"""Which versions are at work."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

from torpor.cli import output
from torpor.cli.options import Json
from torpor.wire.public import API_VERSION


def version(json: Json = False) -> None:
    """Print the version.

    Example: `torpor version`
    """
    if json:
        output.show_json({"version": own_version(), "api": API_VERSION})
        return
    output.say(f"torpor {own_version()}")


def own_version() -> str:
    """Return this package's version, or `unknown` where it runs without being installed."""
    try:
        return version_of("torpor")
    except PackageNotFoundError:
        return "unknown"
