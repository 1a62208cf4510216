"""Which files of a build context a COPY brings, and what a .dockerignore leaves out."""

from __future__ import annotations

import random
import tarfile
import time
from pathlib import Path

import pytest

from torpor.errors import InvalidRequest
from torpor.host.building.context import Context, pack
from torpor.model.patterns import Ignored, matcher
from torpor.model.steps import CopyStep


def copy(*sources: str, to: str = "/into/", mode: int | None = None, unpacks: bool = False) -> CopyStep:
    return CopyStep(3, "COPY", sources, to, None, mode, unpacks)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.txt", "b.txt", "src/main.py", "src/deep/more.py", "node_modules/x/y.js", ".env", "notes.md"):
        path = tmp_path / "context" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "context"


def targets(folder: Path, step: CopyStep) -> list[str]:
    return [each.target for each in Context(folder).brought(step) if each.source.is_file()]


def test_a_file_a_folder_s_content_and_a_pattern_s_matches_are_brought(folder: Path) -> None:
    assert targets(folder, copy("a.txt", to="/x")) == ["/x"]
    assert targets(folder, copy("a.txt")) == ["/into/a.txt"]
    assert targets(folder, copy("src", to="/x")) == ["/x/deep/more.py", "/x/main.py"]
    assert targets(folder, copy("*.txt")) == ["/into/a.txt", "/into/b.txt"]
    assert targets(folder, copy("./src/*.py")) == ["/into/main.py"]
    assert "/into/src/deep/more.py" in targets(folder, copy("."))


@pytest.mark.parametrize("source", ["missing", "*.rs", "src/[", "/missing"])
def test_what_is_not_there_is_refused_with_the_line(folder: Path, source: str) -> None:
    with pytest.raises(InvalidRequest, match="Dockerfile, line 3"):
        Context(folder).brought(copy(source))
    with pytest.raises(InvalidRequest, match="line 3"):
        Context(None).brought(copy("a.txt"))


def test_links_in_a_context_are_nothing_at_all(folder: Path) -> None:
    (folder / "out").symlink_to("/etc")
    (folder / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(InvalidRequest, match="not in the context"):
        Context(folder).brought(copy("passwd"))
    assert not [each for each in targets(folder, copy(".")) if "passwd" in each or "out" in each]


def test_what_is_ignored_is_not_brought_by_its_folder_nor_by_its_name(folder: Path) -> None:
    (folder / ".dockerignore").write_text("# comment\nnode_modules\n.env\n**/*.md\nsrc\n!src/deep\n")
    found = targets(folder, copy("."))
    assert "/into/src/deep/more.py" in found
    assert not {"/into/.env", "/into/notes.md", "/into/src/main.py", "/into/node_modules/x/y.js"} & set(found)
    with pytest.raises(InvalidRequest, match="leaves it out"):
        Context(folder).brought(copy(".env"))


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("a", "a", True),
        ("a", "a/b", True),
        ("/a", "a", True),
        ("a", "b/a", False),
        ("**/a", "b/c/a", True),
        ("**/a", "a", True),
        ("*.o", "x.o", True),
        ("*.o", "d/x.o", False),
        ("d/**", "d/e/f", True),
        ("x?z", "xyz", True),
        ("x?z", "x/z", False),
        ("[a-c]x", "bx", True),
        ("[!a-c]x", "bx", False),
        ("a\\*", "a*", True),
        ("a\\*", "ab", False),
        ("./a/../b", "b", True),
    ],
)
def test_a_pattern_of_a_dockerignore(pattern: str, path: str, matches: bool) -> None:
    assert Ignored(pattern).ignores(path) is matches


def test_a_pattern_with_an_open_class_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="without its ]"):
        matcher("a[b")


def test_what_is_brought_is_root_s_with_its_own_mode_or_the_one_asked_for(folder: Path, tmp_path: Path) -> None:
    (folder / "run.sh").write_text("x")
    (folder / "run.sh").chmod(0o755)
    pack(Context(folder).brought(copy("run.sh", "a.txt")), None, tmp_path / "one.tar")
    pack(Context(folder).brought(copy("run.sh", "src", mode=0o640)), 0o640, tmp_path / "two.tar")
    with tarfile.open(tmp_path / "one.tar") as archive:
        assert [(each.name, each.mode, each.uid) for each in archive] == [
            ("into/run.sh", 0o755, 0),
            ("into/a.txt", 0o644, 0),
        ]
    with tarfile.open(tmp_path / "two.tar") as archive:
        modes = {each.name: each.mode for each in archive}
    assert (modes["into/run.sh"], modes["into/main.py"], modes["into/deep"]) == (0o640, 0o640, 0o750)


def test_only_an_archive_that_is_added_is_unpacked(folder: Path) -> None:
    with tarfile.open(folder / "stuff.tgz", "w:gz") as archive:
        archive.add(folder / "a.txt", "a.txt")
    (added,) = Context(folder).brought(copy("stuff.tgz", to="/x", unpacks=True))
    (copied,) = Context(folder).brought(copy("stuff.tgz", to="/x"))
    (plain,) = Context(folder).brought(copy("a.txt", to="/x", unpacks=True))
    assert [(each.unpacks, each.target) for each in (added, copied, plain)] == [
        (True, "/x/"),
        (False, "/x"),
        (False, "/x"),
    ]


def test_the_digest_is_of_names_modes_and_content(folder: Path) -> None:
    before = Context(folder).digest(copy("src"))
    assert Context(folder).digest(copy("src")) == before
    (folder / "src" / "main.py").chmod(0o700)
    changed = Context(folder).digest(copy("src"))
    (folder / "src" / "main.py").write_text("other")
    assert len({before, changed, Context(folder).digest(copy("src"))}) == 3


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern of `*`, `**` and plain characters matches, by trying everything."""
    if not pattern:
        return not path
    if pattern.startswith("**/"):
        rest = path
        while not matches(pattern[3:], rest):
            _, slash, rest = rest.partition("/")
            if not slash:
                return False
        return True
    if pattern.startswith("**"):
        return any(matches(pattern[2:], path[at:]) for at in range(len(path) + 1))
    if pattern.startswith("*"):
        return any(matches(pattern[1:], path[at:]) for at in range(len(path.partition("/")[0]) + 1))
    return path[:1] == pattern[0] and matches(pattern[1:], path[1:])


def test_patterns_mean_the_same_as_when_everything_is_tried() -> None:
    chance = random.Random(7)
    for _ in range(4000):
        parts = [chance.choice(["**", "a", "b", "*", "a*", "*b", "*a*b", "ab", "a*b*"]) for _ in range(4)]
        pattern = "/".join(parts[: chance.randint(1, 4)])
        path = "/".join("".join(chance.choices("ab", k=chance.randint(1, 4))) for _ in range(chance.randint(1, 4)))
        assert (matcher(pattern).fullmatch(path) is not None) is matches(pattern, path), (pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("*a" * 40 + "b", "a" * 200), ("**/a/" * 40 + "b", "a/" * 200 + "c"), ("**a" * 40 + "b", "a" * 200)],
)
def test_a_pattern_that_means_harm_is_answered_soon(pattern: str, path: str) -> None:
    began = time.process_time()
    assert matcher(pattern).fullmatch(path) is None
    assert time.process_time() - began < 5  # trying everything would take longer than anybody lives


def test_a_copy_of_everything_without_a_context_is_refused_with_the_line(tmp_path: Path) -> None:
    for folder in (None, tmp_path / "none"):
        with pytest.raises(InvalidRequest, match=r"line 3: '\.' is not in the context"):
            Context(folder).brought(copy("."))


def test_a_step_that_names_everything_again_and_again_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="line 3: more than 20000"):
        Context(folder).brought(copy(*["."] * 10_000))


def test_a_dockerignore_that_is_too_long_makes_no_sense(folder: Path) -> None:
    (folder / ".dockerignore").write_text("a" * 300_000)
    with pytest.raises(ValueError, match="more than 262144 bytes"):
        Context(folder)
