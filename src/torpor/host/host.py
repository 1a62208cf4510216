"""The host's collaborators, in one frozen record that every verb is given."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from torpor.guest.client import Guest
from torpor.host.live import Live
from torpor.storage.images import Images
from torpor.storage.layout import Layout
from torpor.storage.templates import Templates
from torpor.vmm.driver import Driver

# Connects to the guest agent at the other end of a machine's channel; raises RestoreFailed if it does not answer.
ConnectGuest = Callable[[socket.socket], Awaitable[Guest]]

# Returns the driver of this host's machines, always the same; raises Unsupported or NotFound if there can be none.
ChooseDriver = Callable[[], Awaitable[Driver]]


@dataclass(frozen=True, slots=True)
class Host:
    """What the verbs work with. Chosen in `host/main.py` and nowhere else."""

    layout: Layout
    images: Images
    templates: Templates
    vmm: ChooseDriver
    connect_guest: ConnectGuest
    live: Live
