"""`/v1/usage`, `/v1/sandboxes/{id}/usage` and `/v1/metrics`: what sandboxes use, and what that costs."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response

from torpor import errors
from torpor.control.api.deps import ThePlane, TheSandbox, Workspace
from torpor.control.api.problems import refusals
from torpor.control.api.views import live_view, price_list, sandbox_usage_view, usage_view
from torpor.control.service.cursors import position_of
from torpor.control.service.sandboxes import metadata_filter
from torpor.control.service.usage import ReportListing, Span, live, report, sandbox_usage
from torpor.control.store.contract import Position
from torpor.errors import InvalidRequest
from torpor.wire.usage import LiveList, SandboxUsage, UsageReport, UsageView

router = APIRouter(prefix="/v1", tags=["usage"])

_FIGURES = list(UsageView.model_fields)
_COLUMNS = [*(name for name in SandboxUsage.model_fields if name not in _FIGURES), *_FIGURES]
# A spreadsheet takes a cell that begins with one of these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_TIME = {"format": "date-time"}
_REPORT: dict[int | str, dict[str, Any]] = {
    200: {
        "model": UsageReport,
        "description": "The report; as CSV a header row and a line for each sandbox.",
        "content": {"text/csv": {"schema": {"type": "string"}}},
    }
}


async def span(
    since: Annotated[
        str | None, Query(description="a time, RFC 3339; without: from the beginning", json_schema_extra=_TIME)
    ] = None,
    until: Annotated[
        str | None, Query(description="a time, RFC 3339; without: until now", json_schema_extra=_TIME)
    ] = None,
) -> Span:
    """Return the time that a request asks about. Raises InvalidRequest naming what is no time."""
    return Span(_moment("since", since), _moment("until", until))


@dataclass(frozen=True, slots=True)
class Page:
    """Which sandboxes of a report are listed."""

    limit: int
    after: Position | None


async def page(
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before", max_length=256)] = None,
) -> Page:
    """Return what a request asks to be listed. Raises InvalidRequest for a cursor that is none of ours."""
    return Page(limit, None if cursor is None else position_of(cursor))


TheSpan = Annotated[Span, Depends(span)]
ThePage = Annotated[Page, Depends(page)]


@router.get("/sandboxes/{id}/usage", responses=refusals(errors.NotFound))
async def show_usage(plane: ThePlane, owned: TheSandbox, span: TheSpan) -> SandboxUsage:
    """Show what a sandbox used and what it cost, also of one that is deleted."""
    return sandbox_usage_view(await sandbox_usage(plane, owned, span))


@router.get("/usage", response_class=Response, responses={**refusals(), **_REPORT})
async def report_usage(
    plane: ThePlane,
    workspace: Workspace,
    request: Request,
    span: TheSpan,
    page: ThePage,
    format: Annotated[Literal["json", "csv"], Query(description="what to answer in")] = "json",
) -> Response:
    """Report what sandboxes used and what that cost, deleted ones too, and the sum of all, whatever part is listed.

    `metadata.<key>=<value>`, once or more, filters by metadata. Where there are more than `limit`, the header
    `X-Next-Cursor` has the cursor of the rest, and so has the JSON.
    """
    metadata = metadata_filter(request.query_params)
    found = await report(plane, ReportListing(workspace, metadata, span, page.limit, page.after))
    items = [sandbox_usage_view(one) for one in found.each]
    headers = {} if found.next_cursor is None else {"x-next-cursor": found.next_cursor}
    if format == "csv":
        return Response(as_csv(items), media_type="text/csv; charset=utf-8", headers=headers)
    total, prices = usage_view(found.total), price_list(plane.prices)
    whole = UsageReport(total=total, items=items, prices=prices, next_cursor=found.next_cursor)
    return JSONResponse(whole.model_dump(mode="json"), headers=headers)


@router.get("/metrics", responses=refusals())
async def show_metrics(plane: ThePlane, workspace: Workspace) -> LiveList:
    """Show how all living sandboxes stand at this moment, the newest first."""
    items = [live_view(one) for one in await live(plane, workspace)]
    return LiveList(at=plane.clock.now(), items=items)


def as_csv(items: list[SandboxUsage]) -> str:
    """Return sandboxes' usage as a table: RFC 4180, and no cell is one that a spreadsheet would compute."""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(_COLUMNS)
    for item in items:
        shown = item.model_dump(mode="json")
        table.writerow([_cell(shown[column]) for column in _COLUMNS])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        value = json.dumps(value) if value else ""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


def _moment(name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise _no_time(name) from error
    raise _no_time(name)


def _no_time(name: str) -> InvalidRequest:
    return InvalidRequest(f"{name} has to be a time with its offset, such as 2030-01-31T12:00:00Z")
