"""Which versions are at work."""

from __future__ import annotations

from torpor.cli import output
from torpor.cli.options import Json
from torpor.kit.installed import installed_version
from torpor.wire.public import API_VERSION


def version(json: Json = False) -> None:
    """Print the version.

    Example: `torpor version`
    """
    own = installed_version("torpor")
    if json:
        output.show_json({"version": own, "api": API_VERSION})
    else:
        output.say(f"torpor {own}")
