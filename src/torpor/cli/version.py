"""Which versions are at work."""

from __future__ import annotations

from torpor.cli import output
from torpor.cli.options import Json
from torpor.kit.installed import installed_version


def version(json: Json = False) -> None:
    """Print the version.

    Examples:

    * `torpor version`
    """
    from torpor.wire.public import API_VERSION  # noqa: PLC0415

    own = installed_version("torpor")
    if json:
        output.show_json({"version": own, "api": API_VERSION})
    else:
        output.say(f"torpor {own}")
