"""The reference of the command line as a page, made of what the program itself says in its help."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import typer.main

from torpor.cli.app import app

# Examples that are not run where the tests are, by how they begin, and why.
NOT_RUN = {
    "sudo torpor serve": "it runs until it is stopped; `torpor up` is the same in the background",
    "sudo torpor up": "a server runs already; other pages start one",
    "sudo torpor down": "the next examples need the server; other pages stop one",
    "torpor exec -it": "it wants a terminal; a test of its own has one",
    "torpor bench": "it takes minutes; a test of its own runs it",
    "torpor template build tools": "there is no such image",
    "torpor template build app": "there is no such project",
}
INTRODUCTION = """\
# The command line

`torpor` is a client of the server, and what starts and stops it. Each command tells about itself: `torpor --help`,
`torpor exec --help`.

* **ID** is a sandbox's id or its name, **SNP** a snapshot's id or name. **TIME** is a number of seconds or a length
  such as `90`, `15m`, `2h`, `7d`.
* **Results go to stdout**, everything else to stderr. `create`, `fork`, `restore`, `snapshot`, `exec -d` and `url`
  print an id or a link and nothing else when no terminal looks. `--json` prints the result for programs.
* **Options may stand anywhere**, but for `exec`: there everything from the command's first word on belongs to it.
* **Colours and moving lines** are for terminals only; `NO_COLOR` turns colours off. On a pipe nothing is cut or
  folded.
* **Ctrl-C** ends a command that `exec` waits for, and leaves alone what runs on its own. `cp` leaves no half of a
  file behind.

The examples use a sandbox named `demo`, made by `torpor create base --name demo`, and its snapshot `ready`, taken by
`torpor snapshot demo --name ready`.

## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | it did not work: a line on stderr says why, and what to do (`--json`: it is the API's error body) |
| 2 | wrong use: an unknown option, a word too many |
| 124 | a command took longer than `--timeout`, and was ended with all it started |
| 130 | Ctrl-C |
| 141 | whoever read the output closed it |
| any | of what `exec`, `attach` and `shell` ran: 127 no such command, 126 it cannot be run, 128 + n signal n |

Where several things are named, such as by `rm`, those that can be done are done, and the code is 1 if one could not.

## Environment

| variable | meaning |
|---|---|
| `TORPOR_API`, `TORPOR_API_KEY` | the server's address, and a key of it. Without them: the server on this machine |
| `TORPOR_CA_FILE` | certificates, in PEM, of who may vouch for the server |
| `TORPOR_HOME` | the data directory: `--home` stands over it |
| `NO_COLOR`, `TERM=dumb` | no colours |
| `COLUMNS` | how wide the terminal is taken to be |

What a server reads from its environment is in [operating.md](operating.md#the-server).

## Completion

`torpor --install-completion` sets up the shell you are in (bash, zsh, fish) and `torpor --show-completion` prints
what it would write. Names and ids of sandboxes, snapshots and templates complete too, while a server runs.

"""
# A bound that is there to keep numbers small enough for machines, and tells people nothing.
_UNBOUNDED = 2**31
_EXAMPLES = re.compile(r"^Examples?:\s*", re.MULTILINE)
_ITEM = re.compile(r"^(?:\* )?(?:(?P<says>[^`\n]+?):? )?`(?P<command>[^`\n]+)`", re.MULTILINE)
_DEFAULT = re.compile(r"\s*\[default: (?P<is>[^\]]+)\]")


def page() -> str:
    """Return the page."""
    sections = list(_panels(typer.main.get_command(app)))
    lines = [INTRODUCTION, "## Commands", ""]
    for panel, commands in sections:
        lines += [f"**{panel}**", ""]
        lines += [f"* [`{path}`](#{path.replace(' ', '-')}) {_first(command)}" for path, command in commands]
        lines.append("")
    for _, commands in sections:
        for path, command in commands:
            lines += list(_section(path, command))
    return "\n".join(lines).rstrip() + "\n"


def commands() -> list[tuple[str, Any]]:
    """Return every command as it is called, `torpor create`, and itself."""
    return [pair for _, pairs in _panels(typer.main.get_command(app)) for pair in pairs]


def examples_of(command: Any) -> list[tuple[str, str]]:
    """Return the examples in a command's help: what is typed, and a word about it."""
    return _told(command.help or "")[1]


def _panels(root: Any) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Yield each panel of the help with its commands, those of a group after the group."""
    panels: dict[str, list[tuple[str, Any]]] = {}
    for name, command in root.commands.items():
        if not command.hidden:
            panels.setdefault(command.rich_help_panel, []).extend(_below(f"torpor {name}", command))
    yield from panels.items()


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _below(f"{path} {name}", below)


def _section(path: str, command: Any) -> Iterator[str]:
    about, examples = _told(command.help or "")
    yield from (f"### {path}", "", "```text", " ".join([path, *_usage(command)]), "```", "", about, "")
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    if arguments:
        yield from ("| argument | meaning |", "|---|---|")
        yield from (f"| `{_name(param)}` | {_meaning(param)} |" for param in arguments)
        yield ""
    if options:
        yield from ("| option | meaning |", "|---|---|")
        yield from (f"| {_spelling(param)} | {_meaning(param)} |" for param in options)
        yield ""
    for reason, some in groupby(examples, lambda example: _why_not(example[0])):
        yield from (f"```console no-run: {reason}" if reason else "```console", *_shown(some), "```", "")


def _usage(command: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        yield command.subcommand_metavar or "COMMAND [ARGS]..."
        return
    if any(param.param_type_name == "option" and not param.hidden for param in command.params):
        yield "[OPTIONS]"
    for param in command.params:
        if param.param_type_name == "argument":
            name = _name(param)
            many = "..." if param.nargs != 1 and not name.endswith("...") else ""
            yield f"{name}{many}" if param.required else f"[{name}]{many}"


def _told(help: str) -> tuple[str, list[tuple[str, str]]]:
    """Return what a help text says, and its examples: a command and a word about it each."""
    about, *rest = _EXAMPLES.split(help, maxsplit=1)
    found = [(match["command"], match["says"] or "") for text in rest for match in _ITEM.finditer(text)]
    return about.strip(), found


def _why_not(command: str) -> str | None:
    return next((reason for beginning, reason in NOT_RUN.items() if command.startswith(beginning)), None)


def _shown(examples: Iterable[tuple[str, str]]) -> Iterator[str]:
    examples = list(examples)
    width = max(len(command) for command, _ in examples)
    for command, says in examples:
        yield f"$ {command.ljust(width)}    # {says}" if says else f"$ {command}"


def _first(command: Any) -> str:
    return " ".join(_told(command.help or "")[0].split("\n\n")[0].split())


def _name(param: Any) -> str:
    return str(param.metavar or param.name.upper()).strip("[]")


def _spelling(param: Any) -> str:
    words = ", ".join(f"`{word}`" for word in [*param.opts, *param.secondary_opts])
    return words if param.is_flag else f"{words} `{param.metavar or _kind(param)}`"


def _kind(param: Any) -> str:
    return {int: "N", float: "NUMBER", Path: "PATH"}.get(param.type_descriptor.annotation, "TEXT")


def _meaning(param: Any) -> str:
    text = " ".join((param.help or "").split())
    told = _DEFAULT.search(text)
    text = _DEFAULT.sub("", text)
    default = told["is"] if told else _default(param)
    parts = [
        text,
        _range(param),
        f"Default: {default}." if default else "",
        f"`{param.envvar}` sets it too." if param.envvar else "",
    ]
    return " ".join(part for part in parts if part).replace("|", "\\|")


def _range(param: Any) -> str:
    least, most = getattr(param, "min", None), getattr(param, "max", None)
    if least is None:
        return ""
    return f"From {least} to {most}." if most is not None and most < _UNBOUNDED else f"At least {least}."


def _default(param: Any) -> str:
    if not param.show_default or getattr(param, "is_flag", False) or param.default in (None, [], ()):
        return ""
    return f"`{param.default}`"
