"""Files and folders: what is sent, and that no name of the guest's leads out of the local folder."""

from __future__ import annotations

import io
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest

from scripted_server import VIEW, Reply, Script, answer, refusal, streamed
from torpor import AsyncSandbox, InvalidRequest, NotFound, OutcomeUnknown, OutOfSpace, Sandbox
from torpor.sdk.body import PIECE_BYTES, Piece
from torpor.sdk.results import SandboxInfo
from torpor.wire.public import SandboxView

INFO = SandboxInfo.of(SandboxView.model_validate(VIEW))
WRITTEN = answer({"path": "/x", "bytes": 1})


def entry(path: str, **more: object) -> dict[str, object]:
    plain: dict[str, object] = {"is_dir": False, "size": 1, "mode": 0o640, "mtime": 0, "user": "root", "group": "root"}
    return {"name": path.rsplit("/", 1)[-1], "path": path, **plain, **more}


def listing(*entries: dict[str, object]) -> Reply:
    return streamed(*(json.dumps(one).encode() + b"\n" for one in entries))


def write(data: object, **options: object) -> Script:
    script = Script([WRITTEN])
    with script.client() as client:
        Sandbox(client, INFO).filesystem.write("/x", data, **options)  # type: ignore[arg-type]
    return script


def download(script: Script, target: Path, remote: str = "/src") -> None:
    with script.client() as client:
        Sandbox(client, INFO).filesystem.download(remote, target)


def pieces() -> Iterator[Piece]:
    yield b"one "
    yield bytearray(b"two ")
    yield "drei é"


@pytest.mark.parametrize(
    ("data", "sent"),
    [
        ("text é", "text é".encode()),
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        (b"", b""),
        ("", b""),
        (io.BytesIO(b"file"), b"file"),
        (io.StringIO("text file"), b"text file"),
        (pieces(), "one two drei é".encode()),
        (b"x" * (2 * PIECE_BYTES + 1), b"x" * (2 * PIECE_BYTES + 1)),
    ],
    ids=["text", "bytes", "bytearray", "memoryview", "no bytes", "no text", "file", "text file", "iterator", "large"],
)
def test_whatever_is_written_arrives_byte_for_byte(data: object, sent: bytes) -> None:
    assert write(data).received[0].body == sent


async def test_an_asynchronous_iterator_can_be_written_asynchronously() -> None:
    async def later() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    script = Script([WRITTEN])
    async with script.async_client() as client:
        await AsyncSandbox(client, INFO).filesystem.write("/x", later())
    assert script.received[0].body == b"ab"
    with Script([]).client() as client_, pytest.raises(InvalidRequest, match="AsyncSandbox"):
        Sandbox(client_, INFO).filesystem.write("/x", later())  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [5, None, [1, 2], [None]])
def test_what_is_no_data_is_refused(data: object) -> None:
    with Script([]).client() as client, pytest.raises(InvalidRequest, match=r"cannot be written|has to consist"):
        Sandbox(client, INFO).filesystem.write("/x", data)  # type: ignore[arg-type]


def test_mode_and_owner_are_sent_in_octal_and_by_name() -> None:
    query = write(b"x", mode=0o640, user="worker").received[0].query
    assert query == {"path": "/x", "mode": "640", "user": "worker"}


@pytest.mark.parametrize("path", ["relative", "", "./x", "/a\0b", "/a\udcff", 5])
def test_a_path_that_is_not_absolute_is_refused_before_anything_is_sent(path: str) -> None:
    with Script([]).client() as client, pytest.raises((InvalidRequest, TypeError)):
        Sandbox(client, INFO).filesystem.read(path)


@pytest.mark.parametrize("mode", [-1, 0o10000, "644"])
def test_a_mode_that_is_no_permission_bits_is_refused(mode: int) -> None:
    with Script([]).client() as client, pytest.raises(InvalidRequest, match="0o644"):
        Sandbox(client, INFO).filesystem.mkdir("/x", mode=mode)


def test_exists_tells_a_missing_file_from_a_missing_sandbox() -> None:
    script = Script(
        [refusal(NotFound("no file")), answer(VIEW), refusal(NotFound("no file")), refusal(NotFound("gone"))]
    )
    with script.client() as client:
        files = Sandbox(client, INFO).filesystem
        assert not files.exists("/x")
        with pytest.raises(NotFound, match="gone"):
            files.exists("/x")


def test_a_download_replaces_the_file_whole_or_leaves_it(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    broken: list[Reply | BaseException] = [answer(entry("/f")), *[streamed(b"new", breaks=httpx2.ReadError("cut"))] * 4]
    with pytest.raises(OutcomeUnknown):
        download(Script(broken), target, "/f")
    assert (target.read_text(), os.listdir(tmp_path)) == ("old", ["file"])
    download(
        Script([answer(entry("/f")), streamed(b"ne", breaks=httpx2.ReadError("cut")), streamed(b"new")]), target, "/f"
    )
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("new", 0o640)
    assert os.listdir(tmp_path) == ["file"]


def test_a_download_into_an_open_file_is_not_begun_twice() -> None:
    sink = io.BytesIO()
    script = Script([streamed(b"half", breaks=httpx2.ReadError("cut"))])
    with script.client() as client, pytest.raises(OutcomeUnknown):
        Sandbox(client, INFO).filesystem.download("/f", sink)


def test_a_folder_is_downloaded_with_its_modes(tmp_path: Path) -> None:
    found = listing(
        entry("/src/sub", is_dir=True, mode=0o500), entry("/src/sub/a", mode=0o4755), entry("/src/b", mode=0o600)
    )
    download(Script([answer(entry("/src", is_dir=True)), found, streamed(b"a"), streamed(b"b")]), tmp_path / "out")
    out = tmp_path / "out"
    assert {p.relative_to(out).as_posix() for p in out.rglob("*")} == {"sub", "sub/a", "b"}
    assert [(out / name).stat().st_mode & 0o7777 for name in ("sub", "sub/a", "b")] == [0o700, 0o755, 0o600]


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/src",
        "/src/",
        "/src/../x",
        "/src/a/../../x",
        "/src//x",
        "/src/.",
        "/srcx/a",
        "/src/a\0b",
        "src/a",
    ],
)
@pytest.mark.parametrize("is_dir", [False, True])
def test_a_hostile_name_writes_nothing(tmp_path: Path, path: str, is_dir: bool) -> None:
    target = tmp_path / "deep" / "out"
    found = listing(entry(path, is_dir=is_dir))
    with pytest.raises(InvalidRequest, match="not inside"):
        download(Script([answer(entry("/src", is_dir=True)), found]), target)
    assert [p.name for p in tmp_path.rglob("*")] == ["deep", "out"]


def test_a_link_that_stands_in_the_local_folder_does_not_lead_a_download_out(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    target = tmp_path / "out"
    target.mkdir()
    (target / "sub").symlink_to(outside)
    for found in ([entry("/src/sub/a")], [entry("/src/sub", is_dir=True)]):
        with pytest.raises(InvalidRequest, match="is a link"):
            download(Script([answer(entry("/src", is_dir=True)), listing(*found)]), target)
    assert list(outside.iterdir()) == []


def test_a_file_replaces_a_local_link_and_leaves_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    target = tmp_path / "out"
    target.mkdir()
    (target / "a").symlink_to(tmp_path / "precious")
    download(Script([answer(entry("/src", is_dir=True)), listing(entry("/src/a")), streamed(b"theirs")]), target)
    assert ((tmp_path / "precious").read_text(), (target / "a").read_text()) == ("mine", "theirs")


def test_links_are_followed_to_files_and_otherwise_left_out_and_named(tmp_path: Path) -> None:
    names = ("to-file", "to-folder", "to-nothing")
    found = listing(*(entry(f"/src/{name}", is_symlink=True, mode=0o777) for name in names))
    replies = [streamed(b"x"), refusal(InvalidRequest("a folder")), refusal(NotFound("nothing"))]
    script = Script([answer(entry("/src", is_dir=True)), found, *replies])
    with script.client() as client:
        moved = Sandbox(client, INFO).filesystem.download("/src", tmp_path / "out")
    assert (moved.files, moved.bytes, moved.skipped) == (1, 1, ("/src/to-folder", "/src/to-nothing"))
    assert (tmp_path / "out" / "to-file").stat().st_mode & 0o777 == 0o644
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())


def test_a_folder_is_uploaded_parents_first_with_links_as_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir(mode=0o750)
    (tmp_path / "sub" / "a").write_text("aa")
    (tmp_path / "to-file").symlink_to("sub/a")
    (tmp_path / "to-folder").symlink_to("sub")
    (tmp_path / "to-nothing").symlink_to("nowhere")
    (tmp_path / "sub" / "a").chmod(0o755)
    made = Reply(204)
    script = Script([made, made, answer({"path": "", "bytes": 2}), answer({"path": "", "bytes": 2})])
    with script.client() as client:
        moved = Sandbox(client, INFO).filesystem.upload(tmp_path, "/work/", user="worker")
    assert (moved.files, moved.bytes, set(moved.skipped)) == (2, 4, {"to-folder", "to-nothing"})
    sent = [(one.method, one.query["path"], one.query.get("mode"), one.query["user"]) for one in script.received]
    assert sent[:2] == [("POST", "/work/", None, "worker"), ("POST", "/work/sub", "750", "worker")]
    assert set(sent[2:]) == {("PUT", "/work/sub/a", "755", "worker"), ("PUT", "/work/to-file", "755", "worker")}


def test_what_is_neither_file_nor_folder_is_not_sent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with Script([Reply(204)]).client() as client, pytest.raises(InvalidRequest, match="neither a file nor a folder"):
        Sandbox(client, INFO).filesystem.upload(tmp_path, "/work")


def test_a_missing_local_file_is_a_plain_oserror(tmp_path: Path) -> None:
    with Script([]).client() as client, pytest.raises(FileNotFoundError):
        Sandbox(client, INFO).filesystem.upload(tmp_path / "nowhere", "/x")


def test_a_full_disk_in_the_guest_is_told_as_such() -> None:
    with Script([refusal(OutOfSpace("the disk is full"))]).client() as client, pytest.raises(OutOfSpace, match="full"):
        Sandbox(client, INFO).filesystem.write("/x", b"x")


def test_a_copy_tells_what_was_moved_so_far(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    large = tmp_path / "tree" / "large"
    large.parent.mkdir()
    large.write_bytes(b"x" * (2 * PIECE_BYTES))
    (tmp_path / "tree" / "more").write_bytes(b"y" * 10)
    sizes = [answer({"path": "/x", "bytes": size}) for size in (2 * PIECE_BYTES, 10)]
    script = Script([Reply(204, (b"",)), *sizes, listing(entry("/src/a")), streamed(b"z" * PIECE_BYTES, b"z")])
    script.answers.insert(3, answer(entry("/src", is_dir=True)))
    with script.client() as client:
        files = Sandbox(client, INFO).filesystem
        files.upload(tmp_path / "tree", "/dst", on_progress=lambda moved: told.append((moved.files, moved.bytes)))
        assert told == [
            (0, PIECE_BYTES),
            (0, 2 * PIECE_BYTES),
            (1, 2 * PIECE_BYTES),
            (1, 2 * PIECE_BYTES + 10),
            (2, 2 * PIECE_BYTES + 10),
        ]
        told.clear()
        files.download("/src", tmp_path / "back", on_progress=lambda moved: told.append((moved.files, moved.bytes)))
    assert told == [(0, PIECE_BYTES), (1, PIECE_BYTES + 1)]


async def test_the_async_twin_moves_files_too(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"up" * PIECE_BYTES)
    script = Script([answer({"path": "/x", "bytes": 1}), answer(entry("/f")), streamed(b"down")])
    async with script.async_client() as client:
        files = AsyncSandbox(client, INFO).filesystem
        await files.upload(tmp_path / "a", "/x")
        assert (await files.download("/f", tmp_path / "b")).bytes == 4
    assert script.received[0].body == b"up" * PIECE_BYTES
    assert (tmp_path / "b").read_text() == "down"
