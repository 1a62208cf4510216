"""The doctor's checks of what keeps machines from the host and from each other."""

from __future__ import annotations

from torpor.errors import InvalidRequest
from torpor.host.containment import find_groups
from torpor.host.sight import Finding, Sight
from torpor.vmm.qemu.jail import INSTALL, PROGRAM, REMAINS, USERS

# Where kernels tell that only root may make user namespaces: the file, and what stands in it then.
_FORBIDDEN = {
    "proc/sys/user/max_user_namespaces": "0",
    "proc/sys/kernel/unprivileged_userns_clone": "0",
    "proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
}


def look_at_jail(sight: Sight) -> Finding:
    """Whether a machine's VMM is walled in, and what is left where it is not."""
    try:
        config = sight.containment()
    except InvalidRequest as error:
        return Finding("jail", "bad", error.message, "set it to what it can be, or unset it")
    if config.jail == "off":
        return Finding("jail", "warn", f"none, as TORPOR_JAIL is off: {REMAINS}", "unset TORPOR_JAIL")
    if sight.program(PROGRAM) is None:
        return Finding("jail", "bad" if sight.is_root else "warn", f"none, as {PROGRAM} is missing: {REMAINS}", INSTALL)
    if sight.is_root:
        users = f"a user of its own, from {config.uid_base + 1} to {config.uid_base + USERS}"
        return Finding("jail", "ok", f"each machine in a jail, as {users}")
    forbidding = [file for file, value in _FORBIDDEN.items() if sight.read(file).strip() == value]
    if forbidding:
        says = f"none, as only root may make namespaces here (/{forbidding[0]}): {REMAINS}"
        return Finding("jail", "warn", says, "run Torpor as root")
    says = "each machine in a jail, but all as the server's own user: only root can give them others"
    return Finding("jail", "warn", says, "run Torpor as root")


def look_at_cgroups(sight: Sight) -> Finding:
    """Whether a machine can be held to its share of the host."""
    try:
        groups, limits = find_groups(sight.containment(), sight.home, sight.root)
    except InvalidRequest as error:
        return Finding("cgroups", "bad", error.message, "set it to what it can be, or unset it")
    if groups is None:
        mend = "run Torpor as root, outside of a container or in one that may make control groups"
        return Finding("cgroups", "warn", limits, mend)
    versions = " and ".join(sorted({str(tree.version) for tree in groups.trees}))
    if groups.is_whole:
        return Finding("cgroups", "ok", f"version {versions}: {limits}")
    return Finding("cgroups", "warn", f"version {versions}: {limits}", "switch these controllers on, on this host")
