"""Who is asked for names: what is configured, or the resolvers of this host."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

import dns.asyncbackend
import dns.asyncquery
import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rdatatype
import structlog

from torpor.errors import Unavailable
from torpor.network.config import NameServer

_log = structlog.get_logger(__name__)
_RESOLV_CONF = Path("/etc/resolv.conf")
# Each name server is asked so long, in seconds, one after another, and all of them together no longer than that.
_EACH_S, _ALL_S = 2.0, 6.0
# So many questions are under way at a time, whoever asks.
_AT_ONCE = 256
# An answer by UDP that is larger comes by TCP instead: a packet of this size is not cut anywhere.
PAYLOAD_BYTES = 1232
_MOST_SERVERS = 3


class Upstream:
    """Asks name servers: those given, or else those of /etc/resolv.conf, which is read again when it has changed."""

    def __init__(self, given: Sequence[NameServer] = (), *, resolv_conf: Path = _RESOLV_CONF) -> None:
        self._given, self._file = tuple(given), resolv_conf
        self._read: tuple[tuple[int, int] | None, tuple[NameServer, ...]] = (None, ())
        self._limit = asyncio.Semaphore(_AT_ONCE)

    def servers(self) -> tuple[NameServer, ...]:
        """Return who is asked now, in order."""
        if self._given:
            return self._given
        try:
            stat = self._file.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if self._read[0] != stamp:
                self._read = (stamp, name_servers_in(self._file.read_text(errors="replace")))
        except OSError as error:
            _log.warning("the host's name servers are not known", path=str(self._file), error=str(error))
            self._read = (None, ())
        return self._read[1]

    async def ask(self, name: dns.name.Name, kind: dns.rdatatype.RdataType) -> dns.message.Message:
        """Return the answer for a name, whatever it says. Raises Unavailable if nobody gives one that can be read.

        It is for this question, by its number and its words, and comes from whom it was asked of.
        """
        said: list[str] = []
        try:
            async with asyncio.timeout(_ALL_S), self._limit:
                for server in self.servers():
                    query = dns.message.make_query(name, kind, use_edns=0, payload=PAYLOAD_BYTES)
                    try:
                        return await _asked(query, server)
                    except (dns.exception.DNSException, OSError, EOFError) as error:
                        said.append(f"{server.address}: {error or type(error).__name__}")
        except TimeoutError:
            said.append("it took too long")
        raise Unavailable(f"no name server answered: {'; '.join(said) or 'none is known'}")


async def _asked(query: dns.message.Message, server: NameServer) -> dns.message.Message:
    answer, _ = await dns.asyncquery.udp_with_fallback(
        query,
        server.address,
        timeout=_EACH_S,
        port=server.port,
        ignore_unexpected=True,
        ignore_errors=True,
        backend=dns.asyncbackend.get_backend("asyncio"),
    )
    return answer


def name_servers_in(text: str) -> tuple[NameServer, ...]:
    """Return the name servers of a resolv.conf: as many as a resolver looks at."""
    found: list[NameServer] = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            try:
                ip_address(words[1])
            except ValueError:
                continue  # a resolver passes over it too
            found.append(NameServer(words[1]))
    return tuple(found[:_MOST_SERVERS])
