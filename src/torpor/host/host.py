"""The host's collaborators, in one frozen record that every verb is given."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from torpor.guest.client import Guest
from torpor.host.live import Live
from torpor.host.spares import Spares
from torpor.storage.layout import Layout
from torpor.storage.templates import Templates

# Connects to the guest agent at the other end of a machine's channel; raises RestoreFailed if it does not answer.
ConnectGuest = Callable[[socket.socket], Awaitable[Guest]]


@dataclass(frozen=True, slots=True)
class Host:
    """What the verbs work with. Chosen in `host/main.py` and nowhere else."""

    layout: Layout
    templates: Templates
    spares: Spares
    connect_guest: ConnectGuest
    live: Live
