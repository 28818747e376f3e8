"""`/api/v1/run-events`: changes of a tenant's runs as server-sent events.

Each stream polls: the ends since its last event, by the time of the end, and the newest open runs, which it compares
with those that it has sent. So a change is sent within a second, a run's end always, and a change of an open run while
it is among the newest 500. An event's id is the time of the last end that the client has seen. A client that connects
again with it gets later ends, some perhaps twice, and the open runs as they are now.

A transaction commits an end later than the time that the end has. So each read begins five seconds before the last one,
and leaves out what it has sent. An open run that is open no longer, and whose end is older than that, is sent too.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.clock import monotonic_seconds
from tidewheel.control.api.answers import encoded
from tidewheel.control.api.authorization import HEAD, KEY, Reader, is_open_of
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.request_input import TenantQuery, read_query
from tidewheel.control.api.streams import (
    ENDS,
    HEADERS,
    OPEN_RUNS,
    End,
    Places,
    RunChanges,
    Streaming,
    read_run_changes,
    start_of_changes,
)
from tidewheel.control.api.workers import Turn, Workers, WorkerState
from tidewheel.errors import Unavailable, refuse
from tidewheel.jobs.validation import shown
from tidewheel.jobs.values import Key, parse_timestamp
from tidewheel.nouns.runs.model import RunSummary
from tidewheel.nouns.runs.reads import read_runs
from tidewheel.postgres.session import Conn
from tidewheel.process.service import Shutdown

_STREAMS, _OF_KEY = 64, 8  # of one process: each costs a poll a second
_POLL_SECONDS = 1.0
_ALIVE_SECONDS = 15.0  # between two comments, so that proxies keep the connection
_REMEMBERED = 10_000  # ends that are not sent again
_COMMITS_WITHIN = timedelta(seconds=5)
_RUNS = 100  # read at once
_OLDEST = timedelta(hours=1)  # of a Last-Event-ID: older ends are listed by GET /runs

# An index by the end of a run finds a span of it, but no tenant: the span is short where others end many runs. The time
# of a read decides, because their number is hidden from a tenant.
_SPAN, _SHORT_SPAN, _LONG_READ_SECONDS = timedelta(seconds=16), timedelta(seconds=1), 0.02
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_NO_RUN = UUID(int=0)


class EventsQuery(TenantQuery):
    """Filter of a stream."""

    job: Annotated[Key | None, Field(description="Only runs of the job with this key.")] = None


@dataclass(slots=True)
class RunEventsApi:
    """Calls that stream the changes of runs."""

    reads: Workers
    stop: Shutdown
    _places: Places = field(default_factory=lambda: Places("streams", _STREAMS, _OF_KEY))

    def add_to(self, router: APIRouter) -> None:
        """Add the route."""
        add_route(
            router, "GET", "/api/v1/run-events", self.stream_run_events, scope=Scope.READ, query=EventsQuery,
            answer={"type": "string"}, media="text/event-stream",
            headers={"Last-Event-ID": "The id of the last event that was read"},
        )  # fmt: skip

    async def stream_run_events(self, request: Request, caller: Reader) -> Response:
        """Stream the changes of runs as server-sent events."""
        query = read_query(request, EventsQuery)
        since = _instant(request.headers.get("last-event-id"))
        key = request.scope.get(KEY)
        key_id = key.key_id if key else None
        end = self._places.take(caller.tenant, key_id)
        stream = _Stream(caller.tenant, query.job, since, Turn(caller.tenant, key_id or ""))
        try:
            first = await self.reads.do(stream.read, stream.turn)  # a refusal is still an answer of its own
        except BaseException:
            end()
            raise
        if request.scope.get(HEAD):
            end()
            return Response(headers=HEADERS, media_type="text/event-stream")
        is_open = is_open_of(request)
        return Streaming(self._events(stream, first, is_open), end)

    async def _events(
        self, stream: "_Stream", text: bytes | bytearray, is_open: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[memoryview]:
        now = asyncio.get_running_loop().time
        sent_at = now()
        yield memoryview(b"retry: 2000\n\n")
        yield memoryview(text)
        while not self.stop.requested() and await is_open():
            text = b""  # freed
            yield memoryview(text)  # uvicorn waits until the client has read what was sent: then follows the next read
            await asyncio.sleep(0.0 if stream.full else _POLL_SECONDS)
            try:
                text = await self.reads.do(stream.read, stream.turn)
            except Unavailable:
                text, stream.full = b"", False  # the next poll reads the same changes
            if text or now() - sent_at >= _ALIVE_SECONDS:
                sent_at = now()
                yield memoryview(text or b": alive\n\n")


@dataclass(slots=True)
class _Stream:
    """The position of one stream, used by one thread at a time; its memory is bounded."""

    tenant: str
    job: str | None
    since: datetime | None  # the end that the client has seen last
    turn: Turn
    full: bool = False  # later ends can be read at once
    _read_until: datetime | None = None
    _oldest: End = (_LONG_AGO, _NO_RUN)  # ends up to this one are not read again
    _span: timedelta = _SPAN
    _open: Mapping[UUID, tuple[str, int]] | None = None
    _ended: dict[UUID, datetime] = field(default_factory=dict[UUID, datetime])

    def read(self, state: WorkerState) -> bytearray:
        """Return the events since the last call."""
        text = bytearray()
        with state.connection(self.tenant).snapshot() as reading:
            if self._read_until is None:
                text += self._begin(reading)
            assert self._read_until is not None  # noqa: S101 - set by `_begin`
            self._oldest = max((self._read_until - _COMMITS_WITHIN, _NO_RUN), self._oldest)
            until = self._read_until + self._span
            began = monotonic_seconds()
            found = self._changes(reading, until)
            took = monotonic_seconds() - began
            before = found.open_runs if self._open is None else self._open
            moved = [run_id for run_id, at in found.open_runs.items() if before.get(run_id) != at]
            gone = self._gone(before, found)
            since, ended = self.since or _LONG_AGO, dict[UUID, datetime]()
            for run in _in_parts(reading, moved[::-1]):
                text += _event(run, None)
            for run in _in_parts(reading, gone):
                if run.finished_at is not None:
                    ended[run.run_id] = run.finished_at
                    text += _event(run, None)  # without an id: other ends before it may not have been read
            ends = {run_id: at for at, run_id in found.ends}
            for run in _in_parts(reading, list(ends)):
                since = max(since, ends[run.run_id])
                text += _event(run, since)
        self._open = found.open_runs
        self._ended |= ended
        self.since = max([since, *ends.values()])
        self._remember(found)
        is_cut = len(found.ends) >= ENDS
        self.full = is_cut or until <= found.now
        self._read_until = max(self._read_until, found.ends[-1][0] if is_cut else min(until, found.now))
        self._span = _SPAN if took < _LONG_READ_SECONDS else _SHORT_SPAN
        return text

    def _begin(self, reading: Conn) -> bytes:
        """Set the place at which the stream begins; return the event of a gap before it."""
        now = start_of_changes(reading, self.tenant, self.job)
        if self.since is None:
            self.since = self._read_until = now
            self._oldest = (now - _COMMITS_WITHIN, _NO_RUN)
            while len((found := self._changes(reading, now)).ends) >= ENDS:
                self._remember(found)  # the client sees them in lists
            self._remember(found)
            return b""
        self._open = {}  # every open run is sent as it is now
        self.since = min(self.since, now)  # of a database that was restored
        self._read_until = max(self.since, now - _OLDEST)
        if self.since == self._read_until:
            return b""
        return b"event: gap\ndata: " + encoded({"since": self.since, "until": self._read_until}) + b"\n\n"

    def _changes(self, reading: Conn, until: datetime) -> RunChanges:
        return read_run_changes(
            reading, self.tenant, self.job, after=self._oldest, until=until, known=list(self._ended)
        )

    def _gone(self, before: Mapping[UUID, object], found: RunChanges) -> Sequence[UUID]:
        """Return the runs that are open no longer and whose ends are in no span."""
        # Newer runs take the places of the oldest, which are still open.
        first = min(found.open_runs) if len(found.open_runs) >= OPEN_RUNS else _NO_RUN
        ends = {run_id for _, run_id in found.ends}
        return [run_id for run_id in before.keys() - found.open_runs.keys() - ends if run_id >= first]

    def _remember(self, found: RunChanges) -> None:
        """Remember the ends that the next reads would find again, and forget the others."""
        self._ended |= {run_id: at for at, run_id in found.ends}
        self._ended = {run_id: at for run_id, at in self._ended.items() if (at, run_id) > self._oldest}
        if len(self._ended) > _REMEMBERED:
            places = sorted((at, run_id) for run_id, at in self._ended.items())
            self._oldest = places[-_REMEMBERED - 1]
            self._ended = {run_id: at for at, run_id in places[-_REMEMBERED:]}


def _in_parts(reading: Conn, ids: Sequence[UUID]) -> Iterator[RunSummary]:
    """Yield the stored runs of these ids; few of them are in memory at once."""
    for first in range(0, len(ids), _RUNS):
        yield from read_runs(reading, ids[first : first + _RUNS])


def _event(run: RunSummary, at: datetime | None) -> bytes:
    name = b"" if at is None else f"id: {at.isoformat()}\n".encode()
    return name + b"event: run\ndata: " + encoded(run) + b"\n\n"


def _instant(text: str | None) -> datetime | None:
    if not text:  # empty: as a client has it before the first id
        return None
    try:
        return parse_timestamp(text)
    except ValueError:
        refuse("Last-Event-ID", f"{shown(text)} is not an id of this stream", "send an event's id, or leave it out")
