"""What this host can do for Torpor, in plain words, and what to do about each lack.

Every check returns one Finding and looks only where it is told to: a root folder in place of `/`, a PATH, a home. So
tests show it hosts that do not exist. A check that fails itself becomes a finding too: `examine` never raises.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from torpor.errors import InvalidRequest, TorporError
from torpor.host.choice import verdict_file
from torpor.host.config import volume_from_environment
from torpor.host.containment import ContainmentConfig
from torpor.host.doctor_containment import look_at_cgroups, look_at_jail
from torpor.host.doctor_network import look_at_network
from torpor.host.sight import Finding, Sight
from torpor.model.ids import TemplateName
from torpor.network.config import network_from_environment
from torpor.storage.layout import Layout
from torpor.storage.room import GIB, MIB, free_and_total
from torpor.storage.snapshots import Snapshots
from torpor.storage.templates import Templates
from torpor.storage.volume import VolumeConfig, mounted_layout, survey
from torpor.vmm.qemu.driver import INSTALL, OLDEST_VERSION, PROGRAM
from torpor.vmm.qemu.probe import recall
from torpor.vmm.qemu.tsc import tsc_khz

# What one bake and a few sandboxes take, with room to spare.
DISK_WANTED, DISK_NEEDED = 8 * GIB, 2 * GIB
# One default sandbox may fill this much, and the server and the host need some too.
MEMORY_WANTED, MEMORY_NEEDED = 2 * GIB, 768 * MIB
# Program -> (Debian package, what it is for).
PROGRAMS = {
    "qemu-img": ("qemu-utils", "makes the sandboxes' disks"),
    "mmdebstrap": ("mmdebstrap", "makes the templates' root file systems"),
    "mke2fs": ("e2fsprogs", "makes disk images"),
    "apt-get": ("apt", "fetches the guest's kernel"),
    "dpkg-deb": ("dpkg", "unpacks it"),
    "cpio": ("cpio", "packs the guest's first file system"),
    "skopeo": ("skopeo", "pulls images for templates"),
    "umoci": ("umoci", "unpacks images"),
    "zstd": ("zstd", "reads compressed images and archives"),
    "setpriv": ("util-linux", "gives each machine a user, and ends that of a bake that has died"),
}


def examine(home: Path) -> list[Finding]:
    """Look at this host, and at the data directory `home` (which need not exist yet). Never raises."""
    path = os.environ.get("PATH", os.defpath)
    sight = Sight(
        home,
        search_path=path,
        is_root=os.geteuid() == 0,
        volume=volume_from_environment,
        containment=ContainmentConfig.from_environment,
        network=network_from_environment,
    )
    return findings(sight, CHECKS)


def findings(sight: Sight, checks: Sequence[Callable[[Sight], Finding]]) -> list[Finding]:
    """Run each check; one that fails itself becomes a warning that says how."""
    return [_guarded(check, sight) for check in checks]


def _guarded(check: Callable[[Sight], Finding], sight: Sight) -> Finding:
    name = check.__name__.removeprefix("look_at_").replace("_", " ")
    try:
        return check(sight)
    except PermissionError as error:
        return Finding(
            name, "warn", f"this user may not look at {error.filename}", "run it as the user who runs the server"
        )
    except Exception as error:
        return Finding(name, "warn", f"this check itself failed: {error or type(error).__name__}", "report it as a bug")


def look_at_processor(sight: Sight) -> Finding:
    """Kind and number of processors."""
    count = len(re.findall(r"^processor\s*:", sight.read("proc/cpuinfo"), re.MULTILINE))
    if platform.machine() != "x86_64":
        return Finding("processor", "bad", f"this is a {platform.machine()} machine", "Torpor needs an x86-64 host")
    if count < 2:
        return Finding("processor", "warn", "one x86-64 processor: server and guest take turns", "use 2 or more")
    return Finding("processor", "ok", f"x86-64, {count} processors")


def look_at_kvm(sight: Sight) -> Finding:
    """Whether guests run on the hardware, and why not. The boot probe says, as a device that opens proves nothing."""
    verdict = recall(verdict_file(sight.home))
    if verdict is not None and verdict.accelerator == "kvm":
        return Finding("kvm", "ok", "used: a guest was booted with it")
    slower = "guests run under emulation (TCG), which works everywhere but computes 4 to 7 times slower"
    mend = "for speed, use a host with working KVM"
    device = sight.root / "dev/kvm"
    if not device.exists():
        return Finding("kvm", "warn", f"this host has no /dev/kvm, so {slower}", mend)
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except PermissionError:
        return Finding("kvm", "warn", f"this user may not open /dev/kvm, so {slower}", "add this user to the group kvm")
    except OSError as error:
        return Finding("kvm", "warn", f"/dev/kvm does not open ({error.strerror}), so {slower}", mend)
    if verdict is None:
        says = "/dev/kvm opens, which does not prove that a guest boots with it: the first bake tries that"
        return Finding("kvm", "warn", says, "run `torpor template build base`, then look again")
    return Finding("kvm", "warn", f"{verdict.why.rstrip('.')}; so {slower}", mend)


def look_at_qemu(sight: Sight) -> Finding:
    """Which QEMU, and whether it is new enough."""
    program = sight.program(PROGRAM)
    if program is None:
        return Finding("qemu", "bad", f"{PROGRAM} is not installed", INSTALL)
    version = _installed_qemu(sight)
    if version is None:
        return Finding("qemu", "bad", f"{program} does not say its version", INSTALL)
    if tuple(map(int, version.split(".")[:2])) < OLDEST_VERSION:
        oldest = f"{OLDEST_VERSION[0]}.{OLDEST_VERSION[1]}"
        return Finding("qemu", "bad", f"{program} is version {version}, and {oldest} or newer is needed", INSTALL)
    return Finding("qemu", "ok", f"version {version}, {program}")


def look_at_programs(sight: Sight) -> Finding:
    """The other programs that are started."""
    missing = {name: PROGRAMS[name] for name in PROGRAMS if sight.program(name) is None}
    if not missing:
        return Finding("programs", "ok", f"{', '.join(PROGRAMS)} are installed")
    says = "; ".join(f"{name} is missing ({purpose})" for name, (_, purpose) in missing.items())
    packages = " ".join(sorted({package for package, _ in missing.values()}))
    return Finding("programs", "bad", says, f"apt-get install --no-install-recommends {packages}")


def look_at_clock_rate(_: Sight) -> Finding:
    """The rate of the time-stamp counter, which guests are told so that they do not have to measure it."""
    try:
        rate = tsc_khz()
    except TorporError as error:
        return Finding("clock rate", "bad", error.message, error.hint or "")
    return Finding("clock rate", "ok", f"the time-stamp counter runs at {rate / 1000:.0f} MHz")


def look_at_memory(sight: Sight) -> Finding:
    """How much memory machines can take."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", sight.read("proc/meminfo"), re.MULTILINE)
    if found is None:
        return Finding("memory", "warn", "this host does not tell how much memory is available")
    available = int(found[1]) * 1024
    says = f"{_size(available)} available"
    if available < MEMORY_NEEDED:
        return Finding("memory", "bad", f"{says}; one sandbox and the server need {_size(MEMORY_NEEDED)}", "free some")
    if available < MEMORY_WANTED:
        return Finding(
            "memory", "warn", f"{says}: enough for one or two sandboxes", f"{_size(MEMORY_WANTED)} is better"
        )
    return Finding("memory", "ok", says)


def look_at_disk_space(sight: Sight) -> Finding:
    """Room on the file system of the data directory."""
    place = _existing(sight.home)
    free = shutil.disk_usage(place).free
    says = f"{_size(free)} free for {sight.home}"
    mend = "free some, or choose another place with TORPOR_HOME"
    if free < DISK_NEEDED:
        return Finding("disk space", "bad", f"{says}; a template and its sandboxes need {_size(DISK_NEEDED)}", mend)
    if free < DISK_WANTED:
        return Finding("disk space", "warn", f"{says}; {_size(DISK_WANTED)} is a comfortable reserve", mend)
    return Finding("disk space", "ok", says)


def look_at_data_directory(sight: Sight) -> Finding:
    """Whether it can be written, and whether its files can share blocks, which makes a freeze cheap."""
    name, place = "data directory", _existing(sight.home)
    try:
        config = sight.volume()
        ground = survey(
            Layout(place), config, lambda program: sight.program(program) is not None, is_root=sight.is_root
        )
    except InvalidRequest as error:
        return Finding(name, "bad", error.message, "set it right, or unset it")
    except OSError as error:
        mend = "run as a user who may write there, or choose another place with TORPOR_HOME"
        return Finding(name, "bad", f"{place} cannot be written: {error.strerror}", mend)
    if ground.kind == "volume":
        return _look_at_volume(sight, config)
    if ground.kind == "native":
        return Finding(name, "ok", f"{sight.home}: files can share blocks (reflink)")
    if ground.kind == "bare":
        says = f"{sight.home}: no reflinks on this file system; a volume that has them is made at the first start"
        return Finding(name, "ok", says)
    return Finding(
        name,
        "warn",
        f"{sight.home}: no reflinks, and no volume ({ground.why}), so a snapshot is a full copy",
        "mend that, or put the data directory on XFS or btrfs with TORPOR_HOME",
    )


def _look_at_volume(sight: Sight, config: VolumeConfig) -> Finding:
    name, layout = "data directory", mounted_layout(sight.home)
    if config.use == "off":
        mend = "unset TORPOR_VOLUME, or choose another place with TORPOR_HOME"
        return Finding(name, "bad", f"TORPOR_VOLUME is off, but {sight.home} has its data in a volume", mend)
    if not sight.is_root:
        mend = "run as root, or choose another place with TORPOR_HOME"
        return Finding(name, "bad", f"{sight.home} has its data in a volume, which only root can mount", mend)
    image = Layout(sight.home).volume_image
    taken = f"it takes {_size(image.stat().st_blocks * 512)} of the disk below"
    if layout is None:
        return Finding(name, "ok", f"{sight.home}: a volume with reflinks, mounted while a server runs; {taken}")
    free, total = free_and_total(layout.data)
    return Finding(name, "ok", f"{layout.data}: a volume with reflinks, {_size(free)} of {_size(total)} free; {taken}")


def look_at_snapshots(sight: Sight) -> Finding:
    """How many snapshots there are, and what they take up."""
    layout = mounted_layout(sight.home)
    if layout is None:
        return _unseen("snapshots")
    found = Snapshots(layout).all() if layout.snapshots.is_dir() else []
    if not found:
        return Finding("snapshots", "ok", "none")
    size = _size(sum(snapshot.size_bytes for snapshot in found))
    return Finding("snapshots", "ok", f"{len(found)}, {size} beyond what they share")


def _unseen(name: str) -> Finding:
    says = "they are in the volume, which is mounted only while a server runs"
    return Finding(name, "ok", says)


def look_at_rights(sight: Sight) -> Finding:
    """Which user this is."""
    if sight.is_root:
        return Finding("rights", "ok", "root")
    return Finding(
        "rights",
        "warn",
        "not root: sandboxes run, but baking a template needs root here",
        "bake once as root with the same TORPOR_HOME, or run Torpor as root",
    )


def look_at_server(sight: Sight) -> Finding:
    """Whether a server runs on this data directory: the kernel knows who holds its lock."""
    lock = Layout(sight.home).lock
    if not lock.exists():
        return Finding("server", "ok", f"none has run on {sight.home} yet; `torpor up` starts one")
    held = re.search(rf"FLOCK +\S+ +WRITE +(\d+) +\S+:{lock.stat().st_ino} ", sight.read("proc/locks"))
    if held is None:
        return Finding("server", "ok", f"none runs on {sight.home} now; `torpor up` starts one")
    return Finding("server", "ok", f"process {held[1]} serves {sight.home}")


def look_at_templates(sight: Sight) -> Finding:
    """Which templates are baked, and whether this host can still load them."""
    layout = mounted_layout(sight.home)
    if layout is None:
        return _unseen("templates")
    templates = Templates(layout)
    names = templates.names() if layout.templates.is_dir() else []
    if not names:
        return Finding("templates", "warn", "none is baked yet", "run `torpor template build base`")
    version = _installed_qemu(sight)
    unusable = {name: why for name in names if (why := _why_unusable(templates, name, version))}
    if unusable:
        mend = "; ".join(f"run `torpor template build {name}`" for name in unusable)
        return Finding("templates", "bad", "; ".join(unusable.values()), mend)
    return Finding("templates", "ok", ", ".join(names))


def _why_unusable(templates: Templates, name: TemplateName, version: str | None) -> str:
    try:
        template = templates.open(name).template
    except TorporError as error:
        return error.message
    if version and template.fingerprint.version != version:
        return f"{name} cannot be loaded: baked by another version of QEMU than the {version} installed now"
    return ""


CHECKS: tuple[Callable[[Sight], Finding], ...] = (
    look_at_processor,
    look_at_kvm,
    look_at_qemu,
    look_at_programs,
    look_at_clock_rate,
    look_at_memory,
    look_at_disk_space,
    look_at_data_directory,
    look_at_jail,
    look_at_cgroups,
    look_at_rights,
    look_at_network,
    look_at_server,
    look_at_templates,
    look_at_snapshots,
)


def _installed_qemu(sight: Sight) -> str | None:
    program = sight.program(PROGRAM)
    if program is None:
        return None
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=20)
    found = re.search(r"version (\d+\.\d+(?:\.\d+)*)", answer.stdout)
    return found[1] if found else None


def _existing(path: Path) -> Path:
    """Return the path itself, or the nearest folder above it that exists."""
    return next(place for place in [path.absolute(), *path.absolute().parents] if place.is_dir())


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"
