"""What may stand in a file of the repository, and what the documents promise about it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from torpor.wire.errors import STATUS, every_error

ROOT = Path(__file__).resolve().parents[2]

# Where packages come from is the business of the machine's own settings (apt, pip), so no registry is named.
REGISTRIES = re.compile(
    r"(?:pypi|pythonhosted|npmjs|docker|quay|ghcr|gcr|crates)\.(?:org|io|com|dev)\b|(?:deb|security|ftp)\.debian\.org|archive\.ubuntu\.com",
    re.IGNORECASE,
)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:|#)([^)#\s]+)[^)]*\)")


def repository_files() -> list[Path]:
    """Return the files that are tracked, or would be if they were added."""
    answer = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = [name.decode() for name in answer.stdout.split(b"\0") if name]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def text_of(file: Path) -> str:
    return file.read_bytes().decode(errors="replace")


def test_no_file_holds_a_path_of_the_machine_it_was_written_on() -> None:
    assert [str(file) for file in repository_files() if f"{ROOT}/" in text_of(file)] == []


def test_no_file_names_a_package_registry() -> None:
    found = {
        str(file.relative_to(ROOT)): match[0]
        for file in repository_files()
        if (match := REGISTRIES.search(text_of(file)))
    }
    assert found == {}


def test_no_large_file_is_in_the_repository() -> None:
    assert [str(file) for file in repository_files() if file.stat().st_size > 512 * 1024] == []


def test_every_link_between_the_documents_leads_somewhere() -> None:
    pages = [file for file in repository_files() if file.suffix == ".md"]
    assert pages
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in LINK.findall(text_of(page))
        if not (page.parent / target).exists()
    ]
    assert dead == []


def test_the_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    named = set(re.findall(r"^\$ make ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_every_error_has_a_status_and_the_table_names_nothing_else() -> None:
    assert set(every_error()) == set(STATUS)


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [cls.code for cls in every_error()]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("cls", list(every_error()), ids=lambda cls: cls.__name__)
def test_the_page_on_errors_lists(cls: type) -> None:
    code, status = cls.code, STATUS[cls]  # type: ignore[attr-defined]
    page = (ROOT / "docs" / "errors.md").read_text()
    assert re.search(rf"`{cls.__name__}`.*\| `{code}` \| {status} ", page), f"{cls.__name__}, `{code}`, {status}"
