"""What makes a guest itself, given to it after every restore."""

from __future__ import annotations

from dataclasses import dataclass

from torpor.model.ids import SandboxId


@dataclass(frozen=True, slots=True)
class Identity:
    """The name a guest answers to.

    Clock and entropy are part of an identity too, but are taken fresh when it is handed over.
    """

    sandbox_id: SandboxId

    @property
    def hostname(self) -> str:
        """The guest's host name: the sandbox's id."""
        return self.sandbox_id


# What a guest is called while nobody has it yet.
NOBODY = Identity(SandboxId("sbx-0000000000000000"))
