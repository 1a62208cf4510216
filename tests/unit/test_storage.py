from __future__ import annotations

from pathlib import Path

import pytest

from frozen_parts import BASE, a_template, publish_template
from torpor.errors import Failed, NotFound, SnapshotCorrupt, Unsupported
from torpor.model.ids import TemplateName
from torpor.storage.debian import sources_of
from torpor.storage.frozen import MANIFEST, MEMORY, STATE
from torpor.storage.images import Images, digest_of, digest_of_folder
from torpor.storage.kernel import in_loading_order
from torpor.storage.layout import Layout
from torpor.storage.programs import use
from torpor.storage.templates import Templates


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "home")
    made.make()
    return made


def break_manifest(layout: Layout) -> None:
    manifest = Templates(layout).path(BASE) / MANIFEST
    manifest.chmod(0o600)
    manifest.write_text("{")


def test_the_data_directory_is_for_its_owner_only(layout: Layout) -> None:
    for folder in (layout.home, layout.images, layout.templates, layout.snapshots, layout.sandboxes):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_with_a_volume_what_shares_blocks_is_in_it_and_the_rest_beside_it(tmp_path: Path) -> None:
    layout = Layout(tmp_path, volume_limit=1)
    assert {layout.templates.parent, layout.snapshots.parent, layout.sandboxes.parent} == {tmp_path / "volume"}
    assert {layout.images.parent, layout.logs.parent, layout.lock.parent} == {tmp_path}


def test_sources_are_the_host_s_own_release_its_updates_and_security_only() -> None:
    targets = """\
Debian|http://mirror.example/debian/|trixie|main
Debian|http://mirror.example/debian/|trixie-updates|main
Debian|http://mirror.example/debian/|trixie-backports|main
Debian|http://mirror.example/debian-security/|trixie-security|main
Debian|http://mirror.example/debian/|sid|main
Vendor|http://vendor.example/apt/|trixie|main
W: Target Packages is configured multiple times
"""
    keyring = Path("/keys/debian.gpg")
    assert sources_of("trixie", targets, keyring) == (
        "deb [signed-by=/keys/debian.gpg] http://mirror.example/debian/ trixie main",
        "deb [signed-by=/keys/debian.gpg] http://mirror.example/debian/ trixie-updates main",
        "deb [signed-by=/keys/debian.gpg] http://mirror.example/debian-security/ trixie-security main",
    )
    assert sources_of("bookworm", targets, None) == ()


def test_modules_are_loaded_after_what_they_depend_on(tmp_path: Path) -> None:
    depends = {"virtio_blk": b"virtio,virtio_ring", "virtio_ring": b"virtio", "virtio": b"", "other": b""}
    modules = {}
    for name, needed in depends.items():
        modules[name] = tmp_path / f"{name}.ko"
        modules[name].write_bytes(b"elf\0license=GPL\0depends=" + needed + b"\0name=x\0")
    order = [path.stem for path in in_loading_order(["virtio_blk"], modules)]
    assert order == ["virtio", "virtio_ring", "virtio_blk"]
    with pytest.raises(Failed, match="no module virtio_net"):
        in_loading_order(["virtio-net"], modules)


def test_equal_inputs_have_equal_digests_and_others_do_not() -> None:
    assert digest_of("a", {"b": 1, "c": 2}) == digest_of("a", {"c": 2, "b": 1})
    assert digest_of("a", 1) != digest_of("a", 2)
    assert digest_of(["ab", "c"]) != digest_of(["a", "bc"])


def test_a_folder_s_digest_follows_its_sources_only(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    before = digest_of_folder(tmp_path)
    (tmp_path / "a.pyc").write_text("2")
    assert digest_of_folder(tmp_path) == before
    (tmp_path / "a.py").write_text("2")
    assert digest_of_folder(tmp_path) != before


async def test_an_image_is_made_once_and_one_that_fails_is_not_there(layout: Layout) -> None:
    images, made = Images(layout), []

    async def make(into: Path) -> None:
        made.append(into.name)
        (into / "root.img").write_text(str(len(made)))

    async def fail(into: Path) -> None:
        (into / "half").write_text("half")
        raise Failed("no")

    assert await images.ensure("root-1", make)
    assert not await images.ensure("root-1", make)
    assert len(made) == 1
    assert (images.path("root-1") / "root.img").stat().st_mode & 0o777 == 0o400
    assert await images.ensure("root-1", make, again=True)
    assert (images.path("root-1") / "root.img").read_text() == "2"
    with pytest.raises(Failed):
        await images.ensure("root-2", fail)
    assert [entry.name for entry in layout.images.iterdir()] == ["root-1"]


async def test_images_that_nothing_names_are_collected(layout: Layout) -> None:
    images = Images(layout)

    async def make(into: Path) -> None:
        (into / "file").touch()

    for name in ("root-1", "root-2"):
        await images.ensure(name, make)
    assert images.collect({"root-2"}) == ["root-1"]
    assert [entry.name for entry in layout.images.iterdir()] == ["root-2"]


def test_a_published_template_is_read_back_as_it_was_written(layout: Layout) -> None:
    written = publish_template(layout)
    templates = Templates(layout)
    assert templates.open(BASE).template == written == templates.get(BASE)
    assert templates.names() == [BASE]
    assert written.size_bytes >= 3 * 4096
    assert (templates.path(BASE) / MEMORY).stat().st_mode & 0o777 == 0o400


def test_a_template_that_is_not_there_is_named_with_those_that_are(layout: Layout) -> None:
    publish_template(layout)
    templates = Templates(layout)
    with pytest.raises(NotFound, match=r"no template 'other' \(there is: base\)"):
        templates.open(TemplateName("other"))
    with pytest.raises(NotFound, match="no template"):
        templates.open(TemplateName("../base"))
    with pytest.raises(NotFound, match="no template"):
        templates.remove(TemplateName("other"))


def test_a_removed_template_is_gone(layout: Layout) -> None:
    publish_template(layout)
    Templates(layout).remove(BASE)
    assert Templates(layout).names() == []
    assert list(layout.templates.iterdir()) == []


def test_a_template_that_lost_a_file_is_refused_by_name(layout: Layout) -> None:
    publish_template(layout)
    (Templates(layout).path(BASE) / STATE).unlink()
    with pytest.raises(SnapshotCorrupt, match="lacks its file 'state'"):
        Templates(layout).open(BASE)


def test_a_damaged_template_does_not_hide_the_others(layout: Layout) -> None:
    publish_template(layout)
    publish_template(layout, a_template("other"))
    break_manifest(layout)
    assert [template.name for template in Templates(layout).all()] == ["other"]
    assert Templates(layout).names() == ["base", "other"]


def test_a_damaged_template_can_be_removed(layout: Layout) -> None:
    publish_template(layout)
    break_manifest(layout)
    Templates(layout).remove(BASE)
    assert list(layout.templates.iterdir()) == []


async def test_a_program_that_is_missing_is_named_with_its_package_and_one_that_fails_with_its_last_words() -> None:
    with pytest.raises(Unsupported, match="torpor-no-such-program is not installed") as caught:
        await use(["torpor-no-such-program"], "some-package", "nothing was made")
    assert caught.value.hint == "install the package some-package"
    with pytest.raises(Failed, match=r"^nothing was made: the disk is upside down$"):
        await use(["sh", "-c", "echo trying; echo the disk is upside down; exit 3"], "dash", "nothing was made")
