"""What a network policy can say, and what is told to whoever says something else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.model.network import MAX_ENTRIES, UNREACHABLE, Egress, Mode, egress_from


@pytest.mark.parametrize("mode", [Mode.INTERNET, Mode.NONE])
def test_a_mode_is_its_word(mode: Mode) -> None:
    assert egress_from(mode.value) == Egress(mode)
    assert Egress(mode).spoken() == mode.value


@pytest.mark.parametrize("word", ["allow", "", "Internet", "all", "198.51.100.0/24"])
def test_another_word_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match='has to be "internet", "none" or an allow-list'):
        egress_from(word)


def test_networks_and_names_are_told_apart_and_normalised() -> None:
    egress = egress_from(["Code.Example.com", "198.51.100.7", "*.Example.ORG.", "203.0.113.0/24"])
    assert egress == Egress(Mode.ALLOW, ("198.51.100.7/32", "203.0.113.0/24"), ("code.example.com", "*.example.org"))
    assert egress.spoken() == ["198.51.100.7/32", "203.0.113.0/24", "code.example.com", "*.example.org"]


def test_no_network_lies_within_another_and_no_name_is_there_twice() -> None:
    egress = egress_from(["198.51.100.128/25", "198.51.100.0/25", "198.51.100.9", "a.example", "A.example."])
    assert egress == Egress(Mode.ALLOW, ("198.51.100.0/24",), ("a.example",))


def test_names_beyond_ascii_are_encoded_as_dns_has_them() -> None:
    egress = egress_from(["bücher.example", "*.BÜCHER.example", "faß.example"])
    assert egress.names == ("xn--bcher-kva.example", "*.xn--bcher-kva.example", "xn--fa-hia.example")


def test_everything_is_a_network_too_and_opens_what_is_public_of_it() -> None:
    assert egress_from(["0.0.0.0/0"]).cidrs == ("0.0.0.0/0",)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("198.51.100.7/24", "give 198.51.100.0/24, or 198.51.100.7 for it alone"),
        ("198.51.100.0/33", "neither a host name nor an IPv4 network"),
        ("198.51.100.256", "neither a host name nor an IPv4 network"),
        ("198.51.100", "neither a host name nor an IPv4 network"),
        ("198.51.100.0/255.0.255.0", "neither a host name nor an IPv4 network"),
        ("2001:db8::/32", "IPv6, which sandboxes do not have"),
        ("::1", "IPv6, which sandboxes do not have"),
        ("code.example.com:443", "neither a host name nor an IPv4 network"),
        ("code.example.com/simple", "neither a host name nor an IPv4 network"),
        ("https://code.example.com", "is a URL"),
        ("", "is no host name"),
        ("internet", "no host name with a domain"),
        ("*", "a star stands only at the beginning"),
        ("*example.com", "a star stands only at the beginning"),
        ("a.*.example.com", "a star stands only at the beginning"),
        ("*.*.example.com", "a star stands only at the beginning"),
        ("-a.example", "is no host name"),
        ("a..example", "is no host name"),
        ("a b.example", "is no host name"),
        ("a.example\n", "is no host name"),
        ("a" * 64 + ".example", "is no host name"),
        (".".join(["a" * 60] * 5), "is no host name"),
        ("*." + ".".join(["a" * 62, *["a" * 63] * 3]), "is no host name"),
        ("a.example.1", "ends in a number"),
        ("a\u2488com.example", "no host name"),
        ("\ud800.example", "no host name"),
    ],
)
def test_an_entry_that_means_nothing_is_refused_with_a_sentence(entry: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace(".", r"\.").replace("*", r"\*")):
        egress_from(["code.example.com", entry])


@pytest.mark.parametrize("network", [str(network) for network in UNREACHABLE] + ["10.1.2.3", "169.254.169.254"])
def test_what_no_sandbox_reaches_cannot_be_allowed(network: str) -> None:
    with pytest.raises(ValueError, match="private or reserved"):
        egress_from([network])


def test_an_allow_list_has_entries_and_not_too_many() -> None:
    with pytest.raises(ValueError, match="at least one entry"):
        egress_from([])
    most = [f"a{number}.example" for number in range(MAX_ENTRIES)]
    assert len(egress_from(most).names) == MAX_ENTRIES
    with pytest.raises(ValueError, match=f"at most {MAX_ENTRIES} entries, not {MAX_ENTRIES + 1}"):
        egress_from([*most, "one.more"])


def test_a_long_entry_is_cut_in_the_sentence_about_it() -> None:
    with pytest.raises(ValueError, match="no host name") as refused:
        egress_from(["a" * 100_000 + ".example"])
    assert len(str(refused.value)) < 300


@given(st.lists(st.text(max_size=300) | st.from_regex(r"[0-9*a-zA-Z./:-]{1,20}", fullmatch=True), max_size=5))
def test_whatever_is_given_is_a_policy_that_survives_being_spoken_or_a_sentence(entries: list[str]) -> None:
    try:
        egress = egress_from(entries)
    except ValueError:
        return
    assert egress.mode is Mode.ALLOW
    assert egress_from(egress.spoken()) == egress
