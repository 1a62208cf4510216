"""Other people's programs that make images and disks, with what goes wrong in them said as Torpor's errors."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from torpor.errors import Failed, Unsupported
from torpor.kit.proc import ProgramFailed, ProgramMissing, run


def require(program: str, package: str) -> None:
    """Raise Unsupported, with the Debian `package` to install, unless a program is installed."""
    if shutil.which(program) is None:
        raise Unsupported(f"the program {program} is not installed", hint=f"install the package {package}")


async def use(
    argv: Sequence[str],
    package: str,
    failure: str,
    *,
    hint: str | None = None,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a program to its end and return what it wrote; `log` also gets it, appended.

    Raises Unsupported with the Debian `package` to install where the program is missing, and Failed where it fails:
    `failure` with the program's last words, and `hint`.
    """
    try:
        return await run(argv, log=log, env=env)
    except ProgramMissing as error:
        raise Unsupported(str(error), hint=f"install the package {package}") from error
    except ProgramFailed as error:
        last_words = (error.output.strip().splitlines() or [str(error)])[-1]
        raise Failed(f"{failure}: {last_words}", hint=hint) from error
