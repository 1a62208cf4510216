"""A request's fields have their types and bounds, or the call is refused by the field's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torpor_guest.refusal import Refusal
from torpor_guest.requests import Request


@pytest.mark.parametrize(
    ("read", "wrong"),
    [
        (lambda request: request.text("f"), [None, 1, [], True]),
        (lambda request: request.flag("f"), [None, 1, "true"]),
        (lambda request: request.optional_whole("f", 0, 9), [-1, 10, 1.5, True, "1"]),
        (lambda request: request.whole("f", 0, 9), [None]),
        (lambda request: request.optional_seconds("f"), [0, -1, float("inf"), float("nan"), True, "1"]),
        (lambda request: request.words("f"), [None, [], "ls", [1], ["a\0b"], ["\ud800"]]),
        (lambda request: request.environment("f"), [[], {"A": 1}, {"": "x"}, {"A=B": "x"}, {"A": "\0"}]),
        (lambda request: request.path("f"), [None, "", "x", "./x", "/a\0b", "/\ud800", "/" + "x" * 5000]),
    ],
)
def test_a_wrong_value_is_refused_by_name(read: Callable[[Request], object], wrong: list[Any]) -> None:
    for value in wrong:
        with pytest.raises(Refusal, match=r"\bf\b") as refused:
            read(Request({"f": value}))
        assert refused.value.code == "invalid_request"


def test_right_values_are_read() -> None:
    request = Request({"argv": ["é", ""], "env": {"A": "x=y"}, "path": "/a//b///", "root": "///", "n": 3, "s": 1})
    assert request.words("argv") == ["é".encode(), b""]
    assert request.environment("env") == {b"A": b"x=y"}
    assert (request.path("path"), request.path("root")) == (b"/a//b", b"/")
    assert (request.optional_whole("n", 0, 9), request.optional_seconds("s")) == (3, 1.0)
    assert (request.optional_text("none"), request.flag("none"), request.environment("none")) == (None, False, {})
