"""The protocol's parser against streams that are cut, trickled, stale and hostile."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torpor_guest import protocol
from torpor_guest.protocol import Frame, Hello, Parser, ProtocolError, Welcome

NONCE = bytes(range(16))
Plain = tuple[int, int, int, bytes]

payloads = st.binary(max_size=300) | st.integers(0, protocol.MAX_PAYLOAD).map(lambda size: b"p" * size)
plain_frames = st.lists(
    st.tuples(st.integers(0, 2**32 - 1), st.integers(protocol.OPEN, protocol.CANCEL), st.integers(0, 255), payloads),
    max_size=6,
)


def encoded(frames: list[Plain]) -> bytes:
    return b"".join(protocol.frame(*frame) for frame in frames)


def feed(parser: Parser, data: bytes, cuts: list[int]) -> list[Plain | Hello | Welcome]:
    """Give the parser `data` in pieces and return copies of what it found."""
    found: list[Plain | Hello | Welcome] = []
    while data:
        size = min(cuts.pop() if cuts else protocol.READ_SIZE, len(data))
        parser.room()[:size] = data[:size]
        for item in parser.take(size):
            found.append((*item[:3], bytes(item.payload)) if isinstance(item, Frame) else item)
        data = data[size:]
    return found


def greeted() -> Parser:
    parser = Parser(protocol.seek_hello)
    assert feed(parser, protocol.PREAMBLE + protocol.hello(NONCE), []) == [Hello(protocol.VERSION, NONCE)]
    return parser


@given(plain_frames, st.lists(st.integers(1, 5000), max_size=40))
@settings(max_examples=150, deadline=None)
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames: list[Plain], cuts: list[int]) -> None:
    assert feed(greeted(), encoded(frames), cuts) == frames


@given(plain_frames, plain_frames, st.data())
@settings(max_examples=300, deadline=None)
def test_after_any_half_frame_the_next_greeting_is_found_and_nothing_false_is_delivered(
    before: list[Plain], after: list[Plain], data: st.DataObject
) -> None:
    stale = encoded(before)
    cut = data.draw(st.integers(0, len(stale)))
    fresh = protocol.PREAMBLE + protocol.hello(NONCE) + encoded(after)
    found = feed(greeted(), stale[:cut] + fresh, [])
    greeting = found.index(Hello(protocol.VERSION, NONCE))
    assert found[:greeting] == before[:greeting]
    assert found[greeting + 1 :] == after


@given(st.binary(max_size=2000), plain_frames)
@settings(max_examples=100, deadline=None)
def test_garbage_before_the_greeting_is_thrown_away(garbage: bytes, after: list[Plain]) -> None:
    parser = Parser(protocol.seek_hello)
    stream = garbage + protocol.PREAMBLE + protocol.hello(NONCE) + encoded(after)
    assert feed(parser, stream, []) == [Hello(protocol.VERSION, NONCE), *after]


def test_a_frame_filled_up_with_zeros_is_not_delivered() -> None:
    whole = protocol.frame(1, protocol.DATA, protocol.INPUT, b"x" * 100)
    for missing in range(1, len(whole)):
        parser = greeted()
        assert feed(parser, whole[:-missing] + protocol.PREAMBLE, []) == []
        assert parser.lost


@pytest.mark.parametrize("place", range(protocol.HEADER_SIZE))
def test_a_header_with_a_flipped_bit_is_recognised(place: int) -> None:
    whole = bytearray(protocol.frame(7, protocol.DATA, protocol.OUTPUT, b"payload"))
    whole[place] ^= 0x10
    parser = greeted()
    assert feed(parser, bytes(whole), []) == []
    assert parser.lost


def test_a_length_beyond_the_limit_is_no_header() -> None:
    parser = greeted()
    feed(parser, protocol.header(1, protocol.DATA, 1, protocol.MAX_PAYLOAD + 1), [])
    assert parser.lost


def test_a_greeting_of_another_version_is_told_and_leads_nowhere() -> None:
    parser = Parser(protocol.seek_hello)
    frames = encoded([(1, protocol.DATA, 0, b"x")])
    assert feed(parser, protocol.PREAMBLE + protocol.hello(NONCE, version=99) + frames, []) == [Hello(99, NONCE)]
    assert parser.lost


@given(st.binary(max_size=500), st.lists(st.integers(1, 40), max_size=60))
@settings(max_examples=100, deadline=None)
def test_the_host_finds_the_welcome_with_its_nonce_among_stale_ones(garbage: bytes, cuts: list[int]) -> None:
    parser = Parser(protocol.seek_welcome(NONCE))
    stale = protocol.welcome(b"\1" * 16, {"stale": True}) + encoded([(3, protocol.DATA, 1, b"old output")])
    fresh = protocol.welcome(NONCE, {"agent": "1"}) + encoded([(1, protocol.RESULT, 0, b"{}")])
    found = feed(parser, stale + garbage + stale[:50] + fresh, cuts)
    assert found == [Welcome(protocol.VERSION, NONCE, {"agent": "1"}), (1, protocol.RESULT, 0, b"{}")]


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=30_000), max_size=4))
@settings(max_examples=40, deadline=None)
def test_a_long_message_is_cut_into_parts_and_put_together_again(value: dict[str, str]) -> None:
    parts = cast("list[Plain]", feed(greeted(), protocol.message(5, protocol.RESULT, value), []))
    assert [part[2] for part in parts] == [protocol.MORE] * (len(parts) - 1) + [protocol.LAST]
    whole = b"".join(part[3] for part in parts)
    assert protocol.load(whole) == {key: text.encode("utf-8", "replace").decode() for key, text in value.items()}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"1", b'"x"', b"{", b"\xff", b"[" * 100_000, b'{"a":NaN}', b'{"a":' + b"9" * 9999 + b"}"]
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        protocol.load(body)


@pytest.mark.parametrize("payload", [b"", b"\0\0\0\0", b"\0\0\0\1\0", (protocol.WINDOW + 1).to_bytes(4, "big")])
def test_credit_that_makes_no_sense_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        protocol.credit_count(memoryview(payload))
