"""Volumes in sandboxes: how their files come into a sandbox's folder, and become the volumes again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from torpor.errors import RestoreFailed
from torpor.host.prepared import Prepared
from torpor.host.trouble import translated
from torpor.host.volume_notes import volume_file
from torpor.kit.faultpoints import reached
from torpor.model.volume import Attachment
from torpor.storage.named_volumes import NamedVolumes


async def attach_all(volumes: NamedVolumes, prepared: Prepared, attachments: tuple[Attachment, ...]) -> None:
    """Put volumes into the bays of a machine that has run and has none: the file of each, or a copy of one that is only
    read, so that what many have at once is nobody's to change.

    Raises NotFound for one whose file is not there, RestoreFailed, SandboxLost.
    """
    with translated(RestoreFailed, "the volumes could not be attached"):
        for bay, each in enumerate(attachments):
            file = volume_file(prepared.place.folder, bay)
            await asyncio.to_thread(volumes.link if each.writes else volumes.copy, each.volume, file)
            reached("volume.linked")
            await prepared.machine.attach(bay, file)


def take_back(volumes: NamedVolumes, folder: Path, attachments: tuple[Attachment, ...]) -> None:
    """Let what a sandbox has in its folder be the volumes that it writes to: all of them, or none.

    Nothing happens where it is. Raises OSError.
    """
    files = {each.volume: volume_file(folder, bay) for bay, each in enumerate(attachments) if each.writes}
    if files:
        reached("volume.placed")
        volumes.put(files)
