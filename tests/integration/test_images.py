"""Images from a registry, an archive or a tar: pulled, checked, unpacked and made into disks, in jails."""

from __future__ import annotations

import gzip
import json
import os
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from oci_images import a_file, an_image, archive_layout, archive_of, index_of
from registry import Registry, serving_images
from torpor.errors import Forbidden, InvalidRequest, NotFound, Unsupported
from torpor.kit.files import remove_tree
from torpor.kit.proc import run
from torpor.model.template import Defaults
from torpor.storage import oci
from torpor.storage.gateway import check_registry
from torpor.storage.jailed import Jailed
from torpor.storage.references import Allowed, is_public, parse_reference
from torpor.storage.trees import Sifted, make_disk, make_places, unpack

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to their owners")

MIB = 1024 * 1024
FILES = archive_of(
    a_file("etc", type=tarfile.DIRTYPE, mode=0o755),
    a_file("etc/passwd", b"app:x:7:8::/:/bin/sh\n"),
    a_file("bin/tool", b"program", 0o4755, uid=7, gid=8),
    a_file("bin/old", b"x"),
    a_file("run", type=tarfile.SYMTYPE, linkname="etc"),
)
UPPER = archive_of(a_file("bin/.wh.old"), a_file("bin/new", b"y"))


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with serving_images() as registry:
        yield registry


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def puller(registry: Registry, name: str, work: Path) -> oci.Registry:
    return oci.Registry(work, name, work.parent / "log", Allowed(frozenset({registry.name})))


async def pulled(registry: Registry, name: str, work: Path) -> Sifted:
    layout = await puller(registry, name, work).pull()
    return await unpack("layers", layout, Jailed(work), 64 * MIB, work.parent / "log")


async def test_an_image_is_pulled_and_its_layers_are_put_on_each_other(registry: Registry, work: Path) -> None:
    config = {"Env": ["PATH=/bin", "A=b=c"], "WorkingDir": "srv", "User": "7:8", "Cmd": ["tool"], "Entrypoint": ["e"]}
    name = registry.push("team/tools:1", an_image(FILES, UPPER, config=config))
    sifted = await pulled(registry, name, work)
    assert sorted(each.name for each in (work / "tree/bin").iterdir()) == ["new", "tool"]
    status = (work / "tree/bin/tool").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (7, 8, 0o4755)
    found = oci.configured(sifted.settings)
    assert found.defaults == Defaults({"PATH": "/bin", "A": "b=c"}, "/srv", "7:8")
    assert (found.entrypoint, found.command) == (("e",), ("tool",))
    (work / "settings").write_text(oci.settings_json(found))
    assert oci.read_settings(work / "settings") == found


async def test_of_an_index_the_one_for_guests_is_taken(registry: Registry, work: Path) -> None:
    image = an_image(FILES)
    name = registry.push("indexed:1", image, index_of(image, "arm64", "amd64"))
    digest = await puller(registry, name, work).digest()
    await pulled(registry, name, work)
    assert (work / "tree/bin/tool").exists()
    again = await puller(registry, f"{registry.name}/indexed@sha256:{digest}", work).digest()
    assert again == digest


@pytest.mark.parametrize("form", ["index", "image"])
async def test_an_image_for_other_architectures_only_is_refused_by_name(
    registry: Registry, work: Path, form: str
) -> None:
    image = an_image(FILES, architecture="arm64")
    name = registry.push(f"foreign-{form}:1", image, index_of(image, "arm64", "s390x") if form == "index" else None)
    look = puller(registry, name, work).digest if form == "index" else partial(pulled, registry, name, work)
    with pytest.raises(InvalidRequest, match=r"linux/arm64.*linux/amd64"):
        await look()


async def test_layers_may_be_plain_or_compressed_with_zstandard(registry: Registry, work: Path) -> None:
    def zstd(data: bytes) -> bytes:
        return subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout

    name = registry.push("packed:1", an_image(FILES, compress=zstd, suffix="+zstd"))
    await pulled(registry, name, work)
    assert (work / "tree/bin/tool").read_bytes() == b"program"


async def test_a_registry_that_knows_no_such_image_or_nobody(registry: Registry, work: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no image"):
        await puller(registry, f"{registry.name}/nothing:1", work).digest()
    name, log = registry.push("private:1", an_image(FILES)), tmp_path / "log"
    registry.password = "sesame-open"
    try:
        with pytest.raises(Forbidden, match="does not give out") as refused:
            await puller(registry, name, work).digest()
        assert "TORPOR_REGISTRY_AUTH" in str(refused.value.hint)
        auth = tmp_path / "auth.json"
        auth.write_text(json.dumps({"auths": {registry.name: {"auth": "Y2k6c2VzYW1lLW9wZW4="}}}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TORPOR_REGISTRY_AUTH", str(auth))
            await pulled(registry, name, work)
    finally:
        registry.password = None
    assert b"sesame" not in log.read_bytes()
    assert b"Y2k6" not in log.read_bytes()


async def test_a_layer_that_is_not_what_its_digest_says_is_refused(registry: Registry, work: Path) -> None:
    image = an_image(FILES)
    digest = json.loads(image.text())["layers"][0]["digest"]
    image.blobs[digest] = gzip.compress(archive_of(a_file("evil", b"x")))
    name = registry.push("lying:1", image)
    with pytest.raises(Exception, match=r"(?i)digest|does not match|not what"):
        await pulled(registry, name, work)


async def test_what_a_registry_says_leads_nowhere_but_to_the_registry(registry: Registry, work: Path) -> None:
    with serving_images() as hidden:
        name = registry.push("moved:1", an_image(archive_of(a_file("moved", b"x"))))
        registry.moved_to = f"http://{hidden.name}/v2/moved/blobs/x"
        try:
            with pytest.raises(Exception, match="not pulled"):
                await puller(registry, name, work).pull()
        finally:
            registry.moved_to = None
        assert hidden.asked == []


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("127.0.0.1:1/a", "which is not public"),
        ("localhost:1/a", "which is not public"),
        ("localhost/a", "its port has to be named"),
        ("10.1.2.3/a", "which is not public"),
        ("[::1]:5000/a", "which is not public"),
        ("169.254.169.254/latest", "which is not public"),
        ("no-such-name.invalid/a", "not known by that name"),
    ],
)
async def test_a_registry_inside_is_refused_unless_it_is_listed(reference: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        await check_registry(parse_reference(reference), Allowed())
    if "port" not in said and "known" not in said:
        parsed = parse_reference(reference)
        await check_registry(parsed, Allowed(frozenset({parsed.registry})))


@pytest.mark.parametrize(
    "text", ["", "-x", "A B", "a//b", "--help", "a:b:c", "UPPER/case", "a@sha256:1", "x" * 600, "a\nb"]
)
def test_what_is_no_name_of_an_image_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_reference(text if text != "x" * 600 else "a/" * 600)


def test_names_of_images_are_read() -> None:
    first = parse_reference("registry.example.com:5000/team/tools:1.2")
    assert (first.host, first.port, first.registry) == ("registry.example.com", 5000, "registry.example.com:5000")
    assert parse_reference("python:3.12").host is None
    assert parse_reference("team/tools").host is None


def test_which_addresses_are_public() -> None:
    inside = (
        "127.0.0.1",
        "10.0.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "::1",
        "fe80::1%eth0",
        "::ffff:10.0.0.1",
        "0.0.0.0",
    )
    translated = ("2002:a00:1::", "64:ff9b::10.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b:1::808:808")
    assert not [each for each in (*inside, *translated, "224.0.0.1", "100.64.0.1") if is_public(each)]
    public = ["8.8.8.8", "2606:4700::1", "64:ff9b::8.8.8.8", "2002:808:808::"]
    assert [each for each in public if is_public(each)] == public


@pytest.mark.parametrize("program", ["skopeo", "umoci"])
async def test_a_missing_program_is_told_with_its_package(
    registry: Registry, work: Path, monkeypatch: pytest.MonkeyPatch, program: str, tmp_path: Path
) -> None:
    archive = archive_layout(an_image(FILES), tmp_path / "layout", tmp_path / "image.tar")
    layout = await oci.open_archive(work, archive, tmp_path / "log") if program == "umoci" else ""
    there = tmp_path / "bin"
    there.mkdir()
    for name in ("bwrap", "sh", "zstd", "prlimit"):
        (there / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(there))
    pull = puller(registry, f"{registry.name}/a:1", work).digest
    use = pull if program == "skopeo" else partial(unpack, "layers", layout, Jailed(work), MIB, tmp_path / "log")
    with pytest.raises(Unsupported, match=f"{program} is not installed") as refused:
        await use()
    assert refused.value.hint == f"install the package {program}"


async def test_an_archive_of_either_form_is_opened(work: Path, tmp_path: Path) -> None:
    archive = archive_layout(an_image(FILES), tmp_path / "layout", tmp_path / "image.tar")
    layout = await oci.open_archive(work, archive, tmp_path / "log")
    saved = tmp_path / "saved.tar"
    argv = ["skopeo", "--insecure-policy", "copy", "-q", f"oci:{work}/layout:image", f"docker-archive:{saved}:a/b:1"]
    await run(argv)
    await unpack("layers", layout, Jailed(work), MIB, tmp_path / "log")
    other = tmp_path / "other"
    other.mkdir()
    layout = await oci.open_archive(other, saved, tmp_path / "log")
    await unpack("layers", layout, Jailed(other), MIB, tmp_path / "log")
    assert (other / "tree/bin/tool").read_bytes() == (work / "tree/bin/tool").read_bytes() == b"program"


async def test_what_is_no_image_is_refused(work: Path, tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"hello", archive_of(a_file("a", b"x")))):
        archive = tmp_path / f"{number}.tar"
        archive.write_bytes(content)
        with pytest.raises(InvalidRequest, match="holds no image that can be used"):
            await oci.open_archive(work, archive, tmp_path / "log")


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"Env": ["=x"]}, "a variable has no name"),
        ({"Env": "x"}, "Env"),
        ({"Cmd": [1]}, "Cmd"),
        ({"User": {}}, "User"),
        ({"WorkingDir": "a\0b"}, "NUL"),
        ({"Env": [f"A={'x' * 100_000}"]}, "too long"),
        ([], "make no sense"),
    ],
)
def test_settings_that_make_no_sense_are_refused(said: object, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        oci.configured(said)


async def unpacked_tar(work: Path, data: bytes, most: int = 64 * MIB) -> Path:
    archive = work.parent / "rootfs.tar"
    archive.write_bytes(data)
    await unpack("rootfs", "/rootfs.tar", Jailed(work, {"/rootfs.tar": archive}), most, work.parent / "log")
    return work / "tree"


async def test_a_hostile_tar_is_refused_and_nothing_of_it_is_outside(work: Path, tmp_path: Path) -> None:
    for entry, said in (
        (a_file(f"{tmp_path}/escaped", b"x"), "absolute path"),
        (a_file("../escaped", b"x"), "leads out"),
        (a_file("x", type=tarfile.SYMTYPE, linkname="../.."), "above the root"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            await unpacked_tar(work, archive_of(entry))
        for left in work.iterdir():
            remove_tree(left)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["log", "rootfs.tar", "work"]


async def test_a_link_in_a_tar_is_followed_below_its_own_root_only(work: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    entries = (a_file("out", type=tarfile.SYMTYPE, linkname=str(outside)), a_file("out/escaped", b"x"))
    tree = await unpacked_tar(work, archive_of(*entries))
    assert list(outside.iterdir()) == []
    assert (tree / str(outside).lstrip("/") / "escaped").read_bytes() == b"x"
    loop = (a_file("etc", type=tarfile.SYMTYPE, linkname="/etc"), a_file("etc/torpor-test-escaped", b"x"))
    remove_tree(tree)
    with pytest.raises(InvalidRequest, match="too many levels"):
        await unpacked_tar(work, archive_of(*loop))
    assert not Path("/etc/torpor-test-escaped").exists()


async def test_a_tree_gets_the_folders_of_a_guest_and_becomes_a_disk(work: Path, tmp_path: Path) -> None:
    tree = await unpacked_tar(work, FILES)
    assert (tree / "run").is_symlink()
    make_places(tree)
    assert (tree / "run").is_dir()
    assert not (tree / "run").is_symlink()
    assert stat.S_IMODE((tree / "tmp").stat().st_mode) == 0o1777
    assert await make_disk(tree, work / "root.img", 1, tmp_path / "log") == 1
    listed = await run(["debugfs", "-R", "stat /bin/tool", str(work / "root.img")])
    assert "Mode:  04755" in listed
    assert "User:     7   Group:     8" in listed


async def test_a_disk_is_as_large_as_its_files_need_and_beyond_the_most_it_is_refused_with_figures(
    work: Path, tmp_path: Path
) -> None:
    tree = work / "tree"
    tree.mkdir()
    with (tree / "big").open("wb") as file:
        file.truncate(1100 * MIB)
    assert await make_disk(tree, work / "root.img", 1, tmp_path / "log") == 2
    assert (work / "root.img").stat().st_size == 2048 * MIB
    with (tree / "big").open("wb") as file:
        file.truncate(100_000 * MIB)
    with pytest.raises(InvalidRequest, match="100000 MiB in 1 files would need a disk of 110 GiB; 64 GiB is the most"):
        await make_disk(tree, work / "other.img", 1, tmp_path / "log")
