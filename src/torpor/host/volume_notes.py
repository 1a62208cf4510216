"""What is noted of a sandbox's volumes in its folder, and their files there.

volumes.json   its volumes, in the order of their bays; none: it has none
volume0.img    the file of the first one: a second name of the volume's, or a copy of its own
"""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from torpor.errors import Unsupported
from torpor.kit.files import write_whole
from torpor.model.volume import Attachment

VOLUMES = "volumes.json"
_form = TypeAdapter(tuple[Attachment, ...])


def volume_file(folder: Path, bay: int) -> Path:
    """Return the file that a sandbox's machine has in a bay."""
    return folder / f"volume{bay}.img"


def volume_files(folder: Path, attachments: tuple[Attachment, ...]) -> list[Path]:
    """Return the files of all of a sandbox's volumes."""
    return [volume_file(folder, bay) for bay in range(len(attachments))]


def write_volumes(folder: Path, attachments: tuple[Attachment, ...]) -> None:
    """Note a sandbox's volumes. Raises OSError."""
    if attachments or (folder / VOLUMES).exists():
        write_whole(folder / VOLUMES, _form.dump_json(attachments))


def read_volumes(folder: Path) -> tuple[Attachment, ...]:
    """Return what `write_volumes` noted. Raises Unsupported for what is no such note, OSError."""
    try:
        return _form.validate_json((folder / VOLUMES).read_bytes())
    except FileNotFoundError:
        return ()
    except ValidationError as error:
        raise Unsupported(f"{folder / VOLUMES} does not say which volumes a sandbox has") from error
