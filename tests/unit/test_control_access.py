"""From where the API may be asked: names, origins, and what the environment says of them."""

from __future__ import annotations

import pytest

from torpor.control.access import AccessConfig, host_named, is_same_site
from torpor.errors import InvalidRequest, Misdirected

OURS = AccessConfig(hosts=frozenset({"torpor.example", "192.0.2.5", "2001:db8::5"}))


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"),
        ("LocalHost:7070", "localhost"),
        ("localhost.", "localhost"),
        ("127.0.0.1:7070", "127.0.0.1"),
        ("127.9.9.9", "127.9.9.9"),
        ("[::1]:7070", "::1"),
        ("torpor.example:443", "torpor.example"),
        ("192.0.2.5", "192.0.2.5"),
        ("[2001:db8::5]:1", "2001:db8::5"),
    ],
)
def test_the_server_answers_to_loopback_and_to_its_own_names(host: str, name: str) -> None:
    assert OURS.called(host) == name


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "torpor.example.evil.example", "192.0.2.6", "0.0.0.0", "[::]"]
)
def test_it_answers_to_no_other(host: str) -> None:
    with pytest.raises(Misdirected, match="is not called"):
        OURS.called(host)


@pytest.mark.parametrize(
    "host",
    ["", " ", ":80", "a b", "a/b", "a@localhost", "localhost:", "localhost:x", "localhost:123456", "ü", "[::1", "::1"],
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(InvalidRequest, match="Host header"):
        host_named(host)


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::", "[::]"])
def test_a_server_that_listens_everywhere_answers_to_every_address_but_to_no_other_name(wildcard: str) -> None:
    everywhere = AccessConfig().bound_to(wildcard)
    assert everywhere.is_ours("203.0.113.9")
    assert everywhere.is_ours("2001:db8::9")
    assert not everywhere.is_ours("evil.example")


def test_a_server_answers_to_what_it_was_bound_to() -> None:
    bound = AccessConfig().bound_to("Torpor.Example").bound_to("192.0.2.5")
    assert bound.is_ours("torpor.example")
    assert bound.is_ours("192.0.2.5")
    assert not bound.is_ours("192.0.2.6")


def test_the_environment_sets_all_of_it() -> None:
    assert AccessConfig.from_environment({}) == AccessConfig()
    said = AccessConfig.from_environment(
        {
            "TORPOR_RATE_PER_SECOND": "0.5",
            "TORPOR_RATE_BURST": "3",
            "TORPOR_AUTH_FAILURES_PER_MINUTE": "7",
            "TORPOR_CORS_ORIGINS": "https://app.example, http://localhost:3000",
            "TORPOR_ALLOWED_HOSTS": "Torpor.Example,192.0.2.5 [2001:db8::5]",
        }
    )
    assert said == AccessConfig(
        rate_per_second=0.5,
        rate_burst=3,
        failures_per_minute=7,
        origins=frozenset({"https://app.example", "http://localhost:3000"}),
        hosts=frozenset({"torpor.example", "192.0.2.5", "2001:db8::5"}),
    )


def test_a_rate_alone_brings_a_burst_with_it() -> None:
    assert AccessConfig.from_environment({"TORPOR_RATE_PER_SECOND": "50"}).rate_burst == 100
    assert AccessConfig.from_environment({"TORPOR_RATE_PER_SECOND": "0"}).rate_per_second == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORPOR_RATE_PER_SECOND", "fast"),
        ("TORPOR_RATE_PER_SECOND", "-1"),
        ("TORPOR_RATE_PER_SECOND", "nan"),
        ("TORPOR_RATE_PER_SECOND", "inf"),
        ("TORPOR_RATE_BURST", "0.5"),
        ("TORPOR_AUTH_FAILURES_PER_MINUTE", "many"),
        ("TORPOR_CORS_ORIGINS", "*"),
        ("TORPOR_CORS_ORIGINS", "app.example"),
        ("TORPOR_CORS_ORIGINS", "https://app.example/path"),
        ("TORPOR_CORS_ORIGINS", "https://"),
        ("TORPOR_CORS_ORIGINS", "null"),
        ("TORPOR_CORS_ORIGINS", "https://[::1"),
        ("TORPOR_ALLOWED_HOSTS", "torpor.example:7070"),
        ("TORPOR_ALLOWED_HOSTS", "*.example"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        AccessConfig.from_environment({name: value})


@pytest.mark.parametrize(
    ("origin", "host", "is_same"),
    [
        ("http://localhost:7070", "localhost:7070", True),
        ("https://Torpor.example", "torpor.example", True),
        ("http://localhost:3000", "localhost:7070", False),
        ("http://127.0.0.1:7070", "localhost:7070", False),
        ("null", "localhost:7070", False),
        ("null", "", False),
        ("http://[::1", "localhost", False),
    ],
)
def test_an_origin_is_the_same_site_where_its_host_is_the_one_that_was_asked(
    origin: str, host: str, is_same: bool
) -> None:
    assert is_same_site(origin, host) is is_same


def test_less_than_one_wrong_key_a_minute_is_not_any_number_of_them() -> None:
    assert AccessConfig.from_environment({"TORPOR_AUTH_FAILURES_PER_MINUTE": "0.2"}).failures_per_minute == 1
    assert AccessConfig.from_environment({"TORPOR_AUTH_FAILURES_PER_MINUTE": "0"}).failures_per_minute == 0
