"""Taking an identity: everything, in order, or an error."""

from __future__ import annotations

import base64
import errno
import json
from pathlib import Path
from typing import Any

import pytest

from torpor_guest.identity import Adoption, IdentityFiles, machine_id, read_order, with_host_line
from torpor_guest.refusal import Refusal
from torpor_guest.requests import Request

ORDER: dict[str, Any] = {
    "sandbox_id": "sbx-0123456789bcdfgh",
    "hostname": "host",
    "wall_ns": 1_800_000_000_000_000_000,
    "entropy": base64.b64encode(b"e" * 64).decode(),
    "generation": 5,
}


class Recorder:
    """Stands for a guest: writes down what is done to it, and fails where it is told."""

    def __init__(self, root: Path, fails: str = "") -> None:
        self.files = IdentityFiles(str(root))
        self.done: list[tuple[str, object]] = []
        self._fails = fails

    def _do(self, what: str, value: object) -> None:
        if what == self._fails:
            raise PermissionError(errno.EPERM, "not permitted")
        self.done.append((what, value))

    def set_clock(self, wall_ns: int) -> None:
        self._do("clock", wall_ns)

    def add_entropy(self, entropy: bytes) -> None:
        self._do("entropy", entropy)

    def set_hostname(self, name: str) -> None:
        self._do("hostname", name)

    def mark(self, marks: dict[bytes, bytes], secrets: dict[bytes, bytes] | None) -> None:
        self._do("mark", (marks, secrets))

    def count_hooks(self, event: str) -> int:
        return len(event)

    def thaw(self) -> None:
        self._do("thaw", None)


class Answer:
    """Stands for a stream that is answered."""

    def __init__(self, recorder: Recorder) -> None:
        self.value: dict[str, Any] | None = None
        self._recorder = recorder

    def result(self, value: dict[str, Any]) -> None:
        self._recorder.done.append(("answer", None))
        self.value = value


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "hosts").write_text("127.0.0.1\tlocalhost\n127.0.1.1\tbaked\n10.0.0.1\tdb\n")
    return tmp_path


def adopt(recorder: Recorder, order: dict[str, Any]) -> dict[str, Any]:
    answer = Answer(recorder)
    Adoption(recorder, recorder).adopt(answer, Request(order))  # type: ignore[arg-type]
    assert answer.value is not None
    return answer.value


def test_entropy_comes_first_and_processes_run_on_only_after_the_answer(root: Path) -> None:
    recorder = Recorder(root)
    answer = adopt(recorder, ORDER)
    assert [what for what, _ in recorder.done] == ["entropy", "clock", "hostname", "mark", "answer", "thaw"]
    assert dict(recorder.done)["entropy"] == b"e" * 64
    assert dict(recorder.done)["clock"] == ORDER["wall_ns"]
    assert (answer["sandbox_id"], answer["hostname"], answer["generation"]) == (ORDER["sandbox_id"], "host", 5)


def test_the_files_name_the_sandbox_however_often_it_is_adopted(root: Path) -> None:
    recorder = Recorder(root)
    adopt(recorder, ORDER | {"hostname": "a-longer-name", "sandbox_id": "sbx-of-some-other-length-that-is-longer"})
    for generation in (5, 6):
        adopt(recorder, ORDER | {"generation": generation})
    assert (root / "hostname").read_text() == "host\n"
    assert (root / "hosts").read_text() == "127.0.0.1\tlocalhost\n10.0.0.1\tdb\n127.0.1.1\thost\n"
    assert (root / "machine-id").read_text() == machine_id(ORDER["sandbox_id"]) + "\n"
    assert json.loads((root / "identity.json").read_text()) == {"sandbox_id": ORDER["sandbox_id"], "generation": 6}
    assert {entry.stat().st_mode & 0o777 for entry in root.iterdir()} == {0o644}


@pytest.mark.parametrize(
    ("given", "kept"),
    [({}, None), ({"secrets": None}, None), ({"secrets": {}}, {}), ({"secrets": {"A": "1"}}, {b"A": b"1"})],
)
def test_secrets_are_replaced_as_a_whole_and_only_where_they_are_given(
    root: Path, given: dict[str, Any], kept: dict[bytes, bytes] | None
) -> None:
    recorder = Recorder(root)
    adopt(recorder, ORDER | {"env": {"B": "2"}} | given)
    assert dict(recorder.done)["mark"] == ({b"B": b"2", b"TORPOR_SANDBOX_ID": ORDER["sandbox_id"].encode()}, kept)
    assert not any(entry.read_bytes() == b"1" or b'"A"' in entry.read_bytes() for entry in root.iterdir())


@pytest.mark.parametrize("wrong", [[], "A=1", {"A": 1}, {"": "1"}, {"A=B": "1"}, {"A": "1\0"}, {"A": "\ud800"}])
def test_secrets_that_make_no_sense_are_refused_before_anything_is_done_and_not_repeated(
    root: Path, wrong: object
) -> None:
    recorder = Recorder(root)
    with pytest.raises(Refusal, match="secrets") as refused:
        adopt(recorder, ORDER | {"secrets": wrong})
    assert recorder.done == []
    assert "1" not in refused.value.message


@pytest.mark.parametrize("step", ["entropy", "clock", "hostname"])
def test_a_step_that_fails_is_an_error_and_nothing_runs_on(root: Path, step: str) -> None:
    recorder = Recorder(root, fails=step)
    with pytest.raises(Refusal, match="could not take its identity"):
        adopt(recorder, ORDER)
    assert not {"answer", "thaw", "mark"} & {what for what, _ in recorder.done}


@pytest.mark.parametrize(
    "wrong",
    [
        {"sandbox_id": "../etc"},
        {"hostname": "a\nb"},
        {"hostname": ""},
        {"entropy": "!!"},
        {"entropy": base64.b64encode(b"short").decode()},
        {"wall_ns": "now"},
        {"wall_ns": -1},
        {"generation": True},
    ],
)
def test_an_order_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        read_order(Request(ORDER | wrong))
    assert refused.value.code == "invalid_request"


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (b"", b"127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.1.1\tname\n"),
        (b"127.0.0.1 localhost", b"127.0.0.1 localhost\n127.0.1.1\tname\n"),
        (b"127.0.1.1 old\n1.2.3.4 x\n127.0.1.1\tolder\n", b"1.2.3.4 x\n127.0.1.1\tname\n"),
        (b"127.0.1.10 other\n\n", b"127.0.1.10 other\n\n127.0.1.1\tname\n"),
    ],
)
def test_hosts_has_exactly_one_line_for_the_name(hosts: bytes, expected: bytes) -> None:
    assert with_host_line(hosts, b"name") == expected
    assert with_host_line(expected, b"name") == expected
