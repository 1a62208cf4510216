"""What a system's first process does before anything else can run: mounts, devices, names, limits.

The initramfs has mounted the root, /proc, /sys, /dev and, below a /run of its own, the runtime.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import struct
from contextlib import suppress

from torpor_guest.ethernet import read_ethernet, set_up
from torpor_guest.identity import IDENTITY_FOLDER

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_RELATIME = 2, 4, 8, 1 << 21
_MS_BIND = 4096
_MAX_FILE = 1024 * 1024
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 1
_OPEN_FILES = 65536
CGROUP_ROOT = "/sys/fs/cgroup"

_libc = ctypes.CDLL(None, use_errno=True)


def start_system() -> None:
    """Make the guest a system that programs can run in. Raises OSError where that fails."""
    os.umask(0o022)
    _mount_all()
    _bind_identity()
    _link_devices()
    _loopback_up()
    _network()
    _limits()
    # Unlike other processes the first one is not ended by signals it does not handle; only Python's own handler must
    # go. Nor does the kernel ever kill it for lack of memory, so it needs no protection from that, which its children
    # would inherit.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.chdir("/")


def _mount_all() -> None:
    flags = _MS_NOSUID | _MS_NODEV
    _mount("proc", "/proc", "proc", flags | _MS_NOEXEC)
    _mount("sysfs", "/sys", "sysfs", flags | _MS_NOEXEC)
    _mount("devtmpfs", "/dev", "devtmpfs", _MS_NOSUID, "mode=0755")
    _mount("devpts", "/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, "gid=5,mode=620,ptmxmode=666")
    _mount("tmpfs", "/dev/shm", "tmpfs", flags, "mode=1777")  # noqa: S108 - the place itself, not a file in it
    if not os.path.isdir("/run/torpor"):  # else the runtime is mounted below, and a new /run would hide it
        _mount("tmpfs", "/run", "tmpfs", flags, "mode=0755")
    for folder, mode in (("/run/lock", 0o1777), ("/run/torpor", 0o755), ("/tmp", 0o1777)):  # noqa: S108
        if not os.path.isdir(folder):
            os.mkdir(folder)
            os.chmod(folder, mode)
    try:
        _mount("cgroup2", CGROUP_ROOT, "cgroup2", flags | _MS_NOEXEC, "nsdelegate,favordynmods")
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel that does not know the options
            raise
        _mount("cgroup2", CGROUP_ROOT, "cgroup2", flags | _MS_NOEXEC)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    if _is_mounted(target):
        return
    os.makedirs(target, exist_ok=True)
    words = (source.encode(), target.encode(), kind.encode(), flags | _MS_RELATIME, options.encode())
    if _libc.mount(*words[:3], ctypes.c_ulong(words[3]), words[4]) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {kind} on {target}: {os.strerror(number)}")


def _is_mounted(target: str) -> bool:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return any(line.split()[4] == target for line in file)
    except FileNotFoundError:  # /proc itself comes first
        return False


def _bind_identity() -> None:
    """Put the files that tell who the guest is on the tmpfs, and bind them over their places in /etc.

    An image that has no place for one, and takes none, goes without it.
    """
    for name in ("hostname", "hosts", "machine-id"):
        source, target = f"{IDENTITY_FOLDER}/{name}", f"/etc/{name}"
        with open(source, "ab") as file, suppress(FileNotFoundError), open(target, "rb") as old:
            file.write(old.read(_MAX_FILE))
        with suppress(OSError):
            os.close(os.open(target, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
            _bind(source, target)


def _network() -> None:
    """Set up the network card, if there is one, and name the gateway as the name server."""
    with open("/proc/cmdline", encoding="utf-8", errors="replace") as file:
        ethernet = read_ethernet(file.read())
    if ethernet is None or not set_up(ethernet):
        return
    source, target = f"{IDENTITY_FOLDER}/resolv.conf", "/etc/resolv.conf"
    with open(source, "wb") as file_of_names:
        file_of_names.write(ethernet.resolv_conf())
    with suppress(OSError):  # an image may take no such file
        if os.path.islink(target):  # to what a resolver of the image would write, which nobody starts
            os.unlink(target)
        os.close(os.open(target, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
        _bind(source, target)


def _bind(source: str, target: str) -> None:
    if _libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(_MS_BIND), None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"bind {source} over {target}: {os.strerror(number)}")


def _link_devices() -> None:
    links = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
    for name, target in links.items():
        path = f"/dev/{name}"
        if name == "ptmx" and os.path.exists(path) and not os.path.islink(path):
            os.unlink(path)
        with suppress(FileExistsError):
            os.symlink(target, path)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        asked = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack_from("16sh", fcntl.ioctl(sock, _SIOCGIFFLAGS, asked))[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))


def _limits() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.RLIM_INFINITY))


def find_port(name: str) -> str:
    """Return the device of the virtio-serial port with this name. Raises FileNotFoundError."""
    folder = "/sys/class/virtio-ports"
    for port in sorted(os.listdir(folder)):
        with open(f"{folder}/{port}/name", encoding="utf-8") as file:
            if file.read().strip() == name:
                return f"/dev/{port}"
    raise FileNotFoundError(errno.ENOENT, f"no virtio-serial port is called {name}")
