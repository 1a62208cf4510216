"""The command line. One file per noun; `output` is the only one that prints."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line on this process's arguments, and exit with the code it ends with."""
    try:
        import rich  # noqa: F401, PLC0415
        import typer  # noqa: F401, PLC0415
    except ImportError as error:
        sys.stderr.write(
            f"error: the command line needs {error.name}, which is not installed. pip install 'torpor[cli]'\n"
        )
        sys.exit(1)
    from torpor.cli.app import run  # noqa: PLC0415

    sys.exit(run(sys.argv[1:]))
