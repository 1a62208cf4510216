"""The doctor's check of what sandboxes reach."""

from __future__ import annotations

from torpor.errors import InvalidRequest
from torpor.host.sight import Finding, Sight
from torpor.network.programs import PACKAGES
from torpor.network.tap import DEVICE

_NONE = "sandboxes have no network, only loopback inside the guest"


def look_at_network(sight: Sight) -> Finding:
    """What network sandboxes get, and what is lacking where it is none."""
    try:
        config = sight.network()
    except InvalidRequest as error:
        return Finding("network", "bad", error.message, "set it to what it can be, or unset it")
    if config.use == "off":
        return Finding("network", "warn", f"{_NONE}: TORPOR_NETWORK is off", "unset TORPOR_NETWORK")
    if not sight.is_root:
        return Finding("network", "warn", f"{_NONE}: only root can make network namespaces", "run Torpor as root")
    if not (sight.root / DEVICE.lstrip("/")).exists():
        return Finding("network", "warn", f"{_NONE}: this host has no {DEVICE}", "load the kernel module tun")
    missing = [program for program in PACKAGES if sight.program(program) is None]
    if missing:
        packages = " ".join(sorted({PACKAGES[program] for program in missing}))
        return Finding("network", "warn", f"{_NONE}: {', '.join(missing)} missing", f"install {packages}")
    slots = f"slots from {config.range}, {config.mbit} Mbit/s and {config.connections} connections each"
    return Finding("network", "ok", f"public addresses, or what each sandbox is allowed; {slots}{_whether(sight)}")


def _whether(sight: Sight) -> str:
    """Return what is changed on the host for it."""
    if sight.read("proc/sys/net/ipv4/ip_forward").strip() == "1":
        return ""
    return "; this host does not forward, so a server switches that on for the ways out, and off again at its end"
