"""HTTP to servers in sandboxes, through a real server of ours on a socket; the host is a fake one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx2
import pytest

from loopback_servers import answering, closed_port, request_of, serving
from ports_rig import IN_GUEST, PATIENCE_S, PortsRig, ports_rig
from torpor.model.ids import SandboxId

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture
async def ports() -> AsyncIterator[PortsRig]:
    async with ports_rig() as rig:
        yield rig


def with_headers(*lines: str, status: str = "200 OK", body: str = "ok") -> bytes:
    head = [f"HTTP/1.1 {status}", *lines, f"content-length: {len(body)}", "", body]
    return "\r\n".join(head).encode()


def fields(request: bytes) -> dict[str, str]:
    lines = request.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


async def test_a_request_by_path_with_the_key_reaches_the_server_as_it_was_sent(ports: PortsRig) -> None:
    async with answering(OK) as (port, came), ports.serves(port) as sandbox:
        path = f"{ports.by_path(sandbox)}/a%2Fb//c?x=1&y=%20&x=2"
        answer = await ports.http.post(path, content=b"body", headers=ports.key())
    assert (answer.status_code, answer.text) == (200, "ok")
    assert came[0].startswith(b"POST /a%2Fb//c?x=1&y=%20&x=2 HTTP/1.1\r\n")
    assert came[0].endswith(b"\r\n\r\nbody")
    assert fields(came[0])["x-forwarded-prefix"] == ports.by_path(sandbox)
    assert "authorization" not in fields(came[0])


async def test_a_request_by_host_with_a_link_reaches_the_server_with_its_own_authorization(ports: PortsRig) -> None:
    async with answering(OK) as (port, came), ports.serves(port) as sandbox:
        headers = await ports.linked(sandbox, authorization="Basic app", cookie="a=1; torpor-link=x; b=2")
        answer = await ports.http.get("/v1/sandboxes", headers=headers)
    assert (answer.status_code, answer.text) == (200, "ok")
    sent = fields(came[0])
    assert came[0].startswith(b"GET /v1/sandboxes HTTP/1.1\r\n")
    assert (sent["authorization"], sent["cookie"], sent["host"]) == ("Basic app", "a=1; b=2", ports.by_host(sandbox))
    assert "x-torpor-token" not in sent
    assert sent["x-request-id"] == answer.headers["x-request-id"]


async def test_what_says_who_asks_is_ours_and_hop_by_hop_headers_stay(ports: PortsRig) -> None:
    async with answering(OK) as (port, came), ports.serves(port) as sandbox:
        more = {"x-forwarded-for": "6.6.6.6", "forwarded": "for=6.6.6.6", "x-real-ip": "6.6.6.6", "te": "trailers"}
        more |= {"x-forwarded-host": "evil", "x-forwarded-proto": "https", "x-mine": "1", "x-hop": "1"}
        headers = await ports.linked(sandbox, connection="x-hop, keep-alive", **more)
        assert (await ports.http.get("/", headers=headers)).status_code == 200
    sent = fields(came[0])
    assert (sent["x-forwarded-for"], sent["x-forwarded-proto"]) == ("127.0.0.1", "http")
    assert (sent["x-forwarded-host"], sent["x-mine"], sent["connection"]) == (ports.by_host(sandbox), "1", "close")
    assert not {"forwarded", "x-real-ip", "te", "x-hop", "keep-alive"} & sent.keys()


async def test_what_is_done_by_path_is_in_the_audit_log_without_what_was_asked_for(ports: PortsRig) -> None:
    async with answering(OK) as (port, _), ports.serves(port) as sandbox:
        path = f"{ports.by_path(sandbox)}/secret?x=hidden"
        assert (await ports.http.post(path, headers=ports.key())).status_code == 200
        (entry,) = (await ports.rig.http.get("/v1/audit", params={"kind": "use"})).json()["items"]
    assert entry["action"] == "POST /v1/sandboxes/{id}/proxy/{port}/{path:path}"
    assert (entry["targets"], entry["status"]) == ([sandbox], 200)


async def test_a_key_or_token_that_nobody_asked_for_goes_no_further(ports: PortsRig) -> None:
    async with answering(OK) as (port, came), ports.serves(port) as sandbox:
        headers = await ports.linked(sandbox, **ports.key(), referer=f"http://x/?torpor_token={'t' * 9}")
        assert (await ports.http.get("/", headers=headers)).status_code == 200
        by_path = {name: headers[name] for name in ("authorization", "x-torpor-token", "referer")}
        assert (await ports.http.get(ports.by_path(sandbox) + "/", headers=by_path)).status_code == 200
    assert len(came) == 2
    assert not any(b"tpr_" in request or b"tpl_" in request or b"ttttt" in request for request in came)


async def test_a_host_of_a_server_never_answers_as_the_api_does(ports: PortsRig) -> None:
    sandbox = await ports.rig.create()
    for host in (ports.by_host(sandbox), ports.by_host("sbx-0000000000000000")):
        answer = await ports.http.get("/v1/sandboxes", headers={"host": host, **ports.key()})
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    for host in ("api.localhost", f"0-{sandbox}.localhost", f"99999-{sandbox}.localhost", f"80-{sandbox}.x.localhost"):
        answer = await ports.http.get("/v1/sandboxes", headers={"host": host, **ports.key()})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), host


async def test_a_browser_that_follows_a_link_goes_on_with_a_cookie_for_that_host_alone(ports: PortsRig) -> None:
    async with answering(OK) as (port, came), ports.serves(port) as sandbox:
        token, host = await ports.token(sandbox), {"host": ports.by_host(sandbox)}
        page = {"accept": "text/html,*/*", **host}
        first = await ports.http.get(f"/page?a=1&torpor_token={token}&b=2", headers=page)
        assert (first.status_code, first.headers["location"]) == (303, "/page?a=1&b=2")
        cookie = first.headers["set-cookie"]
        assert cookie.startswith(f"torpor-link={token}; Path=/; Max-Age=")
        assert "HttpOnly; SameSite=Lax" in cookie
        assert "domain" not in cookie.lower()
        assert not came
        second = await ports.http.get("/page", headers=page | {"cookie": f"torpor-link={token}"})
        other = await ports.rig.create()
        elsewhere = {"host": ports.by_host(other), "cookie": f"torpor-link={token}"}
        assert (await ports.http.get("/", headers=elsewhere)).status_code == 401
    assert (second.status_code, len(came)) == (200, 1)
    assert "cookie" not in fields(came[0])


@pytest.mark.parametrize("path", ["//evil.example/x", "/\\evil.example/x", "/%5Cevil.example"])
async def test_a_link_leads_to_no_other_host(ports: PortsRig, path: str) -> None:
    sandbox = await ports.rig.create()
    token = await ports.token(sandbox)
    head = f"GET {path}?torpor_token={token} HTTP/1.1\r\nhost: {ports.by_host(sandbox)}\r\n"
    answer = await ports.raw(f"{head}accept: text/html\r\nconnection: close\r\n\r\n".encode())
    where = dict(line.split(b": ", 1) for line in answer.split(b"\r\n\r\n")[0].split(b"\r\n")[1:]).get(
        b"location", b"/"
    )
    resolved = httpx2.URL("http://here.example/").join(where.decode())
    assert resolved.host == "here.example"
    assert b"\\" not in where


async def test_a_program_is_answered_at_once_and_its_token_goes_no_further(ports: PortsRig) -> None:
    async with answering(OK) as (port, came), ports.serves(port) as sandbox:
        token = await ports.token(sandbox)
        for path, host in (("", ports.by_host(sandbox)), (ports.by_path(sandbox), f"127.0.0.1:{ports.port}")):
            answer = await ports.http.get(f"{path}/x?torpor_token={token}&a=1", headers={"host": host})
            assert (answer.status_code, answer.headers["referrer-policy"]) == (200, "no-referrer")
    assert [request.split(b" ")[1] for request in came] == [b"/x?a=1"] * 2
    assert token.encode() not in b"".join(came)


async def test_the_link_that_is_told_opens_the_port_until_it_expires(ports: PortsRig) -> None:
    async with answering(OK) as (port, _), ports.serves(port) as sandbox:
        made = await ports.rig.http.post(f"/v1/sandboxes/{sandbox}/ports/{IN_GUEST}/link", json={"expires_seconds": 60})
        link = made.json()
        assert link["url"] == f"http://{IN_GUEST}-{sandbox}.localhost/?torpor_token={link['token']}"
        path = httpx2.URL(link["path_url"]).raw_path.decode()
        assert (await ports.http.get(path)).status_code == 200
        await ports.rig.clock.jump(59)
        assert (await ports.http.get(path)).status_code == 200
        await ports.rig.clock.jump(3)
        late = await ports.http.get(path)
        assert (late.status_code, late.json()["error"][:21]) == (401, "this link expired at ")


async def test_a_link_is_for_one_port_of_one_sandbox_and_dies_with_it(ports: PortsRig) -> None:
    async with answering(OK) as (port, came), ports.serves(port) as sandbox:
        headers = await ports.linked(sandbox)
        other = await ports.rig.create()
        for host in (ports.by_host(sandbox, 9090), ports.by_host(other), ports.by_host("sbx-0000000000000000")):
            answer = await ports.http.get("/", headers=headers | {"host": host})
            assert (answer.status_code, "not valid" in answer.json()["error"]) == (401, True)
        bad = headers["x-torpor-token"][:-1] + ("A" if headers["x-torpor-token"][-1] != "A" else "B")
        for token in (bad, "", "x" * 500, "tpl_a.1.b"):
            assert (await ports.http.get("/", headers=headers | {"x-torpor-token": token})).status_code == 401
        assert (await ports.http.get("/", headers=headers)).status_code == 200
        assert (await ports.rig.http.delete(f"/v1/sandboxes/{sandbox}")).status_code == 204
        assert (await ports.http.get("/", headers=headers)).status_code == 404
    assert len(came) == 1


async def test_a_link_ends_with_the_key_that_made_it(ports: PortsRig) -> None:
    async with answering(OK) as (port, _), ports.serves(port) as sandbox:
        made = (await ports.rig.http.post("/v1/me/tokens", json={"name": "other"})).json()
        headers = {"authorization": f"Bearer {made['token']}"}
        link = await ports.http.post(f"/v1/sandboxes/{sandbox}/ports/{IN_GUEST}/link", headers=headers)
        opened = {"host": ports.by_host(sandbox), "x-torpor-token": link.json()["token"]}
        assert (await ports.http.get("/", headers=opened)).status_code == 200
        assert (await ports.rig.http.delete(f"/v1/me/tokens/{made['prefix']}")).is_success
        assert (await ports.http.get("/", headers=opened)).status_code == 401


async def test_without_a_key_or_link_nothing_is_told_of_what_there_is(ports: PortsRig) -> None:
    sandbox = await ports.rig.create()
    for one in (sandbox, "sbx-0000000000000000"):
        assert (await ports.http.get(ports.by_path(one) + "/")).status_code == 401
    assert (await ports.rig.http.get(ports.by_path("sbx-0000000000000000") + "/")).status_code == 404


async def test_a_cookie_counts_only_for_pages_of_the_same_sandbox(ports: PortsRig) -> None:
    async with answering(OK) as (port, _), ports.serves(port) as sandbox:
        other = await ports.rig.create()
        headers = {"host": ports.by_host(sandbox), "cookie": f"torpor-link={await ports.token(sandbox)}"}
        statuses = {}
        for origin in (ports.by_host(sandbox), ports.by_host(sandbox, 3000), ports.by_host(other), "evil.example"):
            answer = await ports.http.post("/", headers=headers | {"origin": f"http://{origin}"})
            statuses[origin] = answer.status_code
        null = await ports.http.post("/", headers=headers | {"origin": "null"})
    assert list(statuses.values()) == [200, 200, 401, 401]
    assert null.status_code == 401


async def test_a_cookie_is_none_of_a_sister_s_pictures_and_scripts_though_they_name_no_origin(ports: PortsRig) -> None:
    async with answering(OK) as (port, _), ports.serves(port) as sandbox:
        cookie = {"host": ports.by_host(sandbox), "cookie": f"torpor-link={await ports.token(sandbox)}"}
        own, sister = (f"http://{host}/page" for host in (ports.by_host(sandbox, 3000), ports.by_host("sbx-x")))

        async def status(site: str, method: str = "GET", **more: str) -> int:
            said = {"sec-fetch-site": site} | {name.replace("_", "-"): value for name, value in more.items()}
            return (await ports.http.request(method, "/", headers=cookie | said)).status_code

        for site in ("same-site", "cross-site"):
            assert await status(site, sec_fetch_mode="no-cors", sec_fetch_dest="script") == 401
            assert await status(site, sec_fetch_dest="script", referer=sister) == 401
            assert await status(site, sec_fetch_dest="iframe", referer=sister) == 401
            assert await status(site, sec_fetch_dest="image", referer=own) == 200
            assert await status(site, sec_fetch_mode="navigate", sec_fetch_dest="document") == 200
            assert await status(site, "POST", sec_fetch_dest="document", origin="null") == 401
        assert await status("none", sec_fetch_dest="document") == 200
        assert await status("same-origin", "POST", origin="null") == 200  # a page that tells nobody where it is


async def test_a_host_may_be_written_with_the_dot_at_its_end(ports: PortsRig) -> None:
    async with answering(OK) as (port, _), ports.serves(port) as sandbox:
        host = ports.by_host(sandbox).replace("localhost:", "localhost.:")
        answer = await ports.http.get("/", headers={**await ports.linked(sandbox), "host": host})
    assert answer.status_code == 200


async def test_cookies_and_orders_about_more_than_the_server_s_own_pages_are_taken_away(ports: PortsRig) -> None:
    sent = with_headers(
        "set-cookie: a=1; Domain=localhost; Path=/",
        "set-cookie: torpor-link=evil",
        "set-cookie: b=2",
        'clear-site-data: "*"',
        "strict-transport-security: max-age=1; includeSubDomains",
        "service-worker-allowed: /",
        "x-accel-redirect: /etc/passwd",
        "alt-svc: h3=:443",
        "x-app: kept",
        "content-type: text/html",
    )
    async with answering(sent) as (port, _), ports.serves(port) as sandbox:
        by_host = await ports.http.get("/", headers=await ports.linked(sandbox))
        by_path = await ports.http.get(ports.by_path(sandbox) + "/", headers=ports.key())
    assert by_host.headers.get_list("set-cookie") == ["a=1; Path=/", "b=2"]
    assert by_path.headers.get_list("set-cookie") == []
    gone = {"clear-site-data", "strict-transport-security", "service-worker-allowed", "x-accel-redirect", "alt-svc"}
    for answer in (by_host, by_path):
        assert not gone & set(answer.headers)
        assert (answer.headers["x-app"], len(answer.headers.get_list("date"))) == ("kept", 1)
    assert by_path.headers["content-security-policy"].startswith("sandbox ")
    assert "allow-same-origin" not in by_path.headers["content-security-policy"]
    assert "content-security-policy" not in by_host.headers


async def test_an_answer_arrives_as_it_is_sent_and_an_open_one_keeps_its_sandbox_awake(ports: PortsRig) -> None:
    more = asyncio.Event()

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: one\n\n")
        await writer.drain()
        await more.wait()
        writer.write(b"data: two\n\n")
        writer.close()

    async with serving(server) as port, ports.serves(port) as sandbox:
        headers = await ports.linked(sandbox)
        async with ports.http.stream("GET", "/", headers=headers) as answer:
            events = answer.aiter_raw()
            assert await anext(events) == b"data: one\n\n"
            assert ports.rig.plane.activity.in_flight(SandboxId(sandbox)) == 1
            more.set()
            assert [chunk async for chunk in events] == [b"data: two\n\n"]


async def test_large_bodies_pass_both_ways_and_are_never_held(ports: PortsRig) -> None:
    piece, count = bytes(64 * 1024), 1536  # more than the kernel holds for all sockets on the way

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (len(piece) * count))
        for _ in range(count):
            writer.write(await reader.readexactly(len(piece)))
            await writer.drain()
        writer.close()

    async def body() -> AsyncIterator[bytes]:
        for _ in range(count):
            yield piece

    async with serving(server) as port, ports.serves(port) as sandbox:
        reader, writer = await asyncio.open_connection("127.0.0.1", ports.port)
        head = f"POST / HTTP/1.1\r\nhost: {ports.by_host(sandbox)}\r\nx-torpor-token: {await ports.token(sandbox)}\r\n"
        writer.write(f"{head}content-length: {len(piece) * count}\r\nconnection: close\r\n\r\n".encode())
        feeding = asyncio.create_task(_feed(writer, body()))
        async with asyncio.timeout(PATIENCE_S):
            answered = await reader.readuntil(b"\r\n\r\n")
            received = len(await reader.read(1))
            await _until_stuck(feeding, writer)
            assert not feeding.done(), "all was taken while nobody read the answer"
            while chunk := await reader.read(1 << 20):
                received += len(chunk)
            await feeding
        writer.close()
    assert answered.startswith(b"HTTP/1.1 200 OK")
    assert received == len(piece) * count


async def _feed(writer: asyncio.StreamWriter, chunks: AsyncIterator[bytes]) -> None:
    async for chunk in chunks:
        writer.write(chunk)
        await writer.drain()


async def _until_stuck(feeding: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
    """Return once what is fed has not been taken for a while, or all of it is."""
    left = -1
    while not feeding.done() and left != writer.transport.get_write_buffer_size():
        left = writer.transport.get_write_buffer_size()
        await asyncio.wait({feeding}, timeout=0.5)


async def test_a_client_that_goes_closes_the_connection_to_the_server(ports: PortsRig) -> None:
    gone = asyncio.Event()

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nfirst")
        await writer.drain()
        with suppress(ConnectionError):
            assert await reader.read() == b""
        gone.set()

    async with serving(server) as port, ports.serves(port) as sandbox:
        async with ports.http.stream("GET", "/", headers=await ports.linked(sandbox)) as answer:
            assert await anext(answer.aiter_raw()) == b"first"
        async with asyncio.timeout(PATIENCE_S):
            await gone.wait()


@pytest.mark.parametrize("framing", [b"content-length: 100\r\n", b"transfer-encoding: chunked\r\n"])
async def test_an_answer_that_breaks_off_is_no_answer_that_ends(ports: PortsRig, framing: bytes) -> None:
    body = b"5\r\nhello\r\n" if b"chunked" in framing else b"hello"
    async with answering(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n" + body) as (port, _), ports.serves(port) as sandbox:
        with pytest.raises(httpx2.RemoteProtocolError):
            await ports.http.get("/", headers=await ports.linked(sandbox))


async def test_a_port_at_which_nobody_listens_is_told_plainly(ports: PortsRig) -> None:
    async with ports.serves(closed_port()) as sandbox:
        answer = await ports.http.get("/", headers=await ports.linked(sandbox))
    assert (answer.status_code, answer.json()["code"]) == (502, "port_closed")
    assert answer.json()["error"] == f"nobody listens on port {IN_GUEST} in the sandbox"


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_an_answer_without_a_body_ends(ports: PortsRig, status: str) -> None:
    bodiless = f"HTTP/1.1 {status}\r\ncontent-length: 7\r\nx-a: b\r\n\r\n".encode()
    async with answering(bodiless) as (port, _), ports.serves(port) as sandbox:
        headers = await ports.linked(sandbox)
        answers = [await ports.http.get("/", headers=headers) for _ in range(2)]
    assert [(answer.status_code, answer.content, answer.headers["x-a"]) for answer in answers] == [
        (int(status[:3]), b"", "b")
    ] * 2


async def test_head_has_a_length_and_no_body(ports: PortsRig) -> None:
    headless = b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n"
    async with answering(headless) as (port, came), ports.serves(port) as sandbox:
        headers = await ports.linked(sandbox)
        answer = await ports.http.head("/", headers=headers)
        assert (await ports.http.head("/", headers=headers)).status_code == 200
    assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, "1234", b"")
    assert came[0].startswith(b"HEAD / HTTP/1.1\r\n")


async def test_servers_are_listed_with_where_they_are_reached(ports: PortsRig) -> None:
    async with answering(OK) as (port, _), ports.serves(port) as sandbox:
        listed = (await ports.rig.http.get(f"/v1/sandboxes/{sandbox}/ports")).json()
    url = f"http://{IN_GUEST}-{sandbox}.localhost/"
    assert listed == [{"port": IN_GUEST, "address": "127.0.0.1", "process": "fake", "url": url}]
