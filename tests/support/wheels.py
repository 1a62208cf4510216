"""A package with many files, and pip in one file, for guests that have neither an index nor pip."""

from __future__ import annotations

import zipfile
from importlib.metadata import distribution
from pathlib import Path

_INFO = "many-1.0.dist-info"


def a_wheel(folder: Path, *, files: int) -> Path:
    """Make the package `many`: `many.text(n)` returns what its n-th file holds, `files` of them."""
    wheel = folder / "many-1.0-py3-none-any.whl"
    source = "from pathlib import Path\n\ndef text(n):\n    return (Path(__file__).parent / f'{n}.txt').read_text()\n"
    content = {f"many/{number}.txt": f"{number} " * (100 + number) for number in range(files)}
    content["many/__init__.py"] = source
    content[f"{_INFO}/METADATA"] = "Metadata-Version: 2.1\nName: many\nVersion: 1.0\n"
    content[f"{_INFO}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
        archive.writestr(f"{_INFO}/RECORD", "".join(f"{name},,\n" for name in [*content, f"{_INFO}/RECORD"]))
    return wheel


def pip_as_zip(folder: Path) -> Path:
    """Put this interpreter's pip into one file that Python can import from."""
    # By its records, not through the import system: setuptools hooks the import of `pip` and warns about distutils.
    package = Path(str(distribution("pip").locate_file("pip")))
    assert package.is_dir()
    made = folder / "pip.zip"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in package.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, str(path.relative_to(package.parent)))
    return made
