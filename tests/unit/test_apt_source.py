"""The backports entry is the system's own entry with another suite."""

from __future__ import annotations

from pathlib import Path

import apt_source
from apt_source import HEADER, backports_stanza, provides, read_all, read_lines, read_stanzas

STANZAS = """\
# made by the installer
Types: deb deb-src
URIs: http://mirror.example/debian http://second.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/some-keyring.gpg
Check-Valid-Until: no

Types: deb
# a comment inside
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/some-keyring.gpg
"""


def test_a_stanza_keeps_addresses_components_and_options_and_changes_the_suite() -> None:
    assert backports_stanza(read_stanzas(STANZAS), "bookworm") == HEADER + (
        "Types: deb\n"
        "URIs: http://mirror.example/debian http://second.example/debian\n"
        "Suites: bookworm-backports\n"
        "Components: main contrib\n"
        "Signed-By: /usr/share/keyrings/some-keyring.gpg\n"
        "Check-Valid-Until: no\n"
    )


def test_a_line_becomes_a_stanza_with_its_options_renamed() -> None:
    text = (
        "# deb cdrom:[Debian 12] bookworm main\n"
        "deb [ arch=amd64,i386 signed-by=/etc/key.gpg trusted=yes ] https://m.example/debian/ bookworm main extra # x\n"
        "deb-src https://mirror.example/debian bookworm main\n"
    )
    assert backports_stanza(read_lines(text), "bookworm") == HEADER + (
        "Types: deb\n"
        "URIs: https://m.example/debian/\n"
        "Suites: bookworm-backports\n"
        "Components: main extra\n"
        "Architectures: amd64 i386\n"
        "Signed-By: /etc/key.gpg\n"
        "Trusted: yes\n"
    )


def test_a_line_without_options_is_read() -> None:
    entry = next(read_lines("deb http://mirror.example/debian bookworm main\n"))
    assert (entry.uris, entry.suites, entry.components) == (("http://mirror.example/debian",), ("bookworm",), ("main",))
    assert entry.options == {}


def test_a_key_written_into_the_stanza_stays_whole() -> None:
    text = "Types: deb\nURIs: http://m.example\nSuites: bookworm\nComponents: main\nSigned-By:\n --KEY--\n .\n abc\n"
    stanza = backports_stanza(read_stanzas(text), "bookworm")
    assert stanza is not None
    assert stanza.endswith("Signed-By: \n --KEY--\n .\n abc\n")


def test_discs_other_suites_sources_only_and_disabled_entries_are_no_model() -> None:
    text = (
        "Types: deb-src\nURIs: http://a.example\nSuites: bookworm\nComponents: main\n\n"
        "Types: deb\nURIs: cdrom:[Disc]/\nSuites: bookworm\nComponents: main\n\n"
        "Enabled: no\nTypes: deb\nURIs: http://b.example\nSuites: bookworm\nComponents: main\n\n"
        "Types: deb\nURIs: http://c.example\nSuites: trixie\nComponents: main\n"
    )
    assert backports_stanza(read_stanzas(text), "bookworm") is None


def test_what_is_written_is_read_back_as_the_suite(tmp_path: Path) -> None:
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (folder / "debian.sources").write_text(STANZAS)
    (folder / "old.sources.disabled").write_text(STANZAS.replace("bookworm", "bullseye"))
    (tmp_path / "sources.list").write_text("deb http://mirror.example/extra bookworm extra\n")
    before = read_all(tmp_path)
    assert [entry.suites[0] for entry in before] == ["bookworm", "bookworm", "bookworm-security"]
    assert not provides(before, "bookworm-backports")

    stanza = backports_stanza(before, "bookworm")
    assert stanza is not None
    (folder / "torpor-backports.sources").write_text(stanza)
    after = read_all(tmp_path)
    assert provides(after, "bookworm-backports")
    assert backports_stanza(after, "bookworm") == stanza


def test_the_module_writes_no_host_name_of_its_own() -> None:
    assert "://" not in Path(apt_source.__file__).read_text()
