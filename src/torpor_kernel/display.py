"""What a value looks like: a bundle of texts by their MIME types. Bytes, such as a picture's, are base64."""

from __future__ import annotations

import base64
import builtins
import json
import sys
from collections.abc import Callable
from typing import Any

# So many characters of one text; what is in the middle of more is left out.
MOST_TEXT = 1024 * 1024
# A bundle of more is not sent, and neither is what makes a cell's bundles more, in bytes of JSON.
MOST_BUNDLE = 16 * 1024 * 1024
MOST_BUNDLES = 32 * 1024 * 1024

_PYPLOT = "matplotlib.pyplot"
_METHODS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_latex_", "text/latex"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)


def bundle_of(value: Any) -> dict[str, str]:
    """Return what a value looks like. Raises what its `__repr__` raises; other forms that fail are told and left out.

    Methods are looked up in the type, so that objects which answer to any name are no surprise.
    """
    bundle = {"text/plain": clipped(repr(value))}
    if isinstance(value, type):  # its methods are its instances'
        return bundle
    bundle.update(_mimes(_told_by(value, "_repr_mimebundle_")))
    for name, mime in _METHODS:
        bundle.update(_mimes({mime: _told_by(value, name)}))
    figure = sys.modules.get("matplotlib.figure")
    if "image/png" not in bundle and figure is not None and isinstance(value, figure.Figure):
        bundle["image/png"] = _picture(value)
    return bundle


def clipped(text: str, most: int = MOST_TEXT) -> str:
    """Return a text, without its middle where it is too long."""
    if len(text) <= most:
        return text
    left_out = len(text) - most
    return text[: most // 2] + f"\n... {left_out} characters are left out ...\n" + text[-(most // 2) :]


def _told_by(value: Any, name: str) -> Any:
    """Return what a method of that name says, without metadata; None if there is none, or it fails."""
    method = getattr(type(value), name, None)
    if method is None:
        return None
    try:
        told = method(value)
    except NotImplementedError:
        return None
    except Exception as error:
        print(f"{name} of a {type(value).__name__} failed: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    return told[0] if isinstance(told, tuple) and told else told


def _mimes(told: Any) -> dict[str, str]:
    if not isinstance(told, dict):
        return {}
    return {str(mime): _text(content, str(mime)) for mime, content in told.items() if content is not None}


def _text(content: Any, mime: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, (bytes, bytearray)):
        return base64.b64encode(content).decode()
    return json.dumps(content, default=str) if mime.endswith("json") else str(content)


def _picture(figure: Any) -> str:
    import io  # noqa: PLC0415 - as little as can be is imported before the first cell

    held = io.BytesIO()
    figure.savefig(held, format="png", bbox_inches="tight")
    return base64.b64encode(held.getvalue()).decode()


class Screen:
    """Where a cell's values are shown: each as a bundle that is handed to `give`."""

    def __init__(self, give: Callable[[dict[str, str]], None]) -> None:
        self._give = give
        self._room = MOST_BUNDLES
        self.is_truncated = False

    def clear(self) -> None:
        """Begin with the next cell."""
        self._room, self.is_truncated = MOST_BUNDLES, False

    def display(self, *values: Any) -> None:
        """Show values."""
        for value in values:
            self._show(bundle_of(value))

    def show_figures(self, *_: Any, **__: Any) -> None:
        """Show matplotlib's open figures, and close them. It stands in for `pyplot.show`, too."""
        pyplot = sys.modules.get(_PYPLOT)
        if pyplot is None or not hasattr(pyplot, "get_fignums"):
            return
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            pyplot.close(figure)
            self._show({"text/plain": repr(figure), "image/png": _picture(figure)})

    def install(self) -> None:
        """Make `display` a builtin, and let `pyplot.show` show figures here once that is imported."""
        builtins.display = self.display  # type: ignore[attr-defined]
        sys.meta_path.insert(0, _PyplotFinder(self.show_figures))

    def _show(self, bundle: dict[str, str]) -> None:
        size = len(json.dumps(bundle))
        if size > min(MOST_BUNDLE, self._room):
            self.is_truncated = True
            text = clipped(bundle.get("text/plain", ""), 1000)
            bundle = {"text/plain": f"{text}\n(a result of {size} bytes is left out: it is too large)"}
            size = len(json.dumps(bundle))
            if size > self._room:
                return
        self._room -= size
        self._give(bundle)


class _PyplotFinder:
    """Lets pyplot be imported as it is, and then replaces its `show`."""

    def __init__(self, show: Callable[..., None]) -> None:
        self._show = show

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _PYPLOT:
            return None
        from importlib.machinery import PathFinder  # noqa: PLC0415

        spec: Any = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _PyplotLoader(spec.loader, self._show)
        return spec


class _PyplotLoader:
    def __init__(self, loader: Any, show: Callable[..., None]) -> None:
        self._loader, self._show = loader, show

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)

        def show(*args: Any, **kwargs: Any) -> None:  # a plain function, as pyplot gives it a signature
            self._show(*args, **kwargs)

        module.show = show
