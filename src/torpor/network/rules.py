"""The firewall of a slot, as a pure function of what it is for: text for `nft -f`.

A packet of the guest passes two tables. The one at the tap itself lets through nothing but IPv4 and ARP from the
address the guest has. The other one judges where to: a flow that was found to be allowed carries the number of that
judgement as its mark, and with it passes both ways. A change of policy gives out a new number in the same transaction
as its rules, so every flow is judged anew by its next packet, and one that is not allowed any more is cut off both
ways. Whatever is not allowed is counted, and refused, so that programs hear of it instead of waiting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from torpor.model.network import Egress, Mode
from torpor.network.addresses import GATEWAY, GUEST, GUEST_MAC, SPECIAL
from torpor.network.config import NetworkConfig

TAP, UPLINK, TABLE = "tap0", "up0", "torpor"
PINNED = "pinned"
# How many addresses names may have brought at a time, and how many denied destinations are told one by one.
MAX_PINNED, MAX_TOLD = 4096, 256
_TOLD_S = 3600
# Questions for names in a second: more than any program asks for, and no more than the host agent can answer.
_QUESTIONS = 200

# What the names of counters begin with: a reason alone may be a word of the language.
COUNTER = "no-"
# Reasons by which packets are counted, in the order in which they are looked at.
AT_TAP = ("spoofed-mac", "spoofed-address", "spoofed-arp", "ipv6", "other-protocol")
BEHIND = (
    *("invalid", "protocol", "host", "private", "not-allowed", "too-many-connections", "too-fast", "gateway"),
    *("unasked", "too-many-questions"),
)


@dataclass(frozen=True, slots=True)
class Pin:
    """An address that an answer for a name has brought, for so many seconds. `entry`: which one of the allow-list."""

    address: IPv4Address
    lasts_s: int
    entry: str


def slot_rules(config: NetworkConfig, host: Collection[IPv4Address], egress: Egress, judgement: int) -> str:
    """Return the whole ruleset of a new slot. `host`: addresses of the host itself. `judgement`: see `policy_rules`."""
    return "\n".join([_at_tap(), _frame(config, host), policy_rules(config, egress, judgement), ""])


def _at_tap() -> str:
    return f"""
table netdev {TABLE} {{
{_counters(AT_TAP)}
  chain from_arp {{
    arp saddr ether != {GUEST_MAC} counter name "no-spoofed-arp" drop
    arp saddr ip != {{ {GUEST.ip}, 0.0.0.0 }} counter name "no-spoofed-arp" drop
    arp daddr ip != {GATEWAY.ip} counter name "no-spoofed-arp" drop
    accept
  }}
  chain ingress {{
    type filter hook ingress device "{TAP}" priority 0; policy drop;
    ether saddr != {GUEST_MAC} counter name "no-spoofed-mac" drop
    ether type arp goto from_arp
    ether type ip6 counter name "no-ipv6" drop
    ether type != ip counter name "no-other-protocol" drop
    ip saddr != {GUEST.ip} counter name "no-spoofed-address" drop
    accept
  }}
}}"""


def _frame(config: NetworkConfig, host: Collection[IPv4Address]) -> str:
    """Everything that does not depend on the policy."""
    own = [config.range, *(IPv4Network(address) for address in host)]
    told = f"size {MAX_TOLD}; flags dynamic,timeout; timeout {_TOLD_S}s;"
    return f"""
table inet {TABLE} {{
{_counters(BEHIND)}
{_networks("own", own)}
{_networks("opened", config.private)}
{_networks("special", SPECIAL)}
{_networks("allowed", ())}
  set {PINNED} {{ type ipv4_addr; size {MAX_PINNED}; flags timeout; }}
  set flows {{ type ipv4_addr . inet_proto . inet_service; {told} }}
  set hosts {{ type ipv4_addr . inet_proto; {told} }}
  chain questions {{
    type filter hook prerouting priority raw; policy accept;
    iifname "{TAP}" ip daddr {GATEWAY.ip} udp dport 53 notrack
  }}
  chain answers {{
    type filter hook output priority raw; policy accept;
    oifname "{TAP}" ip saddr {GATEWAY.ip} udp sport 53 notrack
  }}
  chain refuse {{
    meta l4proto {{ tcp, udp }} update @flows {{ ip daddr . meta l4proto . th dport counter }}
    meta l4proto != {{ tcp, udp }} update @hosts {{ ip daddr . meta l4proto counter }}
    limit rate 100/second burst 200 packets reject with icmpx admin-prohibited
    drop
  }}
  chain judge {{ }}
  chain admit {{ }}
  chain ask {{ }}
  chain out {{ }}
  chain back {{ }}
  chain forward {{
    type filter hook forward priority filter; policy drop;
    iifname "{TAP}" oifname "{UPLINK}" goto out
    iifname "{UPLINK}" oifname "{TAP}" goto back
    iifname "{TAP}" counter name "no-gateway" goto refuse
    counter name "no-unasked" drop
  }}
  chain input {{
    type filter hook input priority filter; policy drop;
    iifname "lo" accept
    iifname "{TAP}" ip daddr {GATEWAY.ip} goto ask
    iifname "{TAP}" counter name "no-gateway" goto refuse
    counter name "no-unasked" drop
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname "{UPLINK}" masquerade
  }}
}}"""


def policy_rules(config: NetworkConfig, egress: Egress, judgement: int, pins: Iterable[Pin] = ()) -> str:
    """Return what puts a policy in force in a slot's ruleset, as one transaction.

    `judgement` is a number that no earlier one in this slot had, from 1 to 2^31. `pins`: what names have brought that
    is allowed still.
    """
    chains = " ".join(f"flush chain inet {TABLE} {chain};" for chain in ("judge", "admit", "ask", "out", "back"))
    return f"""
{chains}
flush set inet {TABLE} allowed; flush set inet {TABLE} {PINNED};
table inet {TABLE} {{
  chain out {{
    ct state invalid counter name "no-invalid" drop
    ct mark {judgement} accept
    meta l4proto != {{ icmp, tcp, udp }} counter name "no-protocol" goto refuse
    meta l4proto icmp icmp type != echo-request counter name "no-protocol" drop
    ip daddr @own counter name "no-host" goto refuse
    ip daddr @opened goto judge
    ip daddr @special counter name "no-private" goto refuse
    goto judge
  }}
  chain judge {{
    {_judge(egress.mode)}
  }}
  chain admit {{
    ct state new ct count over {config.connections} counter name "no-too-many-connections" goto refuse
    ct state new limit rate over {config.new_connections}/second burst {2 * config.new_connections} packets \
counter name "no-too-fast" drop
    ct mark set {judgement} accept
  }}
  chain back {{
    ct state invalid drop
    ct mark {judgement} accept
    counter name "no-unasked" drop
  }}
  chain ask {{
    {_ask(egress.mode)}
  }}
}}
{_elements("allowed", egress.cidrs)}
{pin_rules(pins)}"""


def _judge(mode: Mode) -> str:
    match mode:
        case Mode.INTERNET:
            return "goto admit"
        case Mode.ALLOW:
            allowed = (f"ip daddr @{name} goto admit" for name in ("allowed", PINNED))
            return "\n    ".join([*allowed, 'counter name "no-not-allowed" goto refuse'])
        case Mode.NONE:
            return 'counter name "no-not-allowed" goto refuse'


def _ask(mode: Mode) -> str:
    if mode is Mode.NONE:
        return 'counter name "no-not-allowed" goto refuse'
    rate = f"{_QUESTIONS}/second burst {2 * _QUESTIONS} packets"
    too_many = f'limit rate over {rate} counter name "no-too-many-questions" drop'
    return "\n    ".join(
        [
            f"udp dport 53 {too_many}",
            "udp dport 53 accept",
            f"tcp dport 53 ct state new {too_many}",
            "tcp dport 53 accept",
            "icmp type echo-request limit rate 20/second burst 40 packets accept",
            'counter name "no-gateway" goto refuse',
        ]
    )


def pin_rules(pins: Iterable[Pin]) -> str:
    """Return what lets addresses pass that names have brought; one that passes already lasts as long as is said now."""
    lines = []
    for pin in pins:
        start = f"element inet {TABLE} {PINNED} {{ {pin.address}"
        # A set keeps the time of an element that it has; so it is taken out first, and for that it has to be there.
        lines.append(f"add {start} timeout 1s }}; delete {start} }};")
        lines.append(f'add {start} timeout {pin.lasts_s}s comment "{pin.entry}" }};')
    return "\n".join(lines)


def _counters(reasons: Iterable[str]) -> str:
    return "\n".join(f"  counter {COUNTER}{reason} {{ }}" for reason in reasons)


def _networks(name: str, networks: Collection[IPv4Network]) -> str:
    listed = f" elements = {{ {', '.join(map(str, networks))} }}" if networks else ""
    return f"  set {name} {{ type ipv4_addr; flags interval; auto-merge;{listed} }}"


def _elements(name: str, networks: Collection[str]) -> str:
    return f"add element inet {TABLE} {name} {{ {', '.join(networks)} }}" if networks else ""
