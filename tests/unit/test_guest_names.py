"""File names as text and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor_guest.names import to_bytes, to_text

odd = st.lists(st.sampled_from([b"\xff", b"\xf4\x8f\xb8\x80", b"\xf4\x8f", "é".encode(), b"a", b"\n", b"\xed\xb2\x80"]))


@given(st.binary() | odd.map(b"".join))
def test_every_name_comes_back_from_its_text_through_json(name: bytes) -> None:
    text = json.loads(json.dumps(to_text(name), ensure_ascii=False).encode())
    assert to_bytes(text) == name


@given(odd.map(b"".join), odd.map(b"".join))
def test_two_names_never_have_the_same_text(one: bytes, other: bytes) -> None:
    assert (to_text(one) == to_text(other)) == (one == other)


@pytest.mark.parametrize("text", ["plain", "mit Äpfeln", "日本語", "tab\tand\nline", "\U0001f600"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert to_text(text.encode()) == text
    assert to_bytes(text) == text.encode()


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        to_bytes("\udcff")
