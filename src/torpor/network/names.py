"""Which names an allow-list allows, and which addresses an answer brings for them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network

import dns.message
import dns.name
import dns.rdatatype
import dns.rrset

from torpor.network.addresses import is_reachable
from torpor.network.rules import Pin

# A chain of aliases within one answer is followed so far.
_MOST_ALIASES = 16
# One answer brings at most so many addresses.
MAX_ADDRESSES = 64
# How long an address passes that a name has brought, in seconds: a program may keep an answer for longer than it is
# good, and begin a connection late; and it is to ask again one day.
SHORTEST_S, LONGEST_S, GRACE_S = 300, 3600, 60


def allowing_entry(name: str, entries: Iterable[str]) -> str | None:
    """Return the entry of an allow-list that allows a name (lower-case, without a last dot); None if none does."""
    for entry in entries:
        if entry == name or (entry.startswith("*.") and name.endswith(entry[1:])):
            return entry
    return None


def entry_mark(entry: str) -> str:
    """Return what marks what came by an entry of an allow-list, where there is little room: 16 hex digits."""
    return hashlib.blake2s(entry.encode(), digest_size=8).hexdigest()


def plain(name: dns.name.Name) -> str:
    """Return a name as text, in lower case and without a last dot."""
    return name.to_text(omit_final_dot=True).lower()


def pins_of(answer: dns.message.Message, entry: str, private: tuple[IPv4Network, ...]) -> list[Pin]:
    """Return the addresses that an answer brings for the name that was asked for.

    They are those of the name itself, and of what it is an alias of, as this answer has it; whatever else is in the
    answer brings nothing, nor do addresses that no sandbox reaches.
    """
    records = {(rrset.name, rrset.rdtype): rrset for rrset in answer.answer}
    name, found = answer.question[0].name, {}
    for _ in range(_MOST_ALIASES):
        alias = records.get((name, dns.rdatatype.CNAME))
        if (addresses := records.get((name, dns.rdatatype.A))) is not None:
            found = _lasting(addresses)
        if alias is None:
            break
        name = next(iter(alias)).target
    reachable = {address: lasts_s for address, lasts_s in found.items() if is_reachable(address, private)}
    return [Pin(address, lasts_s, entry_mark(entry)) for address, lasts_s in reachable.items()][:MAX_ADDRESSES]


def _lasting(addresses: dns.rrset.RRset) -> dict[IPv4Address, int]:
    lasts_s = min(max(addresses.ttl, SHORTEST_S), LONGEST_S) + GRACE_S
    return {IPv4Address(record.address): lasts_s for record in addresses}


def shorten(answer: dns.message.Message) -> None:
    """Have what an answer brings be good for no longer than it passes."""
    for rrset in (*answer.answer, *answer.authority):
        rrset.ttl = min(rrset.ttl, LONGEST_S)
