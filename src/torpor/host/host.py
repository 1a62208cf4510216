"""The host's collaborators, in one frozen record that every verb is given."""

from __future__ import annotations

from dataclasses import dataclass

from torpor.host.admission import Admission
from torpor.host.live import ConnectGuest, Live
from torpor.host.prepared import Preparer
from torpor.host.spares import Spares
from torpor.storage.layout import Layout
from torpor.storage.named_volumes import NamedVolumes
from torpor.storage.snapshots import Snapshots
from torpor.storage.templates import Templates


@dataclass(frozen=True, slots=True)
class Host:
    """What the verbs work with. Chosen in `host/main.py` and nowhere else."""

    layout: Layout
    templates: Templates
    snapshots: Snapshots
    preparer: Preparer
    spares: Spares
    connect_guest: ConnectGuest
    live: Live
    admission: Admission
    volumes: NamedVolumes
