"""What is installed."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def installed_version(distribution: str) -> str:
    """Return an installed distribution's version; "unknown" where its sources run without being installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
