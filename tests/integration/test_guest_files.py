"""Files under the real agent, as an ordinary process of this machine."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from guest_agent import Agent, get, put, run, running_agent
from torpor import errors
from torpor.guest.client import Guest
from torpor_guest import protocol
from torpor_guest.names import to_text

MIB = 1024 * 1024
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    async with running_agent(tmp_path, cgroups=False) as agent:
        yield agent


@pytest.fixture
async def guest(agent: Agent) -> AsyncIterator[Guest]:
    async with await agent.connect() as guest:
        yield guest


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that every user can reach."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


async def test_pieces_of_every_size_arrive_exactly(guest: Guest, place: Path) -> None:
    data = os.urandom(MIB)
    for size in (1, 4095, 12_288, 32_755, 32_756, 65_536, 300_001):
        count = MIB if size > 1 else 3000

        async def chunks(size: int = size, count: int = count) -> AsyncIterator[bytes]:
            for start in range(0, count, size):
                yield data[start : min(start + size, count)]

        assert await guest.write(f"{place}/file", chunks()) == count
        assert (place / "file").read_bytes() == data[:count]
        assert await get(guest, f"{place}/file") == data[:count]


async def test_200_mb_up_and_down_in_bounded_memory(guest: Guest, agent: Agent, place: Path) -> None:
    block, sums = os.urandom(MIB), (hashlib.sha256(), hashlib.sha256())

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(200):
            sums[0].update(block)
            yield block

    await guest.stat("/")
    before = agent.peak_kib()
    assert await guest.write(f"{place}/big", chunks()) == 200 * MIB
    async with guest.read(f"{place}/big") as pieces:
        async for piece in pieces:
            sums[1].update(piece)
    assert sums[0].digest() == sums[1].digest()
    assert agent.peak_kib() - before < 4096


async def test_a_reader_sees_the_old_or_the_new_file_while_two_write(guest: Guest, place: Path) -> None:
    path, stop, seen = place / "file", threading.Event(), set[bytes]()
    contents = [letter * 600_000 for letter in (b"a", b"b", b"c")]
    path.write_bytes(contents[0])

    def read_on() -> None:
        while not stop.is_set():
            seen.add(path.read_bytes())

    async def write_on(content: bytes) -> None:
        for _ in range(25):
            await put(guest, str(path), content)

    reader = asyncio.create_task(asyncio.to_thread(read_on))
    try:
        await asyncio.gather(write_on(contents[1]), write_on(contents[2]))
    finally:
        stop.set()
        await reader
    assert seen <= set(contents)
    assert names_in(place) == ["file"]


async def test_an_upload_whose_line_is_taken_over_leaves_nothing(agent: Agent, place: Path) -> None:
    (place / "file").write_bytes(b"old")
    request = {"op": "write", "path": f"{place}/file"}
    half = protocol.frame(1, protocol.DATA, protocol.INPUT, b"new" * 5000)
    for cut in (1, protocol.HEADER_SIZE, 9000, len(half) - 1, len(half)):
        async with await agent.connect() as first:
            await first.ping()
        loop = asyncio.get_running_loop()
        agent.sock.setblocking(False)
        # The former connection's calls had the number 1, so this begins where a second call would.
        opening = protocol.message(3, protocol.OPEN, request)
        await loop.sock_sendall(agent.sock, opening + half.replace(half[:4], b"\0\0\0\3", 1)[:cut])
        async with await agent.connect() as second:
            assert await get(second, f"{place}/file") == b"old"
            assert names_in(place) == ["file"]


async def test_links_are_written_through_and_described_but_not_followed(guest: Guest, place: Path) -> None:
    (place / "folder").mkdir()
    (place / "folder/real").write_bytes(b"old")
    (place / "link").symlink_to("folder/real")
    (place / "to-link").symlink_to(place / "link")
    (place / "dangling").symlink_to("made/later")
    (place / "to-folder").symlink_to("folder")
    (place / "circle").symlink_to("circle")
    await put(guest, f"{place}/to-link", b"new")
    await put(guest, f"{place}/dangling", b"later")
    assert (place / "folder/real").read_bytes() == b"new"
    assert (place / "made/later").read_bytes() == b"later"
    assert (place / "to-link").is_symlink()
    entry = await guest.stat(f"{place}/to-folder")
    assert (entry.is_dir, entry.is_symlink, entry.link_target) == (False, True, "folder")
    assert [item.name for item in await guest.list(f"{place}/to-folder")] == ["real"]
    with pytest.raises(errors.InvalidRequest, match="circle"):
        await put(guest, f"{place}/circle", b"")
    async with guest.walk(str(place)) as entries:
        paths = [item.path.removeprefix(f"{place}/") async for item in entries]
    assert paths == [
        "circle",
        "dangling",
        "folder",
        "folder/real",
        "link",
        "made",
        "made/later",
        "to-folder",
        "to-link",
    ]


async def test_removing_a_tree_removes_links_but_not_what_they_lead_to(guest: Guest, place: Path) -> None:
    (place / "kept").mkdir()
    (place / "kept/file").touch()
    deep = place / "tree"
    for number in range(40):
        deep = deep / f"level-{number}"
    deep.mkdir(parents=True)
    for number in range(200):
        (deep / f"file-{number}").touch()
    (deep / "link").symlink_to(place / "kept")
    (place / "to-tree").symlink_to("tree")
    await guest.remove(f"{place}/to-tree", recursive=True)
    assert (place / "tree").is_dir()
    await guest.remove(f"{place}/tree", recursive=True)
    assert names_in(place) == ["kept"]
    assert names_in(place / "kept") == ["file"]
    for path in ("/", "//", "/.", f"{place}/kept/..", f"{place}/."):
        with pytest.raises(errors.InvalidRequest, match="cannot be removed"):
            await guest.remove(path, recursive=True)


async def test_names_that_are_no_utf8_come_and_go_as_text(guest: Guest, place: Path) -> None:
    odd = [b"plain", b"new\nline", b"\xff\xfe", "\u00e4\u65e5\U0010fe80".encode(), b"\xed\xb2\x80", b"q\"'\\"]
    for name in odd:
        Path(os.fsdecode(os.fsencode(place) + b"/" + name)).write_bytes(name)
    listed = await guest.list(str(place))
    assert [entry.name for entry in listed] == [to_text(name) for name in sorted(odd)]
    for entry, name in zip(listed, sorted(odd), strict=True):
        assert await get(guest, entry.path) == name
        await guest.rename(entry.path, entry.path + "-moved")
        await guest.remove(entry.path + "-moved")
    assert names_in(place) == []


async def test_what_is_no_regular_file_is_refused_at_once(guest: Guest, place: Path) -> None:
    os.mkfifo(place / "fifo")
    for path in (f"{place}/fifo", "/dev/zero", "/dev/null"):
        with pytest.raises(errors.InvalidRequest, match="not a file"):
            await get(guest, path)
        with pytest.raises(errors.InvalidRequest, match="not a file"):
            await put(guest, path, b"x")
    assert b"VmRSS" in await get(guest, "/proc/self/status")


async def test_errors_have_the_right_branch_and_a_sentence(guest: Guest, place: Path) -> None:
    (place / "file").touch()
    (place / "folder").mkdir()
    (place / "folder/inside").touch()
    cases = [
        (get(guest, f"{place}/file/below"), errors.InvalidRequest, "is a file, not a folder"),
        (put(guest, f"{place}/file/below", b""), errors.InvalidRequest, "is a file, not a folder"),
        (guest.mkdir(f"{place}/file/below"), errors.Conflict, "exists already"),
        (guest.stat(f"{place}/" + "x" * 300), errors.InvalidRequest, "too long"),
        (guest.stat("/" + "x/" * 2500), errors.InvalidRequest, "longer than"),
        (guest.stat("/nul\0"), errors.InvalidRequest, "NUL"),
        (guest.rename(f"{place}/file", f"{place}/folder"), errors.InvalidRequest, "folder"),
        (guest.rename(f"{place}/folder", f"{place}/file"), errors.InvalidRequest, "file"),
        (guest.rename(f"{place}/file", f"{place}/none/x"), errors.NotFound, "none"),
        (guest.rename(f"{place}/file", "/proc/x"), errors.Unsupported, "another file system"),
        (guest.remove(f"{place}/folder"), errors.Conflict, "not empty"),
        (guest.list(f"{place}/file"), errors.InvalidRequest, "no folder"),
        (put(guest, "/", b""), errors.InvalidRequest, "folder"),
        (put(guest, f"{place}/x", b"", mode=0o10000), errors.InvalidRequest, "mode"),
        (put(guest, f"{place}/x", b"", user="no-such-user"), errors.InvalidRequest, "no user"),
    ]
    for ask, expected, sentence in cases:
        with pytest.raises(expected, match=sentence):
            await ask
    assert names_in(place) == ["file", "folder"]


async def test_a_disk_that_takes_no_more_is_told_and_nothing_is_left(agent: Agent, guest: Guest, place: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * MIB

    (place / "file").write_bytes(b"old")
    # A limit on the size of files is met like a full disk, without filling one.
    resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (3 * MIB, 3 * MIB))
    with pytest.raises(errors.OutOfSpace):
        await guest.write(f"{place}/file", endless())
    assert (place / "file").read_bytes() == b"old"
    assert names_in(place) == ["file"]


async def test_existing_files_keep_mode_and_owner_and_new_ones_are_the_user_s(guest: Guest, place: Path) -> None:
    old = place / "old"
    old.write_bytes(b"1")
    old.chmod(0o4751)
    await put(guest, str(old), b"2")
    assert (old.read_bytes(), stat.S_IMODE(old.stat().st_mode)) == (b"2", 0o4751)
    await guest.mkdir(f"{place}/made", mode=0o1777)
    assert stat.S_IMODE((place / "made").stat().st_mode) == 0o1777


@as_root
async def test_a_file_of_another_user_stays_his(guest: Guest, place: Path) -> None:
    his = place / "his"
    his.write_bytes(b"1")
    os.chown(his, 65534, 65534)
    await put(guest, str(his), b"2")
    assert (his.stat().st_uid, his.stat().st_gid) == (65534, 65534)
    await put(guest, str(his), b"3", user="root", mode=0o640)
    assert (his.stat().st_uid, stat.S_IMODE(his.stat().st_mode)) == (0, 0o640)


@as_root
async def test_with_a_user_everything_is_done_with_his_rights(guest: Guest, place: Path) -> None:
    (place / "secret").write_bytes(b"s")
    (place / "secret").chmod(0o600)
    (place / "closed").mkdir(mode=0o700)
    (place / "open").mkdir()
    (place / "open").chmod(0o777)
    (place / "open/roots").write_bytes(b"r")
    who = {"user": "nobody"}
    refused = [
        get(guest, f"{place}/secret", **who),
        put(guest, f"{place}/secret", b"x", **who),
        put(guest, f"{place}/new", b"x", **who),
        put(guest, f"{place}/new/deep", b"x", **who),
        put(guest, f"{place}/open/roots", b"x", **who),
        put(guest, f"{place}/open/roots", b"x", append=True, **who),
        guest.stat(f"{place}/closed/x", **who),
        guest.list(f"{place}/closed", **who),
        guest.mkdir(f"{place}/new", user="nobody"),
        guest.remove(f"{place}/secret", user="nobody"),
        guest.rename(f"{place}/secret", f"{place}/open/x", **who),
    ]
    for ask in refused:
        with pytest.raises(errors.Forbidden):
            await ask
    await put(guest, f"{place}/open/a/b/his", b"h", mode=0o640, **who)
    for path in ("a", "a/b", "a/b/his"):
        assert (place / "open" / path).stat().st_uid == 65534
    entry = await guest.stat(f"{place}/open/a/b/his")
    assert (entry.user, entry.mode) == ("nobody", 0o640)
    assert (place / "open/roots").read_bytes() == b"r"
    assert (await run(guest, "id", "-u")).stdout == b"0\n"
    assert names_in(place) == ["closed", "open", "secret"]


async def test_large_transfers_do_not_hold_up_small_calls(guest: Guest, place: Path) -> None:
    """While a download nobody reads and an upload nobody feeds are under way, everything else is served."""
    (place / "big").write_bytes(bytes(5 * MIB))
    go = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"first"
        await go.wait()
        yield b"last"

    upload = asyncio.create_task(guest.write(f"{place}/slow", slow()))
    async with guest.read(f"{place}/big") as pieces:
        first = await anext(pieces)
        for _ in range(50):
            await guest.stat(f"{place}/big")
            await put(guest, f"{place}/small", b"x" * 1000)
        assert len(first) + sum([len(piece) async for piece in pieces]) == 5 * MIB
    go.set()
    assert await upload == 9


async def test_a_large_listing_is_complete(guest: Guest, place: Path) -> None:
    for number in range(3000):
        (place / f"{number:05d}-{'x' * 100}").touch()
    assert [entry.name[:5] for entry in await guest.list(str(place))] == [f"{number:05d}" for number in range(3000)]
    async with guest.walk(str(place)) as entries:
        assert (await anext(entries)).name.startswith("00000")
    await guest.ping()
