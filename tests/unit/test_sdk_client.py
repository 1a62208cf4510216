"""How the client tries again, and what it makes of answers it did not get."""

from __future__ import annotations

import io
from collections.abc import Iterator

import httpx2
import pytest

from scripted_server import VIEW, Reply, Script, answer, refusal, streamed
from torpor import (
    Busy,
    Client,
    Conflict,
    HostUnreachable,
    InvalidRequest,
    NoCapacity,
    NotFound,
    OutcomeUnknown,
    Refused,
    Sandbox,
    Unauthenticated,
)
from torpor.sdk.results import SandboxInfo
from torpor.sdk.settings import locate
from torpor.wire.public import SandboxView

LOST = httpx2.ReadError("cut")
NOBODY = httpx2.ConnectError("refused")


def sandbox(client: Client) -> Sandbox:
    return Sandbox(client, SandboxInfo.of(SandboxView.model_validate(VIEW)))


def test_a_create_whose_answer_was_lost_is_sent_again_under_the_same_key() -> None:
    script = Script([LOST, NOBODY, refusal(NoCapacity("full")), answer(VIEW, 201)])
    with script.client() as client:
        assert Sandbox.create("agent", metadata={"run": "1"}, client=client).id == VIEW["id"]
    keys = {one.headers["idempotency-key"] for one in script.received}
    assert (len(script.received), len(keys)) == (4, 1)
    assert len({one.body for one in script.received}) == 1


def test_two_creates_bear_different_keys() -> None:
    script = Script([answer(VIEW, 201), answer(VIEW, 201)])
    with script.client() as client:
        Sandbox.create(client=client)
        Sandbox.create(client=client)
    assert len({one.headers["idempotency-key"] for one in script.received}) == 2


def test_a_refusal_is_raised_at_once() -> None:
    script = Script([refusal(Conflict("it is deleting", seen="deleting", needed=["running"]))])
    with script.client() as client, pytest.raises(Conflict, match="it is deleting") as caught:
        sandbox(client).refresh()
    assert (caught.value.seen, caught.value.needed) == ("deleting", ("running",))


def test_patience_ends_and_the_last_error_is_raised() -> None:
    script = Script([refusal(Busy("wait"))] * 4)
    with script.client() as client, pytest.raises(Busy, match="wait"):
        sandbox(client).refresh()
    assert script.answers == []


def test_a_get_that_breaks_off_in_its_body_is_read_again_from_the_start() -> None:
    script = Script([streamed(b"half", breaks=LOST), streamed(b"half", b" whole")])
    with script.client() as client:
        assert sandbox(client).filesystem.read("/x") == b"half whole"


def test_an_append_is_not_sent_again_after_its_answer_was_lost() -> None:
    script = Script([LOST])
    with script.client() as client, pytest.raises(OutcomeUnknown, match="broke"):
        sandbox(client).filesystem.append("/log", b"line")


def test_an_append_is_sent_again_when_nothing_can_have_happened() -> None:
    script = Script([NOBODY, refusal(Busy("wait")), answer({"path": "/log", "bytes": 4})])
    with script.client() as client:
        assert sandbox(client).filesystem.append("/log", b"line") == 4
    assert [one.body for one in script.received] == [b"line"] * 3


def test_a_file_is_rewound_for_the_next_try() -> None:
    script = Script([LOST, answer({"path": "/x", "bytes": 3})])
    file = io.BytesIO(b"???abc")
    file.seek(3)
    with script.client() as client:
        sandbox(client).filesystem.write("/x", file)
    assert [one.body for one in script.received] == [b"abc", b"abc"]


def test_an_iterator_that_was_begun_is_not_sent_a_second_time() -> None:
    def pieces() -> Iterator[bytes]:
        yield b"once"

    script = Script([refusal(Busy("wait"))])
    with script.client() as client, pytest.raises(Busy):
        sandbox(client).filesystem.write("/x", pieces())


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (httpx2.ConnectError("refused"), HostUnreachable),
        (httpx2.ConnectTimeout("slow"), HostUnreachable),
        (httpx2.ReadTimeout("silent"), OutcomeUnknown),
        (httpx2.RemoteProtocolError("gone"), OutcomeUnknown),
        (httpx2.WriteError("gone"), OutcomeUnknown),
    ],
)
def test_errors_of_the_connection_become_ours_with_their_cause(raised: Exception, expected: type[Exception]) -> None:
    script = Script([raised] * 4)
    with script.client() as client, pytest.raises(expected) as caught:
        sandbox(client).refresh()
    assert caught.value.__cause__ is raised


def test_nobody_listening_says_how_to_start_a_server() -> None:
    script = Script([NOBODY] * 4)
    with script.client() as client, pytest.raises(HostUnreachable) as caught:
        Sandbox.list(client=client)
    assert "no Torpor server answers at http://127.0.0.1:1" in caught.value.message
    assert caught.value.hint == "start it with `torpor up`"


def test_an_answer_that_is_not_ours_is_named_by_its_status() -> None:
    page = Reply(403, (b"<html>proxy says no</html>",), {"x-request-id": "r-1"})
    with Script([page]).client() as client, pytest.raises(Refused, match="status 403") as caught:
        sandbox(client).refresh()
    assert caught.value.request_id == "r-1"


def test_the_servers_wish_to_wait_is_kept_on_the_error() -> None:
    script = Script([refusal(NoCapacity("full"), **{"retry-after": "30"})])
    with script.client() as client, pytest.raises(NoCapacity) as caught:
        Sandbox.create(client=client)
    assert caught.value.retry_after_s == 30


def test_an_answer_of_another_shape_is_an_unknown_outcome() -> None:
    with Script([answer({"surprise": 1})] * 4).client() as client, pytest.raises(OutcomeUnknown, match="SandboxView"):
        sandbox(client).refresh()


def test_the_key_is_sent_and_never_shown() -> None:
    script = Script([answer({"items": []})])
    with script.client() as client:
        client.templates.list()
        shown = f"{client!r} {locate('http://127.0.0.1:1', 'secret-key')!r}"
    assert script.received[0].headers["authorization"] == "Bearer secret-key"
    assert "secret-key" not in shown


@pytest.mark.parametrize("bad", ["", "..", "a/b", "../templates", "sbx?x", "x" * 200])
def test_an_id_that_cannot_stand_in_a_url_is_refused_before_anything_is_sent(bad: str) -> None:
    with Script([]).client() as client, pytest.raises(InvalidRequest, match="is not the id of a sandbox"):
        Sandbox.connect(bad, client=client)


@pytest.mark.parametrize("bad", [0, -1, "5", True])
def test_a_request_timeout_has_to_be_a_positive_number(bad: float) -> None:
    with pytest.raises(InvalidRequest, match="request_timeout"):
        Client("http://127.0.0.1:1", "k", request_timeout=bad)


def test_a_wrong_keyword_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="timeout"):
        Sandbox.create(timeout=5)  # type: ignore[call-arg]


def test_a_wrong_value_is_named_before_anything_is_sent() -> None:
    with Script([]).client() as client:
        with pytest.raises(InvalidRequest, match=r"metadata\.run"):
            Sandbox.create(metadata={"run": 5}, client=client)  # type: ignore[dict-item]
        with pytest.raises(InvalidRequest, match="ttl_seconds"):
            Sandbox.create(ttl_seconds=0, client=client)
        with pytest.raises(InvalidRequest, match="persistent"):
            Sandbox.create(ttl_seconds=60, persistent=True, client=client)


def test_a_persistent_sandbox_is_created_without_a_ttl_and_outlives_its_block() -> None:
    script = Script([answer(VIEW | {"persistent": True}, 201)])
    with script.client() as client, Sandbox.create(persistent=True, client=client):
        pass
    assert b"ttl_seconds" not in script.received[0].body


def test_leaving_the_block_deletes_the_sandbox() -> None:
    script = Script([answer(VIEW, 201), Reply(204)])
    with script.client() as client, Sandbox.create(client=client) as box:
        pass
    assert (script.received[1].method, box.state) == ("DELETE", "deleted")


def test_deleting_what_nobody_knows_any_more_is_success() -> None:
    script = Script([Reply(204), refusal(NotFound("who?"))])
    with script.client() as client:
        box = sandbox(client)
        box.delete()
        box.kill()
    assert repr(box) == "<Sandbox sbx-0123456789bcdfgh template=base state=deleted>"


def test_a_new_ttl_changes_what_is_known_of_the_sandbox() -> None:
    told = {"ttl_seconds": 60, "persistent": False, "expires_at": "2030-01-01T00:01:00Z", "idle_seconds": None}
    script = Script([answer(told)])
    with script.client() as client:
        info = sandbox(client).set_ttl(60)
    assert (info.ttl_seconds, str(info.expires_at)) == (60, "2030-01-01 00:01:00+00:00")
    assert (script.received[0].method, script.received[0].body) == ("PATCH", b'{"ttl_seconds":60}')


def test_a_listing_can_be_paged_and_walked_through() -> None:
    first, last = {"items": [VIEW], "next_cursor": "c1"}, {"items": [VIEW | {"id": "sbx-last"}], "next_cursor": None}
    script = Script([answer(first), answer(first), answer(last)])
    with script.client() as client:
        page = Sandbox.list({"run": "1"}, "running", 1, client=client)
        assert (len(page), page[0].id, page.next_cursor) == (1, VIEW["id"], "c1")
        assert [box.id for box in Sandbox.iterate(client=client)] == [VIEW["id"], "sbx-last"]
    assert script.received[0].query == {"metadata.run": "1", "status": "running", "limit": "1"}
    assert script.received[2].query == {"cursor": "c1"}


def test_a_key_that_is_wrong_is_said_to_be() -> None:
    script = Script([refusal(Unauthenticated("this key is not known"))])
    with script.client() as client, pytest.raises(Unauthenticated, match="not known"):
        client.templates.list()
