"""Root disks and the agent's runtime disk: ext4 images filled from a folder."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import ssl
from dataclasses import dataclass
from pathlib import Path

from torpor.model.template import Recipe
from torpor.storage.debian import Archive
from torpor.storage.jailed import OWNERS, WORK, Jailed
from torpor.storage.programs import require, use

_HOST_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)


def trusted_certificates() -> tuple[str, ...]:
    """Return the certificates this host trusts, in PEM, as its own bundle has them."""
    if not _HOST_BUNDLE.exists():
        return ()
    return tuple(_CERTIFICATE.findall(_HOST_BUNDLE.read_text()))


# It mounts file systems in the tree and starts many processes. In name spaces of its own the kernel ends all of them,
# and undoes the mounts, as soon as its first process or we are no more.
_GONE_WITH_US = (
    *("setpriv", "--pdeathsig", "KILL", "--"),
    *("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--"),
)


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Makes Debian trees from one archive; what its programs say goes to `log`."""

    archive: Archive
    log: Path

    async def make(self, options: list[str], tree: Path, env: dict[str, str] | None = None) -> None:
        """Fill `tree`. Raises Unsupported without mmdebstrap, Failed if it fails."""
        require("mmdebstrap", "mmdebstrap")
        made = ["mmdebstrap", "--mode=root", *options, self.archive.codename, str(tree), *self.archive.sources]
        argv = [*_GONE_WITH_US, *made]
        failure, whole_env = "the root file system was not made", {**os.environ, **(env or {})}
        await use(argv, "util-linux", failure, hint=f"see {self.log}", env=whole_env, log=self.log)


async def make_root(bootstrap: Bootstrap, recipe: Recipe, certificates: tuple[str, ...], into: Path) -> None:
    """Fill a folder with `root.img`: Debian's essential packages and the recipe's, with the certificates trusted."""
    tree = into / "tree"
    extra = into / "certificates"
    _write_certificates(certificates, extra)
    await bootstrap.make(
        [
            *("--variant=minbase", f"--include={','.join(recipe.packages)}"),
            # The hook's text is fixed; mmdebstrap hands the tree over as $1 and the folder comes from the environment.
            '--customize-hook=cp -r "$TORPOR_CERTIFICATES/." "$1/usr/local/share/ca-certificates/"',
            '--customize-hook=chroot "$1" update-ca-certificates >/dev/null',
            '--customize-hook=rm -f "$1/etc/hostname" "$1/etc/resolv.conf"; : > "$1/etc/machine-id"',
            '--customize-hook=mkdir -p "$1/work"',
        ],
        tree,
        {"TORPOR_CERTIFICATES": str(extra)},
    )
    await make_ext4(tree, into / "root.img", size_mib=recipe.disk_gib * 1024)
    for done in (tree, extra):
        shutil.rmtree(done)


def _write_certificates(certificates: tuple[str, ...], folder: Path) -> None:
    folder.mkdir()
    for pem in certificates:
        digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()[:16]
        (folder / f"host-{digest}.crt").write_text(pem)


async def make_runtime(bootstrap: Bootstrap, agent: Path, into: Path) -> None:
    """Fill a folder with `runtime.img`: a Python with its standard library, and the agent's package from `agent`."""
    tree = into / "tree"
    await bootstrap.make(["--variant=extract", "--include=python3-minimal,libpython3-stdlib"], tree)
    for unused in ("usr/share", "var", "etc/apt", "dev"):
        shutil.rmtree(tree / unused, ignore_errors=True)
    _link_merged(tree)
    _link_within(tree)
    start = tree / "agent"
    shutil.copytree(agent, start / "torpor_guest", ignore=shutil.ignore_patterns("__pycache__"))
    (start / "__main__.py").write_text("from torpor_guest.main import main\n\nmain()\n")
    await _compile(tree)
    size_mib = -(-sum(path.lstat().st_size for path in tree.rglob("*")) // (1024 * 1024))
    await make_ext4(tree, into / "runtime.img", size_mib=size_mib + size_mib // 2 + 16)
    shutil.rmtree(tree)


def _link_merged(tree: Path) -> None:
    """Make the links into /usr that newer releases leave to a package of their own, which is not extracted here."""
    for name in ("bin", "lib", "lib64", "sbin"):
        if not (tree / name).exists():
            (tree / name).symlink_to(f"usr/{name}")


def _link_within(tree: Path) -> None:
    """Let absolute links, such as the loader's, lead into the tree: a guest's own root may have nothing there."""
    for path in tree.rglob("*"):
        if path.is_symlink() and (target := path.readlink()).is_absolute():
            path.unlink()
            path.symlink_to(os.path.relpath(tree / target.relative_to("/"), path.parent))


async def _compile(tree: Path) -> None:
    """Compile the modules by the guest's own interpreter: the disk is read-only, so the guest could not keep them."""
    (library,) = (tree / "usr/lib").glob("python3.*")
    compile_all = ["-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    where = ["/agent", f"/usr/lib/{library.name}"]
    argv = ["chroot", str(tree), "/usr/bin/python3", *compile_all, *where]
    await use(argv, "coreutils", "the guest agent was not compiled")


async def make_ext4(
    tree: Path,
    image: Path,
    *,
    size_mib: int,
    inodes: int | None = None,
    jailed: Path | None = None,
    log: Path | None = None,
) -> None:
    """Make a sparse ext4 image of a folder, with room for so many `inodes` (None: as is usual for the size).

    `jailed`: the folder that both are in, for a tree that a stranger has filled. No journal: a disk is never used again
    without the memory that goes with it. Raises Unsupported without mke2fs, Failed if it fails.
    """
    place = Jailed(jailed, rights=OWNERS) if jailed is not None else None
    source, target = (tree, image) if jailed is None else (Path(WORK) / tree.name, Path(WORK) / image.name)
    argv = [
        *("mke2fs", "-q", "-t", "ext4", "-d", str(source), "-m", "0", "-O", "^has_journal"),
        *(() if inodes is None else ("-N", str(inodes))),
        *("-E", "root_owner=0:0,lazy_itable_init=0", str(target), f"{size_mib}M"),
    ]
    failure = "the disk image was not made"
    if place is None:
        await use(argv, "e2fsprogs", failure, log=log)
    else:
        await place.run(argv, "e2fsprogs", failure, log)
