"""What is sent for a build: passed on as it arrives, bounded, and gone again where the request is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from build_rig import BUILD, BUILDS, file_part, form, part, send_form
from control_rig import Rig, control_rig
from torpor import errors
from torpor.control.api import build_body

FIELDS = {"name": "tools", "dockerfile": "FROM base\nCOPY . /\n"}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as rig:
        yield rig
        # Whatever was refused has left nothing on the host.
        queued = {build.id for build in await rig.store.open_builds()}
        assert set(rig.host.builds.files) <= queued


async def test_the_files_of_a_context_arrive_under_their_paths_byte_by_byte(rig: Rig) -> None:
    content = bytes(range(256)) * 4000 + b"\r\n--" + b"\r\n"
    answer = await send_form(
        rig, form(file_part("src/app.py", content), file_part("with space/é.txt", b""), fields=FIELDS)
    )
    assert answer.status_code == 202, answer.text
    assert rig.host.builds.files[answer.json()["id"]] == {
        "context/src/app.py": content,
        "context/with space/é.txt": b"",
    }


async def test_names_that_clients_escape_arrive_as_they_were(rig: Rig) -> None:
    answer = await send_form(rig, form(file_part("a%22b", b"x"), fields=FIELDS))
    assert list(rig.host.builds.files[answer.json()["id"]]) == ['context/a"b']


async def test_beside_a_dockerfile_every_file_is_of_its_context_whatever_it_is_called(rig: Rig) -> None:
    names = ("dockerfile", "rootfs", "image", "name")
    answer = await send_form(rig, form(*(file_part(name, name) for name in names), fields=FIELDS))
    assert answer.status_code == 202, answer.text
    assert set(rig.host.builds.files[answer.json()["id"]]) == {f"context/{name}" for name in names}


@pytest.mark.parametrize(
    ("field", "path", "kind"), [("rootfs", "rootfs.tar", "rootfs"), ("image", "image.tar", "archive")]
)
async def test_an_archive_may_come_before_its_fields(rig: Rig, field: str, path: str, kind: str) -> None:
    answer = await send_form(rig, form(part(field, b"tar", filename="any"), part("name", "tools")))
    assert (answer.status_code, answer.json()["kind"]) == (202, kind)
    assert rig.host.builds.files[answer.json()["id"]] == {path: b"tar"}


async def test_a_dockerfile_may_be_sent_as_a_file(rig: Rig) -> None:
    answer = await send_form(rig, form(part("dockerfile", "FROM base", filename="Dockerfile"), part("name", "tools")))
    assert (answer.status_code, answer.json()["kind"]) == (202, "dockerfile")


async def test_thousands_of_small_files_are_taken(rig: Rig) -> None:
    answer = await send_form(rig, form(*(file_part(f"d{n % 7}/f{n}", b"x") for n in range(3000)), fields=FIELDS))
    assert answer.status_code == 202, answer.text
    assert len(rig.host.builds.files[answer.json()["id"]]) == 3000


@pytest.mark.parametrize(
    ("parts", "status", "said"),
    [
        ([file_part("../up", b"x")], 400, "'../up' is no path of a file"),
        ([file_part("/etc/passwd", b"x")], 400, "'/etc/passwd' is no path of a file"),
        ([file_part("a//b", b"x")], 400, "'a//b' is no path of a file"),
        ([file_part("a/./b", b"x")], 400, "'a/./b' is no path of a file"),
        ([file_part("x" * 1100, b"x")], 400, "is no path of a file"),
        ([file_part("a", b"1"), file_part("a", b"2")], 400, "'a' is sent twice"),
        ([file_part("a", b"1"), file_part("a/b", b"2")], 400, "'a/b' is sent twice, or is a folder too"),
        ([file_part("a/b", b"1"), file_part("a", b"2")], 400, "'a' is sent twice, or is a folder too"),
        ([file_part("a", b"1", "X-File-Mode: rwx")], 400, "X-File-Mode of 'a'"),
        ([part("name", "again")], 400, "name is given twice"),
        ([part("size_mb", "big")], 400, "size_mb has to be a valid integer"),
        ([part("build_args", "[]")], 400, "build_args has to be a JSON object"),
        ([part("force", "maybe")], 400, "force has to be a valid boolean"),
        ([part("image_ref", "x")], 400, "image_ref and dockerfile was given"),
        ([part("more", b"\xff")], 400, "have to be UTF-8"),
        ([part("", b"x")], 400, "has no name"),
        ([b"--a-line-between-parts\r\nContent-Type: text/plain\r\n\r\nx\r\n"], 400, "has no name"),
        ([part("x", "y" * 2**20)], 413, "the fields of a build may have 1048576 bytes"),
        ([part(f"f{n}", "x") for n in range(70)], 413, "more than 64 fields"),
        ([file_part("a", b"x", f"X-Long: {'x' * 9000}")], 400, "cannot be read as multipart"),
    ],
)
async def test_a_form_that_lies_is_refused_in_one_sentence(
    rig: Rig, parts: list[bytes], status: int, said: str
) -> None:
    answer = await send_form(rig, form(*parts, fields=FIELDS))
    assert (answer.status_code, answer.json()["hint"] != "") == (status, True), answer.text
    assert said in answer.json()["error"]
    assert (await rig.http.get(BUILDS)).json() == {"items": []}


async def test_bounds_of_a_context_are_said_with_the_limit(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_body, "MAX_CONTEXT_FILES", 2)
    monkeypatch.setattr(build_body, "MAX_CONTEXT_BYTES", 100)
    monkeypatch.setattr(build_body, "MAX_ARCHIVE_BYTES", 50)
    many = await send_form(rig, form(*(file_part(str(n), b"x") for n in range(3)), fields=FIELDS))
    large = await send_form(rig, form(file_part("a", b"x" * 60), file_part("b", b"x" * 60), fields=FIELDS))
    archive = await send_form(rig, form(part("rootfs", b"x" * 51, filename="r"), fields={"name": "t"}))
    assert [(one.status_code, one.json()["code"]) for one in (many, large, archive)] == [(413, "too_large")] * 3
    assert "a context may have 2 files" in many.json()["error"]
    assert "the files of a context may have 100 bytes in all" in large.json()["error"]
    assert "an archive may have 50 bytes" in archive.json()["error"]


async def test_a_host_that_refuses_a_file_is_heard(rig: Rig) -> None:
    rig.host.fail("build_file", errors.OutOfSpace("the host has no room for it"))
    answer = await send_form(rig, form(file_part("a", b"x" * 10**6), file_part("b", b"x"), fields=FIELDS))
    assert (answer.status_code, answer.json()["error"]) == (507, "the host has no room for it")


async def test_a_body_that_ends_too_early_is_refused(rig: Rig) -> None:
    whole = form(file_part("a", b"x" * 1000), fields=FIELDS)
    for length in (0, 10, 150, len(whole) - 900, len(whole) - 5):
        answer = await send_form(rig, whole[:length])
        assert answer.status_code == 400, (length, answer.text)
    assert (await rig.http.get(BUILDS)).json() == {"items": []}


async def test_a_client_that_vanishes_leaves_nothing(rig: Rig) -> None:
    arrived = asyncio.Event()

    async def breaking_off() -> AsyncIterator[bytes]:
        yield form(file_part("a", b"x" * 1000), fields=FIELDS)[:-500]
        arrived.set()
        await asyncio.Event().wait()

    sending = asyncio.create_task(send_form(rig, breaking_off()))
    await arrived.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert (await rig.http.get(BUILDS)).json() == {"items": []}
    assert rig.host.builds.files == {}


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("text/plain", b"x", "the body has to be multipart/form-data"),
        ("multipart/form-data", b"x", "has no boundary"),
        ("application/json", b"{", "the body cannot be read as JSON"),
        ("application/json", b"[1]", "the body has to be a JSON object"),
        ("application/x-www-form-urlencoded", b"name=%ff", "the body is not UTF-8"),
        ("multipart/form-data; boundary=x", b"nothing of the kind", "cannot be read as multipart/form-data"),
    ],
)
async def test_a_body_of_another_kind_is_refused(rig: Rig, kind: str, body: bytes, said: str) -> None:
    answer = await rig.http.post(BUILD, content=body, headers={"content-type": kind})
    assert answer.status_code == 400
    assert said in answer.json()["error"]


async def test_a_large_file_goes_through_in_small_pieces(rig: Rig) -> None:
    largest = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal largest
        start, end = form(part("rootfs", b"", filename="r"), fields={"name": "t"}).rsplit(b"\r\n--", 1)
        yield start
        for _ in range(200):
            yield b"x" * 65536
        yield b"\r\n--" + end

    answer = await send_form(rig, pieces())
    assert answer.status_code == 202, answer.text
    assert len(rig.host.builds.files[answer.json()["id"]]["rootfs.tar"]) == 200 * 65536


async def test_folders_are_bounded_as_files_are(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_body, "MAX_CONTEXT_FILES", 3)
    answer = await send_form(rig, form(file_part("a/b/c/d", b"x"), fields=FIELDS))
    assert (answer.status_code, answer.json()["error"]) == (413, "a context may have 3 folders")
