"""Errors on their way out and back: the table is total in both directions, and sentences are plain."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from torpor import errors
from torpor.control.api.problems import sentence
from torpor.control.service.wishes import CreateWish
from torpor.wire.errors import STATUS, ErrorBody, every_error, from_body, status_of, to_body
from torpor.wire.public import ExecCommand

MADE = [cls("something is wrong", hint="mend it", request_id="req-1") for cls in every_error()]
DETAILED = [
    errors.Conflict("c", seen="deleting", needed=["running"]),
    errors.SandboxLost("s", last_snapshot="snp-1"),
    errors.ExecTimeout("t", stdout="so far", stderr="oh"),
    errors.CommandFailed("f", exit_code=3, stdout="a", stderr="b"),
]


def test_every_error_has_a_status_and_every_status_an_error() -> None:
    assert set(STATUS) == set(every_error())


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [cls.code for cls in every_error()]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("error", MADE + DETAILED, ids=lambda error: error.code)
def test_an_error_comes_back_as_it_was_sent(error: errors.TorporError) -> None:
    body = ErrorBody.model_validate_json(to_body(error, "req-2").model_dump_json())
    back = from_body(body, status_of(error))
    assert type(back) is type(error)
    assert (back.message, back.hint, back.details()) == (error.message, error.hint, error.details())
    assert back.request_id == (error.request_id or "req-2")
    assert body.retryable is isinstance(error, errors.Unavailable)


@pytest.mark.parametrize(
    ("status", "branch"),
    [(418, errors.Refused), (503, errors.Unavailable), (500, errors.OutcomeUnknown), (507, errors.OutcomeUnknown)],
)
def test_a_code_of_a_newer_server_becomes_its_branch(status: int, branch: type[errors.TorporError]) -> None:
    assert type(from_body(ErrorBody(error="new", code="brand_new"), status)) is branch


def test_details_in_another_shape_do_not_hide_the_message() -> None:
    body = ErrorBody(error="no", code="conflict", details={"needed": 3, "unknown": 1})
    assert from_body(body, 409).message == "no"


@pytest.mark.parametrize(
    ("model", "body", "said"),
    [
        (ExecCommand, {}, "cmd is required"),
        (ExecCommand, {"cmd": 3}, "cmd has to be a string or a list of strings"),
        (ExecCommand, {"cmd": "a", "timeout_seconds": -1}, "timeout_seconds has to be greater than 0"),
        (ExecCommand, {"cmd": "a", "encoding": "hex"}, "encoding has to be 'text' or 'base64'"),
        (CreateWish, {"metadata": {"a": 1}}, "metadata.a has to be a valid string"),
        (CreateWish, {"metadata": {"": "a"}}, "metadata. has to have at least 1 character"),
        (CreateWish, {"ttl_seconds": 0}, "ttl_seconds has to be greater than or equal to 1"),
        (CreateWish, {"ttl_seconds": "5"}, "ttl_seconds has to be a valid integer"),
        (CreateWish, {"persistent": 1}, "persistent has to be a valid boolean"),
    ],
)
def test_what_is_wrong_with_a_field_is_one_sentence_with_its_name(
    model: type[ExecCommand] | type[CreateWish], body: object, said: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)
    problem = dict(refused.value.errors()[0])
    problem["loc"] = ("body", *refused.value.errors()[0]["loc"])
    assert sentence(problem) == said


def test_an_error_that_repeats_what_is_no_text_can_be_sent() -> None:
    said = to_body(errors.Unsupported("checkpoint_\ud800 was given", hint="leave checkpoint_\ud800 out"))
    assert said.model_dump_json()
    assert said.error == "checkpoint_? was given"
    assert said.hint == "leave checkpoint_? out"
