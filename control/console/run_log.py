"""The output of an attempt: as lines of a page, the lines that follow, and byte for byte."""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import ClassVar
from uuid import UUID

from fastapi.security import SecurityScopes
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api.answers import call
from tidewheel.control.api.callers import Caller, caller
from tidewheel.control.api.queries import TenantQuery, Whole, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.log_lines import Log, log_of
from tidewheel.control.console.rendering import HEADERS
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View
from tidewheel.jobs.validation import shown
from tidewheel.nouns.runs.detail import show_run
from tidewheel.nouns.runs.logs import read_logs
from tidewheel.nouns.runs.model import LogPiece, RunDetail
from tidewheel.runs import FINAL


class LogQuery(TenantQuery):
    """Query of the output of an attempt."""

    attempt: Whole
    after: Whole | None = None  # the bytes that the reader has
    line: Whole | None = None  # the number of the line that comes next


def run_id_of(request: Request) -> UUID:
    """Return the run that an address names, or answer 404."""
    try:
        return UUID(str(request.path_params["run_id"]))
    except ValueError:
        raise HTTPException(
            HTTPStatus.NOT_FOUND,
            f"{shown(request.path_params['run_id'])} is not the id of a run. A run id is a UUID. "
            "Use Ask or the list of runs to find it.",
        ) from None


def is_over(run: RunDetail, attempt: int) -> bool:
    """Return True if an attempt writes no more."""
    return run.summary.status in FINAL or attempt < run.summary.attempt or run.summary.status == "retrying"


def read_log(connection: Connection, run: RunDetail, attempt: int) -> Log | None:
    """Return the lines of an attempt; None if none of its output is stored."""
    pieces = read_logs(connection, run.summary.run_id, attempt)
    return log_of(pieces[0], is_over=is_over(run, attempt)) if pieces else None


def attempts_with_logs(run: RunDetail) -> Sequence[int]:
    """Return the attempts whose output may be stored, the newest first."""
    found = {each.attempt for each in run.attempts if each.output is not None}
    if run.summary.attempt and run.summary.finished_at is None:
        found.add(run.summary.attempt)
    return sorted(found, reverse=True)


@dataclass(frozen=True, slots=True)
class RunLines:
    """The lines that an attempt has written since the last look: a part of the page of its run."""

    template: ClassVar[str] = "parts/lines.html"
    place: ClassVar[str] = "runs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the lines after those that the reader has."""
        query, run_id = read_query(request, LogQuery), run_id_of(request)
        with connection.snapshot() as reading:
            run = show_run(reading, caller.tenant, run_id)
        over, after = is_over(run, query.attempt), query.after or 0
        pieces = read_logs(connection, run_id, query.attempt, after=after)
        piece = pieces[0] if pieces else LogPiece(query.attempt, None, 0, b"")
        log = log_of(piece, after=after, first=query.line or 1, is_over=over)
        return View({"log": log, "more": None if over else more_of(urls, run_id, log)})


def more_of(urls: Urls, run_id: UUID, log: Log) -> str:
    """Return the address of the lines after those of a log."""
    return urls("run_lines", run_id=run_id, attempt=log.attempt, after=log.end, line=log.next_line)


@dataclass(frozen=True, slots=True)
class RawLog:
    """The stored output of an attempt, byte for byte."""

    reads: Workers

    async def get(self, request: Request) -> Response:
        """Return it as a file."""
        found = await caller(request, SecurityScopes([Scope.READ]))
        query, run_id = read_query(request, LogQuery), run_id_of(request)
        pieces = await call(self.reads, found, lambda each: read_logs(each, run_id, query.attempt))
        name = f"{run_id}-{query.attempt}.log"
        headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
        return Response(b"".join(each.output for each in pieces), headers=headers, media_type="text/plain")
