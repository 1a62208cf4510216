"""The guest's refusals as errors.

What the guest says is shown to people, so it is cut and stripped of control characters.
"""

from __future__ import annotations

from typing import Any

from torpor import errors

# The only codes a guest may use; any other would let it claim what only a host can know.
_CLASSES: dict[str, type[errors.TorporError]] = {
    cls.code: cls
    for cls in (
        errors.InvalidRequest,
        errors.NotFound,
        errors.Forbidden,
        errors.Conflict,
        errors.OutOfSpace,
        errors.Busy,
        errors.PortClosed,
        errors.Unsupported,
    )
}
_MAX_TEXT = 2000


def refusal_of(body: dict[str, Any]) -> errors.TorporError:
    """Return the error for the object of an ERROR frame."""
    cls = _CLASSES.get(str(body.get("code")), errors.Failed)
    hint = body.get("hint")
    return cls(clean(body.get("message")), hint=None if hint is None else clean(hint))


def clean(text: object) -> str:
    """Return what a guest says as it may be shown to people."""
    if not isinstance(text, str):
        return "the guest's agent gave no reason"
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text[:_MAX_TEXT])
