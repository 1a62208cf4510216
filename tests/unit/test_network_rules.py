"""Addresses, settings and names of the network, as pure functions."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import dns.message
import dns.name
import dns.rrset
import pytest

from torpor.errors import InvalidRequest
from torpor.model.network import NO_NETWORK, Egress, Mode
from torpor.network.addresses import COMMAND_LINE_WORD, GATEWAY, GUEST, is_reachable, slot_network, slots_in
from torpor.network.config import NameServer, NetworkConfig, network_from_environment
from torpor.network.names import LONGEST_S, SHORTEST_S, allowing_entry, entry_mark, pins_of, shorten
from torpor.network.rules import Pin, pin_rules, policy_rules, slot_rules
from torpor.network.upstream import name_servers_in
from torpor_guest.ethernet import read_ethernet

CONFIG = NetworkConfig()
VARIABLES = ("", "_RANGE", "_PRIVATE", "_MBIT", "_CONNECTIONS", "_NEW_CONNECTIONS")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*(f"TORPOR_NETWORK{rest}" for rest in VARIABLES), "TORPOR_DNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("address", ["0.1.2.3", "10.0.0.1", "100.127.255.255", "127.0.0.1", "169.254.169.254"])
def test_private_and_local_addresses_are_not_reachable(address: str) -> None:
    assert not is_reachable(IPv4Address(address), ())


@pytest.mark.parametrize("address", ["172.31.0.1", "192.0.2.1", "198.19.0.1", "224.0.0.1", "255.255.255.255"])
def test_reserved_addresses_are_not_reachable(address: str) -> None:
    assert not is_reachable(IPv4Address(address), ())


@pytest.mark.parametrize("address", ["1.1.1.1", "100.63.255.255", "100.128.0.0", "172.32.0.0", "192.167.255.255"])
def test_their_neighbours_are_reachable(address: str) -> None:
    assert is_reachable(IPv4Address(address), ())


def test_what_the_operator_opens_is_reachable() -> None:
    assert is_reachable(IPv4Address("10.5.0.1"), (IPv4Network("10.5.0.0/16"),))
    assert not is_reachable(IPv4Address("10.6.0.1"), (IPv4Network("10.5.0.0/16"),))


def test_slots_have_networks_of_their_own_that_fill_their_range() -> None:
    range_ = IPv4Network("10.213.0.0/24")
    networks = [slot_network(range_, index) for index in range(slots_in(range_))]
    assert len({outer.network for outer, _ in networks}) == 64
    assert all(outer.network == inner.network and outer.ip != inner.ip for outer, inner in networks)
    assert all(outer.network.subnet_of(range_) for outer, _ in networks)


def test_the_guest_reads_from_its_command_line_what_the_host_has_written() -> None:
    told = read_ethernet(f"console=ttyS0 {COMMAND_LINE_WORD} quiet")
    assert told is not None
    assert (told.address, told.gateway) == (GUEST, GATEWAY.ip)
    assert told.resolv_conf() == f"nameserver {GATEWAY.ip}\n".encode()


@pytest.mark.parametrize("line", ["", "quiet", "torpor.net=", "torpor.net=1.2.3.4/33,1.2.3.5", "torpor.net=x/30,y"])
def test_a_guest_that_was_told_nothing_goes_without(line: str) -> None:
    assert read_ethernet(line) is None


def test_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert network_from_environment() == CONFIG
    monkeypatch.setenv("TORPOR_NETWORK", "off")
    monkeypatch.setenv("TORPOR_NETWORK_RANGE", "172.20.0.0/16")
    monkeypatch.setenv("TORPOR_NETWORK_PRIVATE", "10.5.0.0/16, 10.6.0.1/32")
    monkeypatch.setenv("TORPOR_NETWORK_MBIT", "50")
    monkeypatch.setenv("TORPOR_NETWORK_CONNECTIONS", "10")
    monkeypatch.setenv("TORPOR_NETWORK_NEW_CONNECTIONS", "5")
    monkeypatch.setenv("TORPOR_DNS", "9.9.9.9,1.1.1.1:5353,[2620:fe::fe]:54,2620:fe::9")
    assert network_from_environment() == NetworkConfig(
        use="off",
        range=IPv4Network("172.20.0.0/16"),
        private=(IPv4Network("10.5.0.0/16"), IPv4Network("10.6.0.1/32")),
        name_servers=(
            NameServer("9.9.9.9"),
            NameServer("1.1.1.1", 5353),
            NameServer("2620:fe::fe", 54),
            NameServer("2620:fe::9"),
        ),
        mbit=50,
        connections=10,
        new_connections=5,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORPOR_NETWORK", "on"),
        ("TORPOR_NETWORK_RANGE", "10.213.0.0/30"),
        ("TORPOR_NETWORK_RANGE", "8.8.0.0/16"),
        ("TORPOR_NETWORK_RANGE", "10.0.0.0/8"),
        ("TORPOR_NETWORK_RANGE", "somewhere"),
        ("TORPOR_NETWORK_PRIVATE", "127.0.0.0/8"),
        ("TORPOR_NETWORK_PRIVATE", "0.0.0.0/0"),
        ("TORPOR_NETWORK_PRIVATE", "10.5.0.1/16"),
        ("TORPOR_NETWORK_MBIT", "0"),
        ("TORPOR_NETWORK_CONNECTIONS", "-1"),
        ("TORPOR_DNS", "dns.example.com"),
        ("TORPOR_DNS", "9.9.9.9:0"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest, match=name):
        network_from_environment()


def test_each_policy_has_its_own_judgement_and_none_answers_no_names() -> None:
    internet, none = policy_rules(CONFIG, Egress(), 7), policy_rules(CONFIG, NO_NETWORK, 8)
    assert "ct mark 7 accept" in internet
    assert "ct mark 8 accept" in none
    assert "dport 53 accept" in internet
    assert "dport 53" not in none
    assert "goto admit" not in none.partition("chain judge")[2].partition("}")[0]


def test_an_allow_list_has_its_networks_and_what_its_names_have_brought() -> None:
    allow = Egress(Mode.ALLOW, ("20.0.0.0/24",), ("example.com",))
    rules = policy_rules(CONFIG, allow, 9, [Pin(IPv4Address("20.1.0.1"), 60, "mark")])
    assert "add element inet torpor allowed { 20.0.0.0/24 }" in rules
    assert '20.1.0.1 timeout 60s comment "mark"' in rules
    assert pin_rules([]) == ""


def test_the_host_s_own_addresses_are_in_the_rules_of_a_slot() -> None:
    rules = slot_rules(CONFIG, [IPv4Address("20.0.0.9")], Egress(), 1)
    assert "20.0.0.9" in rules
    assert str(CONFIG.range) in rules


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("example.com", "example.com"),
        ("a.example.com", None),
        ("a.sub.example.org", "*.sub.example.org"),
        ("a.b.sub.example.org", "*.sub.example.org"),
        ("sub.example.org", None),
        ("evilsub.example.org", None),
        ("example.com.evil.org", None),
    ],
)
def test_an_entry_allows_its_name_or_the_names_below_it(name: str, entry: str | None) -> None:
    assert allowing_entry(name, ("example.com", "*.sub.example.org")) == entry


def answer_to(name: str, *records: str) -> dns.message.Message:
    """Return an answer for a name with records such as `name ttl kind value`."""
    reply = dns.message.make_response(dns.message.make_query(name, "A"))
    for owner, ttl, kind, *values in (record.split() for record in records):
        reply.answer.append(dns.rrset.from_text(dns.name.from_text(owner), int(ttl), "IN", kind, *values))
    return dns.message.from_wire(reply.to_wire())


def test_an_answer_brings_the_addresses_of_the_name_and_of_its_aliases() -> None:
    told = answer_to("a.org", "a.org 900 CNAME b.net.", "b.net 900 CNAME c.net.", "c.net 900 A 20.0.0.1 20.0.0.2")
    assert {(str(pin.address), pin.lasts_s, pin.entry) for pin in pins_of(told, "a.org", ())} == {
        ("20.0.0.1", 960, entry_mark("a.org")),
        ("20.0.0.2", 960, entry_mark("a.org")),
    }


def test_records_of_other_names_bring_nothing() -> None:
    told = answer_to("a.org", "a.org 900 A 20.0.0.1", "b.org 900 A 20.0.0.2", "c.org 900 CNAME a.org.")
    assert [str(pin.address) for pin in pins_of(told, "a.org", ())] == ["20.0.0.1"]


def test_addresses_that_no_sandbox_reaches_bring_nothing() -> None:
    told = answer_to("a.org", "a.org 900 A 10.0.0.1 169.254.169.254 127.0.0.1 20.0.0.1")
    assert [str(pin.address) for pin in pins_of(told, "a.org", ())] == ["20.0.0.1"]


def test_aliases_that_go_round_bring_nothing() -> None:
    assert pins_of(answer_to("a.org", "a.org 9 CNAME b.org.", "b.org 9 CNAME a.org."), "a.org", ()) == []


def test_what_an_answer_brings_lasts_for_a_bounded_time() -> None:
    short, long = (answer_to("a.org", f"a.org {ttl} A 20.0.0.1") for ttl in (0, 999999))
    assert [pins_of(told, "a.org", ())[0].lasts_s for told in (short, long)] == [SHORTEST_S + 60, LONGEST_S + 60]
    shorten(long)
    assert long.answer[0].ttl == LONGEST_S


def test_an_answer_brings_a_bounded_number_of_addresses() -> None:
    told = answer_to("a.org", "a.org 9 A " + " ".join(f"20.0.{high}.{low}" for high in (0, 1) for low in range(64)))
    assert len(pins_of(told, "a.org", ())) == 64


def test_name_servers_are_read_from_a_resolv_conf() -> None:
    lines = ("# comment", "search x", *(f"nameserver {each}" for each in ("9.9.9.9", "x", "::1", "1.1.1.1", "8.8.8.8")))
    text = "\n".join(lines)
    assert name_servers_in(text) == (NameServer("9.9.9.9"), NameServer("::1"), NameServer("1.1.1.1"))
