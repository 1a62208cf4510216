"""Archives that lie: what is refused, what is left out, and that what comes out is what may be there."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from oci_images import a_file, an_image, archive_of, write_layout
from torpor.storage.sift import Bounds, Unfit, plain, sift, sift_layer, sift_layout

GENEROUS = 10_000_000


def sifted(data: bytes, size: int = GENEROUS, entries: int = 1000) -> tuple[list[tarfile.TarInfo], Bounds]:
    bounds, target = Bounds(size, entries), io.BytesIO()
    with plain(io.BytesIO(data)) as source:
        sift(source, target, bounds)
    target.seek(0)
    with tarfile.open(fileobj=target) as archive:
        return archive.getmembers(), bounds


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return a_file(name, type=kind, linkname=target)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (a_file("/etc/shadow", b"x"), "absolute path '/etc/shadow'"),
        (a_file("../../etc/shadow", b"x"), "leads out of its folder"),
        (a_file("a/../../b", b"x"), "leads out of its folder"),
        (link("out", "../../etc"), "leads above the root folder"),
        (link("a/b/out", "../../../x"), "leads above the root folder"),
        (link("nowhere", ""), "leads nowhere"),
        (link("hard", "/etc/shadow", tarfile.LNKTYPE), "absolute path"),
        (link("hard", "../x", tarfile.LNKTYPE), "leads out of its folder"),
        (a_file("strange", type=b"Z"), "of a kind that no disk has"),
        (a_file("sparse", type=tarfile.GNUTYPE_SPARSE), "sparse"),
        (a_file("whose", uid=2**32), "whom no system has"),
    ],
)
def test_an_archive_that_lies_is_refused_in_one_sentence(entry: tuple[tarfile.TarInfo, bytes], said: str) -> None:
    with pytest.raises(Unfit) as refused:
        sifted(archive_of(entry))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_devices_and_pipes_are_left_out_and_counted() -> None:
    found, bounds = sifted(
        archive_of(
            a_file("dev/sda", type=tarfile.BLKTYPE, devmajor=8),
            a_file("dev/mem", type=tarfile.CHRTYPE, devmajor=1, devminor=1),
            a_file("pipe", type=tarfile.FIFOTYPE),
            a_file("kept", b"x"),
        )
    )
    assert ([each.name for each in found], bounds.left_out) == (["kept"], 3)


def test_what_may_be_there_comes_out_as_it_was() -> None:
    attribute = {"SCHILY.xattr.security.capability": "abc", "SCHILY.xattr.trusted.overlay.opaque": "y"}
    found, _ = sifted(
        archive_of(
            a_file("./", type=tarfile.DIRTYPE, mode=0o755),
            a_file("./bin/su", b"program", 0o4755, uid=1, gid=2, mtime=1_000_000, pax_headers=attribute),
            link("sh", "/bin/busybox"),
            link("usr/lib", "../lib"),
            link("again", "./bin/su", tarfile.LNKTYPE),
            a_file("x" * 200 + "/\N{SNOWMAN}", b"long"),
        )
    )
    by_name = {each.name: each for each in found}
    program = by_name["bin/su"]
    assert (program.mode, program.uid, program.gid, program.mtime, program.size) == (0o4755, 1, 2, 1_000_000, 7)
    assert set(program.pax_headers) == {"SCHILY.xattr.security.capability"}
    assert [by_name[name].linkname for name in ("sh", "usr/lib", "again")] == ["/bin/busybox", "../lib", "bin/su"]
    assert "x" * 200 + "/\N{SNOWMAN}" in by_name
    assert "." in by_name


def test_files_beyond_the_disk_are_refused_by_what_they_say_before_they_are_read() -> None:
    with pytest.raises(Unfit, match="its files take more than 0 MiB"):
        sifted(archive_of(a_file("big", b"x" * 10_000)), size=8192)
    with pytest.raises(Unfit, match="more files than a disk"):
        sifted(archive_of(*(a_file(str(number)) for number in range(11))), entries=10)


def test_a_header_that_announces_gigabytes_is_refused_before_they_are_read() -> None:
    header = tarfile.TarInfo("name")
    header.type, header.size = tarfile.XHDTYPE, 1 << 40
    with pytest.raises(Unfit, match="a header of 1099511627776 bytes"):
        sifted(header.tobuf(tarfile.GNU_FORMAT) + bytes(10240))


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_compression_is_known_by_how_the_archive_begins(compress: Any) -> None:
    found, _ = sifted(compress(archive_of(a_file("a", b"x"))))
    assert [each.name for each in found] == ["a"]


def test_zstandard_is_read_and_a_broken_one_is_refused() -> None:
    data = subprocess.run(["zstd", "-qc"], input=archive_of(a_file("a", b"x")), capture_output=True, check=True).stdout
    assert [each.name for each in sifted(data)[0]] == ["a"]
    with pytest.raises((Unfit, tarfile.ReadError)):
        sifted(data[:-20])


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    for data in (b"", b"hello", b"\x1f\x8b broken", archive_of(a_file("a", bytes(5000)))[:2000]):
        with pytest.raises((tarfile.TarError, EOFError, OSError)):
            sifted(data)


def layout_of(folder: Path, out: Path, **more: Any) -> dict[str, Any]:
    write_layout(an_image(archive_of(a_file("a", b"x")), **more), folder)
    (out / "blobs" / "sha256").mkdir(parents=True)
    return sift_layout(folder, out, Bounds(GENEROUS, 100))


def test_a_layout_comes_out_plain_with_its_settings(tmp_path: Path) -> None:
    settings = layout_of(tmp_path / "in", tmp_path / "out", config={"Env": ["A=1"], "Cmd": ["run"]})
    assert settings == {"Env": ["A=1"], "Cmd": ["run"]}
    (named,) = json.loads((tmp_path / "out" / "index.json").read_text())["manifests"]
    manifest = json.loads((tmp_path / "out" / "blobs" / "sha256" / named["digest"][7:]).read_text())
    (layer,) = manifest["layers"]
    with tarfile.open(tmp_path / "out" / "blobs" / "sha256" / layer["digest"][7:]) as archive:
        assert archive.getnames() == ["a"]


def test_an_image_for_another_architecture_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="made for linux/arm64"):
        layout_of(tmp_path / "in", tmp_path / "out", architecture="arm64")


def test_a_blob_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    image = an_image(archive_of(a_file("a", b"x")))
    layout, out = write_layout(image, tmp_path / "in"), tmp_path / "out"
    (out / "blobs" / "sha256").mkdir(parents=True)
    digest = json.loads(image.text())["layers"][0]["digest"]
    (layout / "blobs" / "sha256" / digest[7:]).write_bytes(gzip.compress(archive_of(a_file("b", b"y"))))
    with pytest.raises(Unfit, match="is not what the image says"):
        sift_layout(layout, out, Bounds(GENEROUS, 100))


def test_a_layer_that_is_not_what_the_configuration_says_is_refused(tmp_path: Path) -> None:
    blob, out = tmp_path / "blob", tmp_path / "out"
    (out / "blobs" / "sha256").mkdir(parents=True)
    blob.write_bytes(archive_of(a_file("a", b"x")))
    with pytest.raises(Unfit, match="what is in the layer"):
        sift_layer(blob, out, Bounds(GENEROUS, 100), digest=None, diff_id="sha256:" + "0" * 64)


def test_a_manifest_cannot_name_a_file_outside(tmp_path: Path) -> None:
    layout, out = write_layout(an_image(archive_of()), tmp_path / "in"), tmp_path / "out"
    (out / "blobs" / "sha256").mkdir(parents=True)
    for digest in ("sha256:../../../etc/passwd", "md5:abc", "sha256:" + "g" * 64, None, 5):
        (layout / "index.json").write_text(json.dumps({"manifests": [{"digest": digest}]}))
        with pytest.raises(Unfit, match="digest"):
            sift_layout(layout, out, Bounds(GENEROUS, 100))


def test_what_comes_behind_the_end_of_an_archive_or_is_left_out_is_bounded_too(tmp_path: Path) -> None:
    blob, out = tmp_path / "blob", tmp_path / "out"
    (out / "blobs" / "sha256").mkdir(parents=True)
    pipes = archive_of(*(a_file(str(number), type=tarfile.FIFOTYPE) for number in range(500)))
    for data in (archive_of(a_file("a", b"x")) + bytes(1_000_000), pipes):
        blob.write_bytes(gzip.compress(data))
        with pytest.raises(Unfit, match="far more in it than its files"):
            sift_layer(blob, out, Bounds(8192, 10), digest=None, diff_id=None)
