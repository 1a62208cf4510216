"""What the documentation shows to be run, taken from its pages.

A fenced block says by the first word after its fence what it is:

    python            a program of its own
    python continued  goes on where the program before it on the page ended
    console           lines that begin with `$ ` are commands, the others what they print; all of a page are one session
    json, sh, text    to be read, not run

and `no-run: reason` after that word says why it is not run where the tests are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = frozenset({"python", "console", "json", "sh", "text"})
RUN = frozenset({"python", "console"})
PROMPT = "$ "
_FENCE = re.compile(r"^(?P<fence>```+)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced block. `line` is the number of its first line of text in its page."""

    page: str
    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        """The first word after the fence."""
        return self.info.split(" ", 1)[0]

    @property
    def continues(self) -> bool:
        """Whether it goes on where the block of its language before it ended."""
        return self.info.split()[1:2] == ["continued"]

    @property
    def reason(self) -> str | None:
        """Why it is not run; None if it is."""
        return self.info.partition("no-run:")[2].strip() or None

    def __str__(self) -> str:
        """Return where it stands."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command of a console block, the lines that are shown as what it prints, and where it stands."""

    text: str
    shown: tuple[str, ...]
    line: int


def pages() -> list[Path]:
    """Return the pages of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples/README.md"]


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    text = page.read_text()
    name = str(page.relative_to(ROOT))
    found = list(_FENCE.finditer(text))
    return [Block(name, text.count("\n", 0, one.start()) + 2, one["info"].strip(), one["text"]) for one in found]


def programs_of(page: Path) -> list[list[Block]]:
    """Return the Python of a page that is run: each program with the blocks that continue it."""
    programs: list[list[Block]] = []
    for block in blocks_of(page):
        if block.language != "python" or block.reason:
            continue
        if block.continues:
            programs[-1].append(block)
        else:
            programs.append([block])
    return programs


def source_of(program: Sequence[Block]) -> str:
    """Return a program's text with its lines where they stand in the page, so that a traceback says where."""
    lines: list[str] = []
    for block in program:
        lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n"


def session_of(page: Path) -> list[Command]:
    """Return the commands of a page's console blocks, in order."""
    told = (block for block in blocks_of(page) if block.language == "console" and not block.reason)
    return [command for block in told for command in commands_of(block)]


def commands_of(block: Block) -> Iterator[Command]:
    """Yield the commands of a console block. A line that ends in a backslash goes on in the next."""
    lines = block.text.splitlines()
    at = 0
    while at < len(lines):
        begin = at
        text = lines[at].removeprefix(PROMPT)
        assert lines[at].startswith(PROMPT), f"{block.page}:{block.line + at}: a console block begins with a command"
        while text.endswith("\\"):
            at += 1
            text += "\n" + lines[at].removeprefix("> ")
        at += 1
        shown = []
        while at < len(lines) and not lines[at].startswith(PROMPT):
            shown.append(lines[at])
            at += 1
        yield Command(text, tuple(shown), block.line + begin)


def code_in(page: Path) -> Iterator[str]:
    """Yield what is set as code in the running text of a page."""
    yield from _CODE.findall(_FENCE.sub("", page.read_text()))
