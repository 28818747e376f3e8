"""`/api/v1/run-events`: changes of a tenant's runs as server-sent events.

Each stream polls: the ends since its last event, by the time of the end, and the newest open runs, which it compares
with those that it has sent. So a change is sent within a second, a run's end always, and a change of an open run while
it is among the newest 500. An event's id is the time of the last end that the client has seen. A client that connects
again with it gets later ends, some perhaps twice, and the open runs as they are now.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import encoded
from tidewheel.control.api.bearer import HEAD, IS_OPEN
from tidewheel.control.api.callers import Reader
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.problems import Overloaded
from tidewheel.control.api.queries import TenantQuery, read_query
from tidewheel.control.api.workers import Workers, WorkerState
from tidewheel.control.reads.run_changes import ENDS, read_run_changes, start_of_changes
from tidewheel.control.reads.runs import RunSummary, read_runs
from tidewheel.errors import Unavailable, refuse
from tidewheel.jobs.validation import shown
from tidewheel.jobs.values import Key
from tidewheel.process.service import Shutdown

_STREAMS = 64  # of one process: each costs a poll a second
_POLL_SECONDS = 1.0
_ALIVE_SECONDS = 15.0  # between two comments, so that proxies keep the connection
_REMEMBERED = 10_000  # ends that are not sent again
_COMMITS_WITHIN = timedelta(seconds=5)
_OLDEST = timedelta(hours=1)  # of a Last-Event-ID: older ends are listed by GET /runs
# An index by the end of a run finds a span of it, but no tenant: the span is short where others end many runs.
_SPAN, _SHORT_SPAN, _FEW_ENDS = timedelta(seconds=16), timedelta(seconds=1), 5000
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class EventsQuery(TenantQuery):
    """Filter of a stream.

    Attributes:
        job: Only runs of the job with this key.
    """

    job: Key | None = None


@dataclass(slots=True)
class RunEventsApi:
    """Calls that stream the changes of runs.

    Args:
        reads: The threads of reads.
        stop: Ends every stream.
    """

    reads: Workers
    stop: Shutdown
    _streams: int = 0

    def add_to(self, router: APIRouter) -> None:
        """Add the route."""
        add_route(
            router, "GET", "/api/v1/run-events", self.stream_run_events, scope=Scope.READ, query=EventsQuery,
            answer={"type": "string"}, example=examples.RUN_EVENT, media="text/event-stream",
            headers={"Last-Event-ID": "The id of the last event that was read"},
        )  # fmt: skip

    async def stream_run_events(self, request: Request, caller: Reader) -> Response:
        """Stream the changes of runs as server-sent events."""
        query = read_query(request, EventsQuery)
        since = _instant(request.headers.get("last-event-id"))
        if self._streams >= _STREAMS:
            message = f"{self._streams} streams are open; close one, or repeat the request in a moment"
            raise Overloaded(message)
        stream = _Stream(caller.tenant, query.job, since)
        first = await self.reads.do(stream.read)  # a refusal is still an answer of its own
        headers = {"Cache-Control": "no-store"}
        if request.scope.get(HEAD):
            return Response(headers=headers, media_type="text/event-stream")
        is_open = request.scope.get(IS_OPEN, _always)
        return StreamingResponse(self._events(stream, first, is_open), media_type="text/event-stream", headers=headers)

    async def _events(
        self, stream: "_Stream", text: bytes, is_open: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes]:
        self._streams += 1
        quiet = 0.0
        try:
            yield b"retry: 2000\n\n" + text
            while not self.stop.requested() and await is_open():
                text = b""  # freed
                yield text  # uvicorn waits until the client has read what was sent: then follows the next read
                await asyncio.sleep(0.0 if stream.full else _POLL_SECONDS)
                try:
                    text = await self.reads.do(stream.read)
                except Unavailable:
                    text = b""  # the next poll reads the same changes
                quiet = 0.0 if text else quiet + _POLL_SECONDS
                if text or quiet >= _ALIVE_SECONDS:
                    quiet = 0.0
                    yield text or b": alive\n\n"
        finally:
            self._streams -= 1


@dataclass(slots=True)
class _Stream:
    """The position of one stream, used by one thread at a time; its memory is bounded.

    Args:
        tenant: The tenant.
        job: Only runs of this job.
        since: The end that the client has seen last.
        full: True if later ends can be read at once.
    """

    tenant: str
    job: str | None
    since: datetime | None
    full: bool = False
    _read_until: datetime | None = None
    _oldest: datetime = _LONG_AGO
    _span: timedelta = _SPAN
    _open: Mapping[UUID, tuple[str, int]] | None = None
    _ended: OrderedDict[UUID, datetime] = field(default_factory=OrderedDict[UUID, datetime])

    def read(self, state: WorkerState) -> bytes:
        """Return the events since the last call."""
        with state.connection(self.tenant).snapshot() as reading:
            if self._read_until is None:
                now = start_of_changes(reading, self.tenant, self.job)
                if self.since is None:
                    self.since = now
                else:
                    self._open = {}  # every open run is sent as it is now
                self._oldest = self._read_until = max(self.since, now - _OLDEST)
            # A transaction that sets the time of its ends commits later.
            first, until = max(self._read_until - _COMMITS_WITHIN, self._oldest), self._read_until + self._span
            found = read_run_changes(reading, self.tenant, self.job, first=first, until=until, known=list(self._ended))
            before = found.open_runs if self._open is None else self._open
            moved = [run_id for run_id, at in found.open_runs.items() if before.get(run_id) != at]
            runs = {run.run_id: run for run in read_runs(reading, [*moved, *(each.run_id for each in found.ends)])}
        self._open = found.open_runs
        text = b"".join(_event(runs[run_id], None) for run_id in reversed(moved) if run_id in runs)
        for each in found.ends:
            self.since = max(self.since or each.finished_at, each.finished_at)
            self._ended[each.run_id] = each.finished_at
            if each.run_id in runs:
                text += _event(runs[each.run_id], self.since)
        is_cut = len(found.ends) >= ENDS
        self.full = is_cut or until <= found.now
        self._read_until = max(self._read_until, found.ends[-1].finished_at if is_cut else min(until, found.now))
        self._span = _SPAN if found.looked_at < _FEW_ENDS else _SHORT_SPAN
        while len(self._ended) > _REMEMBERED:
            _, self._oldest = self._ended.popitem(last=False)
        return text


async def _always() -> bool:
    return True


def _event(run: RunSummary, at: datetime | None) -> bytes:
    name = b"" if at is None else f"id: {at.isoformat()}\n".encode()
    return name + b"event: run\ndata: " + encoded(run) + b"\n\n"


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        refuse("Last-Event-ID", f"{shown(text)} is no id of this stream", "send the id of an event, or leave it out")
