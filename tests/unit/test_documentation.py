"""The documentation says what is run of it, and what it says of the program is so."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import cli_reference
import http_reference
import make_docs
from doc_pages import LANGUAGES, PROMPT, ROOT, RUN, Block, blocks_of, code_in, pages
from http_examples import EXAMPLES
from http_examples import NOT_RUN as ENDPOINTS_NOT_RUN
from torpor.cli.app import app
from torpor.control.api.app import create_app
from torpor.control.api.meanings import FIELDS
from torpor.control.hosts import HostClient
from torpor.control.service.plane import plane_of
from torpor.kit.clock import SystemClock
from torpor.testing.host import FakeHost
from torpor.testing.store import MemoryStore

# Why blocks are not run, by page: whoever adds a reason says so here too.
NOT_RUN = {
    "README.md": {"CI runs it by itself"},
    "docs/cli.md": set(cli_reference.NOT_RUN.values()),
    "docs/http.md": set(ENDPOINTS_NOT_RUN.values()),
    "docs/templates.md": {
        "a bake takes minutes",
        "needs a registry, and files that are not here",
        "there is no build of this id here",
        "there is no such project here",
    },
}
BLOCKS = [block for page in pages() for block in blocks_of(page)]


@pytest.fixture(scope="module")
def described() -> Any:
    """What the server serves at /openapi.json."""
    return create_app(plane_of(MemoryStore(), HostClient(FakeHost().transport()), SystemClock()), "key").openapi()


def test_every_block_says_what_it_is() -> None:
    assert [f"{block}: {problem}" for block in BLOCKS for problem in flaws_of(block)] == []


def flaws_of(block: Block) -> Iterator[str]:
    """Yield what is wrong with how a block begins."""
    if block.language not in LANGUAGES:
        yield f"the fence says {block.info!r}"
    if "no-run" in block.info and (block.language not in RUN or not block.reason):
        yield "`no-run: reason` is for what would be run"
    if block.language == "console" and not block.text.startswith(PROMPT):
        yield "a console block begins with a command"


def test_what_is_not_run_is_known_and_has_a_reason() -> None:
    found: dict[str, set[str]] = {}
    for block in BLOCKS:
        if block.reason:
            found.setdefault(block.page, set()).add(block.reason)
    assert found == NOT_RUN


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_text_exist_with_their_options(page: Path) -> None:
    spoken = [code for code in code_in(page) if re.match(r"(sudo )?torpor( |$)", code)]
    assert [problem for code in spoken for problem in problems_of(code)] == []


def problems_of(code: str) -> Iterator[str]:
    """Yield what is wrong with a command line: a command or an option that is not there."""
    command: Any = typer.main.get_command(app)
    words = shlex.split(code.removeprefix("sudo "), comments=True)[1:]
    for word in words:
        if word.startswith("-"):
            known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
            letters = [f"-{letter}" for letter in word[1:]] if not word.startswith("--") else []
            if word.split("=")[0] not in known | {"--help", "-h", "--"} and not known.issuperset(letters or [word]):
                yield f"{code}: {command.name} has no option {word}"
        elif word in getattr(command, "commands", {}):
            command = command.commands[word]
        elif command.name == "torpor" and word != "COMMAND":
            yield f"{code}: there is no command {word}"
        elif command.name == "exec":
            return  # the rest may be the command's own
        elif command.name == "snapshot":
            command = command.commands["take"]  # which need not be said


def test_pages_that_are_made_are_up_to_date() -> None:
    assert make_docs.stale() == [], "run tools/make_docs.py"


def test_every_command_has_an_example_of_itself() -> None:
    for path, command in cli_reference.commands():
        examples = [example for example, _ in cli_reference.examples_of(command)]
        if not hasattr(command, "commands"):
            assert any(path.removesuffix(" take") in example for example in examples), f"{path} has none"


def test_every_endpoint_has_an_example_and_no_other_is_shown(described: Any) -> None:
    assert sorted(http_reference.endpoints_of(described)) == sorted(EXAMPLES)


def test_every_field_and_parameter_has_a_meaning(described: Any) -> None:
    fields = {
        f"{model}.{name}": field.get("description")
        for model, schema in described["components"]["schemas"].items()
        for name, field in schema.get("properties", {}).items()
    }
    parameters = {
        f"{method} {path} {one['name']}": one.get("description")
        for path, operations in described["paths"].items()
        for method, operation in operations.items()
        for one in operation.get("parameters", ())
    }
    assert [name for name, meaning in {**fields, **parameters}.items() if not meaning] == []


def test_no_meaning_is_given_for_a_field_that_is_not_there(described: Any) -> None:
    bodies = [
        content["schema"]
        for operations in described["paths"].values()
        for operation in operations.values()
        for content in operation.get("requestBody", {}).get("content", {}).values()
    ]
    schemas = {**described["components"]["schemas"], **{body["title"]: body for body in bodies if "title" in body}}
    names = {f"{model}.{name}" for model, schema in schemas.items() for name in schema.get("properties", {})}
    known = names | {name.partition(".")[2] for name in names}
    assert [name for name in FIELDS if name not in known] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/README.md").read_text()
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if f"({page.name})" not in index]
    assert missing == ["README.md"]
