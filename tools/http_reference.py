"""The reference of the HTTP API as a page, made of the description that the server serves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from http_examples import EXAMPLES, NOT_RUN
from torpor.control.api.app import create_app
from torpor.control.hosts import HostClient
from torpor.control.service.plane import plane_of
from torpor.kit.clock import SystemClock
from torpor.testing.host import FakeHost
from torpor.testing.store import MemoryStore

INTRODUCTION = """\
# The HTTP API

The server describes this API itself, at `/openapi.json` (OpenAPI 3.1); this page is made of that. SDK and command
line speak it, and so may you.

* **Keys.** Everything under `/v1` takes `Authorization: Bearer <key>`; see [keys.md](keys.md). Another workspace's
  ids are 404.
* **Bodies** are JSON in UTF-8. Fields that are not known are ignored; a wrong type is a 400 that names the field.
  Times are RFC 3339, sizes say their unit in their name.
* **Errors** have one body, `ErrorBody`, whose `error` is one plain sentence; [errors.md](errors.md) lists the codes.
  Any endpoint may answer 400, 401, 403, 421, 429 (with `Retry-After`), 500 and 503 (with `Retry-After`); those that
  each may answer besides are told with it.
* **Once.** What makes something takes the header `Idempotency-Key`: the same request with the same key gets the same
  answer again, and is not done twice.
* **Long answers.** Where it says that an answer is padded, its status comes after 10 s, then spaces, then the JSON.
  An error that comes later stands in the body as `ErrorBody`. So no proxy and no client gives up on a quiet line.
* **Streams** are server-sent events; comments (`:`) keep them alive.
* **Pages.** `next_cursor` of a listing, sent as `cursor`, asks for what comes after.
* **Requests are numbered:** `X-Request-Id` is in each answer and in the server's log.

The examples use this, on the server's own machine, and a sandbox to try things on:

```console
$ export API=http://127.0.0.1:7070 KEY=$(cat "${TORPOR_HOME:-/var/lib/torpor}/key")
$ api() { curl -sS --fail-with-body -H "Authorization: Bearer $KEY" "$API/v1$1" "${@:2}"; }
$ ID=$(torpor create base)
```

"""
WEBSOCKETS = """\
## WebSockets

OpenAPI has no words for these. They take the same key, in the same header.

| request | |
|---|---|
| `GET /v1/sandboxes/{id}/pty` | a terminal in the sandbox: [terminal.md](terminal.md) |
| `GET /v1/sandboxes/{id}/ssh` | the same, as the vendor's command line opens it |
| `GET /v1/sandboxes/{id}/exec/ws` | a command, its input and its output: [terminal.md](terminal.md) |
| `/v1/sandboxes/{id}/proxy/{port}/...` | a server in it, by any method of HTTP, or WebSocket: [ports.md](ports.md) |

Another site's page is refused (403) before the connection is upgraded, and so is what is not found (404). A key that
is revoked ends what it opened.

"""
# What any endpoint may answer, told once.
_WORDS = {"string": "text", "boolean": "true or false", "binary": "bytes"}
_SAYS_NOTHING = "Successful Response"
_ANYWHERE = frozenset({"400", "401", "403", "421", "429", "500", "503"})
_METHODS = ("post", "put", "get", "patch", "delete")
_TITLES = {"execs": "Commands", "repl": "Code contexts"}


def page() -> str:
    """Return the page."""
    described = create_app(plane_of(MemoryStore(), HostClient(FakeHost().transport()), SystemClock()), "key").openapi()
    lines = [INTRODUCTION]
    for title, endpoints in _sections(described).items():
        lines += [f"## {title}", ""]
        for method, path, operation in endpoints:
            lines += _endpoint(method, path, operation)
    lines += [WEBSOCKETS, "## Bodies", ""]
    for name, schema in sorted(described["components"]["schemas"].items()):
        lines += _model(name, schema)
    return "\n".join(lines).rstrip() + "\n"


def endpoints_of(described: dict[str, Any]) -> list[str]:
    """Return what is described, as `GET /healthz`."""
    return [f"{method.upper()} {path}" for path, operations in described["paths"].items() for method in operations]


def _sections(described: dict[str, Any]) -> dict[str, list[tuple[str, str, Any]]]:
    sections: dict[str, list[tuple[str, str, Any]]] = {}
    for path, operations in described["paths"].items():
        for method in _METHODS:
            if method in operations:
                tag = operations[method]["tags"][0]
                title = _TITLES.get(tag, tag.capitalize())
                sections.setdefault(title, []).append((method.upper(), path, operations[method]))
    return sections


def _endpoint(method: str, path: str, operation: Any) -> Iterator[str]:
    yield from (f"### {method} {path}", "", operation["description"].strip(), "")
    parameters = operation.get("parameters", [])
    if parameters:
        yield from ("| parameter | in | type | meaning |", "|---|---|---|---|")
        yield from (_parameter(one) for one in parameters)
        yield ""
    if body := operation.get("requestBody"):
        needed = "" if body.get("required") else ", which may be left out"
        yield from (f"Body: {_contents(body['content'])}{needed}. {body.get('description', '')}".rstrip(), "")
        inline = [one["schema"] for one in body["content"].values() if "properties" in one.get("schema", {})]
        if inline:  # the last has all that the others have
            yield from _fields(inline[-1])
    yield from ("Answers:", "")
    answers = sorted(operation["responses"].items())
    for status, answer in answers:
        if status < "400":
            content = _contents(answer["content"]) if answer.get("content") else "no body"
            says = answer["description"].replace(_SAYS_NOTHING, "")
            yield f"* **{status}** {content}. {says}".rstrip()
    if errors := [status for status, _ in answers if status >= "400" and status not in _ANYWHERE]:
        yield f"* {', '.join(errors)}: `ErrorBody`"
    yield from ("", *_example(f"{method} {path}"))


def _example(endpoint: str) -> Iterator[str]:
    example = EXAMPLES.get(endpoint)
    if example is None:
        raise KeyError(f"{endpoint} has no example: write one in tools/http_examples.py")
    reason = NOT_RUN.get(endpoint)
    yield from (f"```console no-run: {reason}" if reason else "```console", f"$ {example}", "```", "")


def _parameter(one: Any) -> str:
    needed = "" if one.get("required") else "; may be left out"
    kind = _type(one["schema"]).removesuffix(" or null")
    return f"| `{one['name']}` | {one['in']} | {kind}{needed} | {_cell(one.get('description', ''))} |"


def _contents(content: dict[str, Any]) -> str:
    return ", or ".join(_content(kind, one.get("schema", {})) for kind, one in content.items())


def _content(kind: str, schema: Any) -> str:
    return _type(schema) if kind == "application/json" and "$ref" in schema else f"`{kind}`"


def _model(name: str, schema: Any) -> Iterator[str]:
    yield from (f"### {name}", "")
    if about := schema.get("description"):
        yield from (about.strip(), "")
    if "enum" in schema:
        yield from (f"One of {_values(schema['enum'])}.", "")
    if schema.get("properties"):
        yield from _fields(schema)


def _fields(schema: Any) -> Iterator[str]:
    required = schema.get("required", [])
    is_order = any("default" in field for field in schema["properties"].values())
    yield from ("| field | type | default | meaning |", "|---|---|---|---|")
    for field, one in schema["properties"].items():
        default = "" if not is_order else _needed(field in required, one)
        yield f"| `{field}` | {_type(one)} | {default} | {_cell(one.get('description', ''))} |"
    yield ""


def _needed(is_required: bool, field: Any) -> str:
    if is_required:
        return "has to be given"
    return f"`{json.dumps(field['default'])}`" if field.get("default") is not None else ""


def _type(schema: Any) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(one) for one in several))
    if "const" in schema or "enum" in schema:
        return _values(schema.get("enum") or [schema["const"]])
    kind = "binary" if schema.get("format") == "binary" else schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return _object(schema) if kind == "object" else _WORDS.get(kind, kind)


def _object(schema: Any) -> str:
    values: Any = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), {})
    return f"object of {_type(values)}" if isinstance(values, dict) and values else "object"


def _values(values: Iterable[Any]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
