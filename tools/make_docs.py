"""Make the pages of the documentation that say what the program says: docs/cli.md and docs/http.md.

python tools/make_docs.py            write them
python tools/make_docs.py --check    write nothing; exit 1 and name the pages that are not what would be written
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import cli_reference
import http_reference

DOCS = Path(__file__).resolve().parent.parent / "docs"
_NOTE = "<!-- Made by tools/make_docs.py of what the program says: change it there, and make it anew. -->\n\n"
_PAGES = {"cli.md": cli_reference.page, "http.md": http_reference.page}


def made() -> dict[Path, str]:
    """Return each page's text by its path."""
    return {DOCS / name: _NOTE + page() for name, page in _PAGES.items()}


def stale() -> list[str]:
    """Return the names of the pages that are not what would be written."""
    return [path.name for path, text in made().items() if not path.exists() or path.read_text() != text]


def main() -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    if not parser.parse_args().check:
        for path, text in made().items():
            path.write_text(text)
        return 0
    if names := stale():
        sys.stderr.write(f"{', '.join(names)}: not what the program says. Run tools/make_docs.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
