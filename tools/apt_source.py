"""Apt's source entries: read them in both of their forms, and write the one for the backports suite.

The new entry is the system's own entry for its release with another suite, so a mirror, a proxy's address or a keyring
that the system was set up with is used here too, and no host name is written down.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

HEADER = "# Made by Torpor's tools/setup from this system's own entry: QEMU is newer there. Safe to remove with it.\n"

# What apt.conf's one-line options are called in the other form, where it is not the same name.
_LONG_NAMES = {"arch": "Architectures", "lang": "Languages", "target": "Targets"}
_ONE_LINE = re.compile(
    r"(?P<type>deb|deb-src)\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<rest>.*)"
)
_REPLACED = {"types", "uris", "suites", "components", "enabled", "x-repolib-name"}


@dataclass(frozen=True)
class Entry:
    """One stanza or line. `options` are its other fields: their names in a `.sources` file, values as written there."""

    types: tuple[str, ...]
    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: dict[str, str] = field(default_factory=dict)


def read_all(folder: Path) -> list[Entry]:
    """Return every enabled entry of an apt configuration folder (`/etc/apt`), in the order in which apt reads them."""
    files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    found: list[Entry] = []
    for file in files:
        if file.is_file() and file.suffix in (".list", ".sources"):
            read = read_stanzas if file.suffix == ".sources" else read_lines
            found.extend(read(file.read_text(errors="surrogateescape")))
    return found


def read_lines(text: str) -> Iterator[Entry]:
    """Yield the entries of a `.list` file: `deb [option=value ...] URI SUITE COMPONENT...`."""
    for line in text.splitlines():
        match = _ONE_LINE.fullmatch(line.partition("#")[0].strip())
        if match:
            yield Entry(
                types=(match["type"],),
                uris=(match["uri"],),
                suites=(match["suite"],),
                components=tuple(match["rest"].split()),
                options=dict(_long_option(word) for word in (match["options"] or "").split() if "=" in word),
            )


def read_stanzas(text: str) -> Iterator[Entry]:
    """Yield the enabled entries of a `.sources` file: stanzas of `Field: value`, values going on in indented lines."""
    without_comments = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n(?:[ \t]*\n)+", without_comments):
        fields = _fields(stanza)
        by_name = {name.lower(): value for name, value in fields.items()}
        if "uris" in by_name and by_name.get("enabled", "yes").strip().lower() not in ("no", "false", "off", "0"):
            yield Entry(
                types=tuple(by_name.get("types", "").split()),
                uris=tuple(by_name["uris"].split()),
                suites=tuple(by_name.get("suites", "").split()),
                components=tuple(by_name.get("components", "").split()),
                options={name: value for name, value in fields.items() if name.lower() not in _REPLACED},
            )


def provides(entries: Iterable[Entry], suite: str) -> bool:
    """Tell whether one of the entries already gives packages of `suite`."""
    return any("deb" in entry.types and suite in entry.suites for entry in entries)


def backports_stanza(entries: Iterable[Entry], codename: str) -> str | None:
    """Return the text of a `.sources` file for `<codename>-backports`, or None if no entry gives the release itself.

    The first entry for the suite `codename` is the model; its discs (`cdrom:`) are left out.
    """
    for entry in entries:
        uris = [uri for uri in entry.uris if not uri.startswith("cdrom:")]
        if "deb" in entry.types and codename in entry.suites and uris:
            lines = [
                "Types: deb",
                f"URIs: {' '.join(uris)}",
                f"Suites: {codename}-backports",
                f"Components: {' '.join(entry.components)}",
                *(f"{name}: {value}" for name, value in entry.options.items()),
            ]
            return HEADER + "\n".join(lines) + "\n"
    return None


def _fields(stanza: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line[:1] in (" ", "\t"):
            if name:
                fields[name] += "\n" + line
        elif ":" in line:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
    return fields


def _long_option(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    name = name.rstrip("+-")
    long_name = _LONG_NAMES.get(name) or "-".join(part.capitalize() for part in name.split("-"))
    return long_name, value.replace(",", " ")
