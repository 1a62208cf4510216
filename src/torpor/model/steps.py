"""What a Dockerfile comes to: the steps that are to be taken in a guest, with every variable in its place."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torpor.errors import InvalidRequest
from torpor.model.dockerfile import Dockerfile, Instruction, refused
from torpor.model.substitution import MOST_CHARACTERS, BadWord, Words
from torpor.model.template import Defaults

_VARIABLE = re.compile(r"[^=\s]+")
_MODE = re.compile(r"[0-7]{1,4}")
_OWNER = re.compile(r"[A-Za-z0-9._-]{1,64}(?::[A-Za-z0-9._-]{1,64})?")
# By what a command runs that is one string.
SHELL = ("/bin/sh", "-c")
SCRATCH = "scratch"


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run `words`, with `env` beside what `defaults` give."""

    line: int
    shown: str
    words: tuple[str, ...]
    env: Mapping[str, str]
    defaults: Defaults


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Bring files of the context that match `sources` to `target`, an absolute path; with a slash at its end, a folder.

    `owner`: `user` or `user:group` (None: root). `mode`: for all files and folders (None: their own). `unpacks`: a
    source that is a tar archive is unpacked there instead (ADD).
    """

    line: int
    shown: str
    sources: tuple[str, ...]
    target: str
    owner: str | None
    mode: int | None
    unpacks: bool


@dataclass(frozen=True, slots=True)
class FolderStep:
    """Make a folder, if it is not there (WORKDIR)."""

    line: int
    shown: str
    path: str


Step = RunStep | CopyStep | FolderStep


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps, in order, and what the image says of commands after them.

    `starts`: the Dockerfile has a command of its own (ENTRYPOINT or CMD).
    """

    steps: tuple[Step, ...]
    defaults: Defaults
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    starts: bool

    @property
    def start(self) -> tuple[str, ...]:
        """The words of the command that the Dockerfile has of its own; a shell's entry point takes no others."""
        if not self.starts:
            return ()
        return self.entrypoint if self.entrypoint[: len(SHELL)] == SHELL else (*self.entrypoint, *self.command)


@dataclass(frozen=True, slots=True)
class Ground:
    """What a Dockerfile begins with: the settings of what its FROM names."""

    defaults: Defaults
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def base_of(file: Dockerfile, arguments: Mapping[str, str]) -> str:
    """Return what FROM names. Raises InvalidRequest, also for arguments that no ARG of the file asks for."""
    _check_arguments(file, arguments)
    base = file.base
    if (platform := base.flags.get("platform")) not in {None, "linux/amd64"}:
        raise refused(base.line, f"FROM --platform={platform} is not known here; guests are linux/amd64")
    words = _words(base, _arguments(file.before, arguments, file.escape), file.escape)
    if len(words) == 3 and words[1].upper() == "AS":
        words = words[:1]
    if len(words) != 1 or not words[0]:
        raise refused(base.line, "FROM names one template or image")
    return words[0]


def _check_arguments(file: Dockerfile, arguments: Mapping[str, str]) -> None:
    asked = {each.rest.partition("=")[0].strip() for each in (*file.before, *file.after) if each.name == "ARG"}
    if unknown := sorted(set(arguments) - asked):
        raise InvalidRequest(f"no ARG of the Dockerfile is called {unknown[0][:100]!r}")


def _arguments(instructions: tuple[Instruction, ...], given: Mapping[str, str], escape: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in instructions:
        name, value = _argument(each, found, escape)
        if (chosen := given.get(name, value)) is not None:
            found[name] = chosen
    return found


def _argument(said: Instruction, variables: Mapping[str, str], escape: str) -> tuple[str, str | None]:
    words = _words(said, variables, escape)
    name, equals, value = words[0].partition("=") if words else ("", "", "")
    if len(words) != 1 or not _VARIABLE.fullmatch(name):
        raise refused(said.line, "ARG is NAME or NAME=value")
    return name, value if equals else None


def plan(file: Dockerfile, arguments: Mapping[str, str], ground: Ground) -> Plan:
    """Return what a Dockerfile comes to, on what its FROM names. Raises InvalidRequest, with the line."""
    planner = _Planner(file, arguments, ground)
    for said in file.after:
        planner.take(said)
    return planner.plan()


class _Planner:
    """Goes through the instructions, and keeps what earlier ones have set."""

    def __init__(self, file: Dockerfile, arguments: Mapping[str, str], ground: Ground) -> None:
        self._given, self._escape = arguments, file.escape
        self._before = _arguments(file.before, arguments, file.escape)
        self._arguments: dict[str, str] = {}
        self._defaults = ground.defaults
        self._entrypoint, self._command = ground.entrypoint, ground.command
        self._enters = self._commands = False
        self._steps: list[Step] = []

    def take(self, said: Instruction) -> None:
        """Take one instruction into account."""
        {
            "ADD": self._copy,
            "ARG": self._arg,
            "CMD": self._cmd,
            "COPY": self._copy,
            "ENTRYPOINT": self._enter,
            "ENV": self._env,
            "RUN": self._run,
            "USER": self._user,
            "WORKDIR": self._workdir,
        }[said.name](said)

    def plan(self) -> Plan:
        """Return what all of it comes to."""
        return Plan(tuple(self._steps), self._defaults, self._entrypoint, self._command, self._enters or self._commands)

    @property
    def _variables(self) -> dict[str, str]:
        return {**self._arguments, **self._defaults.env}

    def _run(self, said: Instruction) -> None:
        words = said.words or (*SHELL, said.rest)
        unset = {name: value for name, value in self._arguments.items() if name not in self._defaults.env}
        self._steps.append(RunStep(said.line, str(said), words, unset, self._defaults))

    def _copy(self, said: Instruction) -> None:
        words = _words(said, self._variables, self._escape)
        if len(words) < 2:
            raise refused(said.line, f"{said.name} needs one source or more, and where to bring them")
        *sources, target = words
        for source in sources:
            self._check_source(said, source)
        if len(sources) > 1 and not target.endswith("/"):
            raise refused(said.line, f"{said.name} brings several files to {target!r}, which has to end with a slash")
        owner, mode = self._flag(said, "chown", _OWNER), self._flag(said, "chmod", _MODE)
        bits = None if mode is None else int(mode, 8)
        path = self._inside(target) + ("/" if target.endswith("/") or target in {".", "./"} else "")
        step = CopyStep(said.line, str(said), tuple(sources), path, owner, bits, said.name == "ADD")
        self._steps.append(step)

    def _check_source(self, said: Instruction, source: str) -> None:
        if re.match(r"[a-z][a-z0-9+.-]*://|git@", source, re.IGNORECASE):
            raise refused(said.line, f"{said.name} from {source[:100]!r} is not known here", "fetch it with a RUN")
        if ".." in source.split("/"):
            raise refused(said.line, f"{said.name} of {source[:100]!r} leads out of the context")

    def _flag(self, said: Instruction, name: str, form: re.Pattern[str]) -> str | None:
        value = said.flags.get(name)
        if value is None:
            return None
        value = self._word(said, value)
        if not form.fullmatch(value):
            raise refused(said.line, f"{said.name} --{name}={value[:60]} makes no sense")
        return value

    def _env(self, said: Instruction) -> None:
        name, _, value = said.rest.partition(" ")
        if "=" not in name:  # the old form: one variable, and all that follows
            if not value.strip():
                raise refused(said.line, f"ENV gives {name[:60]!r} no value")
            self._set_env(said, {name: self._word(said, value.strip())})
            return
        pairs: dict[str, str] = {}
        for word in _words(replace(said, words=None), self._variables, self._escape):
            name, equals, value = word.partition("=")
            if not equals:
                raise refused(said.line, f"ENV has {word[:60]!r}, which is no NAME=value")
            pairs[name] = value
        self._set_env(said, pairs)

    def _set_env(self, said: Instruction, pairs: Mapping[str, str]) -> None:
        for name in pairs:
            if not _VARIABLE.fullmatch(name):
                raise refused(said.line, f"ENV has the name {name[:60]!r}, which no variable can have")
        env = {**self._defaults.env, **pairs}
        if sum(len(name) + len(value) for name, value in env.items()) > MOST_CHARACTERS:
            raise refused(said.line, f"ENV makes the variables longer than {MOST_CHARACTERS} characters in all")
        self._defaults = replace(self._defaults, env=env)

    def _arg(self, said: Instruction) -> None:
        name, value = _argument(said, self._variables, self._escape)
        chosen = self._given.get(name, self._before.get(name) if value is None else value)
        if chosen is not None:
            self._arguments[name] = chosen

    def _workdir(self, said: Instruction) -> None:
        path = self._inside(self._word(said, said.rest))
        self._defaults = replace(self._defaults, cwd=path)
        self._steps.append(FolderStep(said.line, str(said), path))

    def _inside(self, path: str) -> str:
        """Return a path as an absolute one, from the working folder on."""
        whole = posixpath.normpath(posixpath.join(self._defaults.cwd or "/", path))
        return "/" + whole.lstrip("/")

    def _user(self, said: Instruction) -> None:
        user = self._word(said, said.rest)
        if not _OWNER.fullmatch(user):
            raise refused(said.line, f"USER {user[:60]!r} is no name or number of a user")
        self._defaults = replace(self._defaults, user=user)

    def _enter(self, said: Instruction) -> None:
        if not self._commands:  # what the base has for a command was meant for its own entry point
            self._command = ()
        self._entrypoint = said.words or (*SHELL, said.rest)
        self._enters = True

    def _cmd(self, said: Instruction) -> None:
        self._command = said.words or (*SHELL, said.rest)
        self._commands = True

    def _word(self, said: Instruction, text: str) -> str:
        try:
            return Words(self._variables, self._escape).whole(text)
        except BadWord as error:
            raise refused(said.line, f"{said.name}: {error}") from error


def _words(said: Instruction, variables: Mapping[str, str], escape: str) -> list[str]:
    """Return an instruction's words, with variables in their place."""
    reader = Words(variables, escape)
    try:
        return reader.split(said.rest) if said.words is None else [reader.whole(word) for word in said.words]
    except BadWord as error:
        raise refused(said.line, f"{said.name}: {error}") from error
