"""What a sandbox's folder tells of its network.

slot           the slot of its machine, by name: written before the machine starts, removed with it
egress.json    what it may reach; kept while it sleeps

Both appear whole. What cannot be read lets nothing through: the control plane tells it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import structlog
from pydantic import BaseModel, ValidationError

from torpor.kit.files import write_whole
from torpor.model.network import NO_NETWORK, Egress

_log = structlog.get_logger(__name__)
SLOT, EGRESS = "slot", "egress.json"


class _EgressFile(BaseModel):
    format: Literal[1]
    egress: Egress


def write_slot(folder: Path, name: str) -> None:
    """Note a machine's slot; nothing for one that leads nowhere. Raises OSError."""
    if name:
        write_whole(folder / SLOT, f"{name}\n".encode(), durable=False)


def read_slot(folder: Path) -> str:
    """Return what `write_slot` noted; empty if that is nothing, or cannot be read."""
    try:
        return (folder / SLOT).read_text(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        _log.error("the slot of a machine is not known", sandbox=folder.name, error=str(error))
        return ""


def slots_noted(folders: Iterable[Path]) -> set[str]:
    """Return the slots that are noted in folders of sandboxes."""
    return {name for folder in folders if (name := read_slot(folder))}


def write_egress(folder: Path, egress: Egress) -> None:
    """Note what a sandbox may reach. Raises OSError."""
    write_whole(folder / EGRESS, _EgressFile(format=1, egress=egress).model_dump_json().encode(), durable=False)


def read_egress(folder: Path) -> Egress:
    """Return what `write_egress` noted; nothing at all if that cannot be read, or was not noted."""
    try:
        return _EgressFile.model_validate_json((folder / EGRESS).read_bytes()).egress
    except (FileNotFoundError, NotADirectoryError):
        return NO_NETWORK
    except (OSError, ValidationError) as error:
        _log.error("what a sandbox may reach cannot be read, so it is nothing", sandbox=folder.name, error=str(error))
        return NO_NETWORK
