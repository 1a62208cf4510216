"""Ids that follow from what they are for."""

from __future__ import annotations

from torpor.model.ids import is_sandbox_id, is_snapshot_id, sandbox_id_from, snapshot_id_from


def test_the_same_origin_gives_the_same_id_and_another_gives_another() -> None:
    origins = [("a", "b"), ("ab",), ("a", "b", ""), ("", "ab"), ("b", "a"), ("1:a",), ("ключ",)]
    assert [snapshot_id_from(*origin) for origin in origins] == [snapshot_id_from(*origin) for origin in origins]
    assert len({snapshot_id_from(*origin) for origin in origins}) == len(origins)
    assert len({sandbox_id_from("sbx-1", str(number)) for number in range(1000)}) == 1000


def test_such_an_id_has_the_form_of_one() -> None:
    assert is_snapshot_id(snapshot_id_from("a"))
    assert is_sandbox_id(sandbox_id_from("a"))
