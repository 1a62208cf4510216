"""Set this machine up for Torpor: `--runtime` for running it, `--dev` for working on it. Called by tools/setup.

Each step looks at what is there before it does anything, so a second run takes well under a second.
Standard library only: nothing is installed yet when this runs.
"""

from __future__ import annotations

import argparse
import sys
import time

import packages
import virtualenv
from running import SetupFailed, say


def main() -> int:
    """Do what is missing; return the exit status."""
    parser = argparse.ArgumentParser(prog="tools/setup", description=__doc__)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument(
        "--runtime", dest="extra", action="store_const", const="server", help="what running Torpor needs"
    )
    wanted.add_argument(
        "--dev", dest="extra", action="store_const", const="dev", help="that, and the development tools"
    )
    extra = parser.parse_args().extra
    began = time.monotonic()
    try:
        changed = packages.ensure()
        changed |= virtualenv.ensure(extra)
    except SetupFailed as failed:
        print(f"setup: {failed}", file=sys.stderr)
        return 1
    if changed:
        say(f"done in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
