"""What both stores decide in the same way, and say in the same words."""

from __future__ import annotations

from torpor.control.store.contract import Claim
from torpor.errors import Conflict
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox


def claim_is_free(holder: Sandbox) -> bool:
    """Tell whether a claim's sandbox never came to be, so that the same key may try again."""
    return holder.state is State.DELETED and holder.boot_ms is None


def name_taken(sandbox: Sandbox) -> Conflict:
    """Return the refusal of a second sandbox with a name."""
    return Conflict(
        f"a sandbox named {sandbox.name!r} exists already", hint="choose another name, or delete that sandbox first"
    )


def other_request(claim: Claim, holder: Sandbox) -> Conflict:
    """Return the refusal of a key that came with another request before."""
    return Conflict(
        f"the idempotency key {claim.key!r} was used for another request, which made {holder.id}",
        hint="use a fresh key for each new request",
    )
