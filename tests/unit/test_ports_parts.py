"""The parts that the proxy to servers in sandboxes is made of: addresses, links, headers, redirects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.control.proxy import headers
from torpor.control.proxy.addresses import Address, Domain, address_in
from torpor.control.proxy.cookies import local
from torpor.control.proxy.headers import Asker
from torpor.control.proxy.links import MAX_TOKEN, Link, Signer, read_token
from torpor.errors import InvalidRequest, NotFound, Unauthenticated
from torpor.model.ids import SandboxId, WorkspaceId

BOX = SandboxId("sbx-0123456789bcdfgh")
HERE = Address(BOX, 8080)
MINE = WorkspaceId("default")
NOW = datetime(2030, 1, 1, tzinfo=UTC)
SIGNER = Signer(b"s" * 32)
ASKER = Asker("127.0.0.1", "http", "a.localhost", "", "req-1")


@pytest.mark.parametrize(
    "host", [f"8080-{BOX}.localhost", f"8080-{BOX}.localhost:7070", f"8080-{BOX.upper()}.LocalHost."]
)
def test_a_host_names_a_server(host: str) -> None:
    assert Domain().address_at(host) == HERE


@pytest.mark.parametrize("host", ["localhost", "localhost:7070", "127.0.0.1", "evil-localhost", "xlocalhost", ""])
def test_other_hosts_are_none_of_ours(host: str) -> None:
    assert Domain().address_at(host) is None


@pytest.mark.parametrize(
    "label",
    ["api", BOX, f"08080-{BOX}", f"0-{BOX}", f"65536-{BOX}", f"80-{BOX}x", f"80-{BOX}.x", "80-sbx-x", f"80-{BOX}%00"],
)
def test_a_host_below_the_domain_that_names_no_server_is_nobody_s(label: str) -> None:
    with pytest.raises(NotFound):
        Domain().address_at(f"{label}.localhost")


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("localhost", Domain("localhost")),
        ("Apps.Example.com", Domain("apps.example.com")),
        ("apps.example.com:8443", Domain("apps.example.com", None, 8443)),
        ("https://apps.example.com", Domain("apps.example.com", "https")),
        ("http://a.b:1/", Domain("a.b", "http", 1)),
    ],
)
def test_a_domain_is_read(text: str, domain: Domain) -> None:
    assert Domain.of(text) == domain


@pytest.mark.parametrize(
    "text", ["", ".x", "x.", "a b", "ftp://x", "https://x/path", "u@x", "x:abc", "-x", "*.x", "[::1]"]
)
def test_what_is_no_domain_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="TORPOR_PORTS_DOMAIN"):
        Domain.of(text)


def test_the_url_that_is_told_is_the_one_asked_at_unless_the_domain_says_more() -> None:
    assert Domain().origin_of(HERE, "http", "127.0.0.1:7070") == f"http://8080-{BOX}.localhost:7070"
    assert Domain().origin_of(HERE, "https", "x.example") == f"https://8080-{BOX}.localhost"
    assert Domain.of("https://a.example").origin_of(HERE, "http", "127.0.0.1:7070") == f"https://8080-{BOX}.a.example"
    assert Domain.of("a.example:81").origin_of(HERE, "http", "b:7070") == f"http://8080-{BOX}.a.example:81"


def test_a_path_names_a_server_and_leaves_it_its_own_as_it_was_sent() -> None:
    prefix = f"/v1/sandboxes/{BOX}/proxy/8080"
    for rest, target in (("", "/"), ("/", "/"), ("/a%2F..//b", "/a%2F..//b"), ("//x", "//x")):
        assert address_in((prefix + rest).encode()) == (Address(BOX, 8080, prefix), target.encode())
    for path in (
        f"{prefix}x",
        f"/v1/sandboxes/{BOX}/proxy/0/",
        f"/v1/sandboxes/{BOX}/proxy/99999/",
        f"/{prefix}/",
        "/",
    ):
        assert address_in(path.encode()) is None


def link_of(token: str) -> Link:
    link = read_token(token)
    assert link is not None
    return link


def test_a_link_is_good_for_what_it_was_made_for_until_it_expires() -> None:
    token = SIGNER.token(HERE, MINE, "local", NOW + timedelta(seconds=60))
    assert len(token) <= MAX_TOKEN
    link = link_of(token)
    SIGNER.check(link, HERE, MINE, NOW + timedelta(seconds=59))
    with pytest.raises(Unauthenticated, match="expired at 2030-01-01 00:01:00 UTC"):
        SIGNER.check(link, HERE, MINE, NOW + timedelta(seconds=60))


def test_a_link_is_good_for_nothing_else() -> None:
    link = link_of(SIGNER.token(HERE, MINE, "local", NOW + timedelta(seconds=60)))
    other = SandboxId("sbx-1123456789bcdfgh")
    wrong = [
        (SIGNER, link, Address(BOX, 8081), MINE),
        (SIGNER, link, Address(other, 8080), MINE),
        (SIGNER, link, HERE, WorkspaceId("other")),
        (SIGNER, Link("other", link.expires_at, link.mac), HERE, MINE),
        (SIGNER, Link("local", link.expires_at + timedelta(days=1), link.mac), HERE, MINE),
        (Signer(b"t" * 32), link, HERE, MINE),
    ]
    for signer, given_link, address, workspace in wrong:
        with pytest.raises(Unauthenticated, match="not valid"):
            signer.check(given_link, address, workspace, NOW)


@given(st.text(max_size=200))
def test_any_text_is_a_token_or_none(text: str) -> None:
    link = read_token(text)
    if link is not None:
        with pytest.raises(Unauthenticated):
            SIGNER.check(link, HERE, MINE, NOW)


@given(st.text(alphabet="/\\.a%5C?#:@", max_size=12))
def test_a_redirect_stays_on_its_host(rest: str) -> None:
    target = local("/" + rest)
    assert target.startswith("/")
    assert not target.startswith(("//", "/\\"))


def test_headers_that_a_connection_names_stay_on_it_but_no_more_than_may() -> None:
    given_headers = [
        (b"Connection", b"X-Hop, close"),
        (b"x-hop", b"1"),
        (b"X-Mine", b"2"),
        (b"cookie", b"torpor-link=a"),
    ]
    passed = dict(headers.to_server(given_headers, ASKER, hides_authorization=False))
    assert passed[b"X-Mine"] == b"2"
    assert not {b"x-hop", b"Connection", b"cookie"} & passed.keys()


@given(st.lists(st.sampled_from([b"a=1", b"torpor-link=x", b" __Host-torpor-link=y", b"torpor-linked=z", b"b", b""])))
def test_our_cookies_never_pass_and_others_always_do(pairs: list[bytes]) -> None:
    passed = dict(headers.to_server([(b"cookie", b"; ".join(pairs))], ASKER, hides_authorization=False))
    left = [pair for pair in passed.get(b"cookie", b"").split(b"; ") if pair]
    assert left == [pair for pair in pairs if pair in (b"a=1", b"torpor-linked=z", b"b")]


def test_a_query_loses_its_token_and_nothing_else() -> None:
    query = b"a=1&torpor_token=x&b=%26torpor_token=y&&torpor_tokens=z"
    assert headers.without_token(query) == b"a=1&b=%26torpor_token=y&&torpor_tokens=z"
    assert headers.tokens_in([(b"x-torpor-token", b"t")], query, with_cookies=True) == ["t", "x"]
    many = [(b"cookie", b"; ".join([b"torpor-link=%d" % number for number in range(50)]))]
    assert len(headers.tokens_in(many, b"", with_cookies=True)) == 8
    assert headers.tokens_in(many, b"", with_cookies=False) == []


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_no_line_end_gets_through_in_a_header(name: bytes, value: bytes) -> None:
    given_headers = [(b"host", b"a"), (name, value)]
    try:
        headers.check_request("GET", b"/", given_headers)
    except InvalidRequest:
        return
    assert not set(name + value) & set(b"\r\n\0")


def test_what_we_say_cannot_be_said_with_underscores() -> None:
    given = [(b"x_forwarded_for", b"6.6.6.6"), (b"X_Torpor-Token", b"t"), (b"x_request_id", b"r"), (b"x_mine", b"1")]
    passed = headers.to_server([(b"host", b"a"), *given], ASKER, hides_authorization=True)
    assert [name for name, _ in passed if b"_" in name] == [b"x_mine"]
