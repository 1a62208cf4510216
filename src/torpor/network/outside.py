"""The host's side of the slots: a second firewall, forwarding, and the way out.

It trusts no slot: whatever comes from one may go to public addresses, and what the operator has opened, only; never to
this host, never to another slot. Packets for a slot pass only as answers.

A kernel forwards what comes in at an interface only if that is switched on there. Where the whole host forwards
already, nothing is changed. Else it is switched on for the interfaces that lead outside, and a guard lets nothing pass
there but what is for slots. Which interfaces these are is kept in the guard's table, that all servers of this host
share: the last one to end switches them off again, whatever happened to the others.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from pathlib import Path

import structlog

from torpor.errors import Failed, Unsupported
from torpor.network.addresses import SPECIAL
from torpor.network.config import NetworkConfig
from torpor.network.programs import ip_told, nft, nft_told
from torpor.network.tap import DEVICE

_log = structlog.get_logger(__name__)
# How the links of all servers begin, and their tables.
LINKS, TABLES = "torp", "torpor-"
GUARD = f"{TABLES}guard"
_CONF = Path("/proc/sys/net/ipv4/conf")
_LOOPBACK = "lo"


@contextmanager
def alone() -> Iterator[None]:
    """Keep other servers of this host from making slots, or switching forwarding, while the block runs. Blocks."""
    everybodys = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)  # a file that is there, and that nobody else locks
    try:
        fcntl.flock(everybodys, fcntl.LOCK_EX)
        yield
    finally:
        os.close(everybodys)


def own_addresses() -> list[IPv4Address]:
    """Return the IPv4 addresses that this host has now, but those on slots. Raises Failed, Unsupported."""
    shown = ip_told("-4", "address", "show")
    links = [link for link in shown if not str(link.get("ifname", "")).startswith(LINKS)]
    return [IPv4Address(each["local"]) for link in links for each in link.get("addr_info", ()) if "local" in each]


def check_range(config: NetworkConfig) -> None:
    """Make sure that nobody has the range of the slots. Raises Unsupported if somebody has, Failed."""
    for route in ip_told("-4", "route", "show", "table", "all"):
        with suppress(AddressValueError, ValueError):
            network = IPv4Network(str(route["dst"]), strict=False)
            if network.overlaps(config.range) and not str(route.get("dev", "")).startswith(LINKS):
                raise Unsupported(
                    f"this host has a route to {route['dst']}, within {config.range} where slots get their addresses",
                    hint="set TORPOR_NETWORK_RANGE to a private network that is not used here, such as 10.214.0.0/16",
                )


def set_up(digest: str, config: NetworkConfig) -> None:
    """Put the host's firewall for the slots of a server in place, as a whole. Raises Failed, Unsupported."""
    nft(host_rules(digest, config))


def remove(digest: str) -> None:
    """Remove what `set_up` made, and if no other server is left, switch forwarding off again where it was switched on.

    Raises Failed, Unsupported.
    """
    with alone():
        nft(_without(TABLES + digest))
        tables = _tables()
        if GUARD in tables and not any(name.startswith(TABLES) and name != GUARD for name in tables):
            for name in _switched_on():
                _switch(name, on=False)
            nft(_without(GUARD))


def switch_on_forwarding(config: NetworkConfig) -> None:
    """Have this host forward what slots send and get, on the interfaces that lead outside, if it does not yet.

    Raises Failed, Unsupported.
    """
    with alone():
        if (_CONF / "all/forwarding").read_text().strip() == "1":  # somebody else has the whole host forward by now
            if GUARD in _tables():
                nft(_without(GUARD))
            return
        wanted = [name for name in _ways_out(config) if (_CONF / name / "forwarding").read_text().strip() != "1"]
        if not wanted:
            return
        names = ", ".join(f'"{name}"' for name in wanted)
        nft(_guard_rules() + f"add element inet {GUARD} switched-on {{ {names} }}\n")  # noted, guarded, and only then
        for name in wanted:
            _switch(name, on=True)
            _log.info("this host forwards for its sandboxes", interface=name)


def _ways_out(config: NetworkConfig) -> list[str]:
    """Return the interfaces that lead to the internet, or to what the operator has opened."""
    found: list[str] = []
    for route in ip_told("-4", "route", "show", "table", "all"):
        name = str(route.get("dev", ""))
        leads_out = route.get("type", "unicast") == "unicast" and not name.startswith(LINKS) and name != _LOOPBACK
        if leads_out and name not in found and _is_outside(str(route["dst"]), config.private):
            found.append(name)
    return found


def _is_outside(destination: str, private: Collection[IPv4Network]) -> bool:
    if destination == "default":
        return True
    try:
        network = IPv4Network(destination, strict=False)
    except ValueError:
        return False
    return any(network.overlaps(each) for each in private) or not any(network.subnet_of(each) for each in SPECIAL)


def _switch(name: str, *, on: bool) -> None:
    try:
        (_CONF / name / "forwarding").write_text("1" if on else "0")
    except FileNotFoundError:
        _log.info("an interface is gone", interface=name)
    except OSError as error:
        raise Failed(f"forwarding of {name} could not be switched {'on' if on else 'off'}: {error}") from error


def _tables() -> list[str]:
    return [each["table"]["name"] for each in nft_told("tables", "inet") if "table" in each]


def _switched_on() -> list[str]:
    sets = [each["set"] for each in nft_told("set", "inet", GUARD, "switched-on") if "set" in each]
    return [str(name) for each in sets for name in each.get("elem", ())]


def _without(table: str) -> str:
    """Return what removes a table, whether there is one or not."""
    return f"table inet {table} {{ }}\ndelete table inet {table}\n"


def _guard_rules() -> str:
    return f"""
table inet {GUARD} {{
  set switched-on {{ type ifname; }}
  chain forward {{ type filter hook forward priority filter - 10; policy accept; }}
}}
flush chain inet {GUARD} forward
table inet {GUARD} {{
  chain forward {{
    iifname @switched-on oifname != "{LINKS}*" counter drop
  }}
}}
"""


def host_rules(digest: str, config: NetworkConfig) -> str:
    """Return the host's ruleset for the slots of a server, in place of the one there was."""
    table, ours = TABLES + digest, f"{LINKS}{digest}-*"
    opened = f"ip daddr {{ {', '.join(map(str, config.private))} }} accept" if config.private else ""
    return f"""
{_without(table)}
table inet {table} {{
  chain out {{
    meta nfproto != ipv4 counter drop
    oifname "{LINKS}*" counter drop
    ip saddr != {config.range} counter drop
    ip daddr {config.range} counter drop
    {opened}
    ip daddr {{ {", ".join(map(str, SPECIAL))} }} counter drop
    accept
  }}
  chain back {{
    meta nfproto ipv4 ct state established,related accept
    counter drop
  }}
  chain forward {{
    type filter hook forward priority filter - 10; policy accept;
    iifname "{ours}" goto out
    oifname "{ours}" goto back
  }}
  chain input {{
    type filter hook input priority filter - 10; policy accept;
    iifname "{ours}" counter drop
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {config.range} oifname != "{LINKS}*" masquerade
  }}
}}
"""
