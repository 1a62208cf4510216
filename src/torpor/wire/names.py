"""File names as they cross the wire: text that survives JSON, and back without loss.

The guest's agent defines the form (`torpor_guest.names`).
"""

from __future__ import annotations

import os

from torpor_guest.names import to_bytes, to_text


def wire_name(name: str) -> str:
    """Return a local file name or path, as Python has it, in the form of the wire."""
    return to_text(os.fsencode(name))


def local_name(name: str) -> str:
    """Return a name from the wire as Python names files here. Raises UnicodeEncodeError for a lone surrogate."""
    return os.fsdecode(to_bytes(name))
