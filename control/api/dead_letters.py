"""Dead letters and redrives: `/api/v1/dead-letters`, `/api/v1/redrives`."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Literal, cast
from uuid import UUID

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import LOCATION, accepted, answer, call
from tidewheel.control.api.bodies import read_body
from tidewheel.control.api.callers import Operator, Reader
from tidewheel.control.api.cancellations import read_number
from tidewheel.control.api.json_schemas import body_of, schema_of
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import (
    Cursors,
    Flag,
    LimitQuery,
    PageQuery,
    TenantQuery,
    Text,
    Whole,
    read_query,
)
from tidewheel.control.api.runs import RUN, with_attempts
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.dead_letters import DeadLetters, RedriveResult
from tidewheel.control.client.redrives import RedriveChange, Redrives
from tidewheel.control.reads.dead_letter_groups import DeadLetterGroups
from tidewheel.control.reads.dead_letters import DeadLetterFilter, DeadLetterSummary
from tidewheel.control.reads.redrives import Redriving
from tidewheel.errors import UnknownDeadLetter
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import Instant, Key, Queue, Reason

_LETTERS = "/api/v1/dead-letters"
_REDRIVES = "/api/v1/redrives"
_ONE_REDRIVE = f"{_REDRIVES}/{{redrive_id:uuid}}"
_LARGEST = 2**63 - 1
_NAMES = ("kind", "status", "error_type", "queue", "lane", "since", "until")


class LettersQuery(PageQuery):
    """Filter of a list of dead letters.

    Attributes:
        kind: Only this kind.
        job: Only of the job with this key.
        status: Only runs in this final state.
        error_type: Only runs whose last attempt had this error type.
        queue: Only runs of this queue.
        lane: Only runs of this lane.
        since: Created at this instant or later.
        until: Created at this instant or before.
        redriven: True for redriven ones only, false for all others.
    """

    kind: Literal["run", "message"] | None = None
    job: Key | None = None
    status: Literal["failed", "timed_out"] | None = None
    error_type: Text | None = None
    queue: Queue | None = None
    lane: Literal["critical", "standard", "batch"] | None = None
    since: Instant | None = None
    until: Instant | None = None
    redriven: Flag | None = None


class GroupsQuery(TenantQuery):
    """Filter of the groups of dead letters.

    Attributes:
        since: Created at this instant or later.
        redriven: True for redriven ones only, false for all others.
    """

    since: Instant | None = None
    redriven: Flag | None = None


class RedriveBody(StrictModel):
    """Body of a redrive: a filter, which all dead letters match that it redrives.

    Attributes:
        ids: Only these.
        kind: Only this kind; runs if neither it nor `ids` is given.
        job: Only of the job with this key.
        status: Only runs in this final state.
        error_type: Only runs whose last attempt had this error type.
        queue: Only runs of this queue.
        lane: Only runs of this lane.
        since: Created at this instant or later.
        until: Created at this instant or before.
        rate: How many a second at most.
        dry_run: Only count them, and return the first ten.
        reason: Stored with the redrive.
    """

    ids: Annotated[list[Annotated[int, Field(ge=1, le=_LARGEST)]], Field(max_length=1000)] | None = None
    kind: Literal["run", "message"] | None = None
    job: Key | None = None
    status: Literal["failed", "timed_out"] | None = None
    error_type: Text | None = None
    queue: Queue | None = None
    lane: Literal["critical", "standard", "batch"] | None = None
    since: Instant | None = None
    until: Instant | None = None
    rate: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    dry_run: bool = False
    reason: Reason | None = None


class ReasonBody(StrictModel):
    """Body of a pause or a cancellation.

    Attributes:
        reason: Stored with the redrive.
    """

    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class DeadLettersPage:
    """Dead letters, the newest first; `at_least` is true if there are more than `total`."""

    dead_letters: tuple[DeadLetterSummary, ...]
    next_cursor: str | None
    total: int
    at_least: bool


@dataclass(frozen=True, slots=True)
class DeadLetter(DeadLetterSummary):
    """A dead letter with its run, or with its message."""

    run: Mapping[str, Any] | None
    message_key_base64: str | None
    message_value_base64: str | None


_LETTER = schema_of(DeadLetter)
_LETTER["properties"]["run"] = {"anyOf": [RUN, {"type": "null"}]}


@dataclass(frozen=True, slots=True)
class RedriveList:
    """Redrives, the newest first."""

    redrives: tuple[Redriving, ...]


@dataclass(frozen=True, slots=True)
class DeadLettersApi:
    """Calls about dead letters and redrives.

    Args:
        reads: The threads of reads.
        writes: The threads of changes.
    """

    reads: Workers
    writes: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        read = partial(add_route, router, "GET", scope=Scope.READ)
        operate = partial(add_route, router, "POST", scope=Scope.OPERATE, query=TenantQuery)
        read(_LETTERS, self.list_dead_letters, query=LettersQuery, answer=DeadLettersPage,
             example=examples.DEAD_LETTERS)  # fmt: skip
        read(f"{_LETTERS}/groups", self.group_dead_letters, query=GroupsQuery, answer=DeadLetterGroups,
             example=examples.DEAD_LETTER_GROUPS)  # fmt: skip
        read(f"{_LETTERS}/{{number}}", self.get_dead_letter, query=TenantQuery, answer=_LETTER,
             example=examples.DEAD_LETTER)  # fmt: skip
        operate(f"{_LETTERS}:redrive", self.redrive_dead_letters, also=HTTPStatus.ACCEPTED, sets=LOCATION,
                answer=RedriveResult, example=examples.REDRIVE_RESULT, body=body_of(RedriveBody),
                sent={"error_type": "TimeoutError", "rate": 10})  # fmt: skip
        read(_REDRIVES, self.list_redrives, query=LimitQuery, answer=RedriveList, example=examples.REDRIVES)
        read(_ONE_REDRIVE, self.get_redrive, query=TenantQuery, answer=Redriving, example=examples.REDRIVE)
        change = partial(operate, answer=RedriveChange, example={"status": "paused", "unchanged": False})
        explained = partial(change, body=body_of(ReasonBody), sent={"reason": "maintenance"})
        explained(f"{_ONE_REDRIVE}:pause", self.pause_redrive)
        change(f"{_ONE_REDRIVE}:resume", self.resume_redrive)
        explained(f"{_ONE_REDRIVE}:cancel", self.cancel_redrive)

    async def list_dead_letters(self, request: Request, caller: Reader) -> Response:
        """List dead letters, the newest first."""
        query = read_query(request, LettersQuery)
        cursors = Cursors.of(request, query, caller.tenant)
        place = cursors.read(Instant, Whole)
        after = None if place is None else (place[0], place[1])
        filters = _filters(query) | {"redriven": query.redriven}

        def read(connection: Connection) -> DeadLettersPage:
            found = DeadLetters(connection).list(after=after, limit=query.limit, **cast("DeadLetterFilter", filters))
            cursor = cursors.write(*found.next_cursor or [None])
            return DeadLettersPage(found.dead_letters, cursor, found.total, found.at_least)

        return await answer(self.reads, caller, read)

    async def group_dead_letters(self, request: Request, caller: Reader) -> Response:
        """Group the newest 10,000 dead letters by job, error type and final state, the largest group first."""
        query = read_query(request, GroupsQuery)
        return await answer(
            self.reads, caller, lambda each: DeadLetters(each).groups(since=query.since, redriven=query.redriven)
        )

    async def get_dead_letter(self, request: Request, caller: Reader) -> Response:
        """Return one dead letter, with its run, or with its message."""
        read_query(request, TenantQuery)
        number = read_number(str(request.path_params["number"]))
        if number is None:
            raise UnknownDeadLetter(0)

        def read(connection: Connection) -> dict[str, Any]:
            found = DeadLetters(connection).get(number)
            return {
                **{name: getattr(found.summary, name) for name in DeadLetterSummary.__slots__},
                "run": None if found.run is None else with_attempts(found.run),
                "message_key_base64": _base64(found.message_key),
                "message_value_base64": _base64(found.message_value),
            }

        return await answer(self.reads, caller, read)

    async def redrive_dead_letters(self, request: Request, caller: Operator) -> Response:
        """Redrive dead letters: schedulers create new runs, or publish messages again."""
        read_query(request, TenantQuery)
        body = await read_body(request, RedriveBody)
        filters = cast("DeadLetterFilter", _filters(body) | {"ids": body.ids})

        def change(connection: Connection) -> RedriveResult:
            return DeadLetters(connection).redrive(rate=body.rate, dry_run=body.dry_run, reason=body.reason, **filters)

        return accepted(caller, await call(self.writes, caller, change), _REDRIVES, "redrive_id")

    async def list_redrives(self, request: Request, caller: Reader) -> Response:
        """List redrives, the newest first."""
        query = read_query(request, LimitQuery)
        return await answer(self.reads, caller, lambda each: RedriveList(tuple(Redrives(each).list(limit=query.limit))))

    async def get_redrive(self, request: Request, caller: Reader) -> Response:
        """Return one redrive with its progress."""
        read_query(request, TenantQuery)
        return await answer(self.reads, caller, lambda each: Redrives(each).get(_redrive_id(request)))

    async def pause_redrive(self, request: Request, caller: Operator) -> Response:
        """Pause a redrive."""
        read_query(request, TenantQuery)
        body = await read_body(request, ReasonBody)
        redrive_id = _redrive_id(request)
        return await answer(self.writes, caller, lambda each: Redrives(each).pause(redrive_id, reason=body.reason))

    async def resume_redrive(self, request: Request, caller: Operator) -> Response:
        """Resume a redrive."""
        read_query(request, TenantQuery)
        await read_body(request, StrictModel)
        return await answer(self.writes, caller, lambda each: Redrives(each).resume(_redrive_id(request)))

    async def cancel_redrive(self, request: Request, caller: Operator) -> Response:
        """Cancel a redrive; what it has redriven stays."""
        read_query(request, TenantQuery)
        body = await read_body(request, ReasonBody)
        redrive_id = _redrive_id(request)
        return await answer(self.writes, caller, lambda each: Redrives(each).cancel(redrive_id, reason=body.reason))


def _filters(given: LettersQuery | RedriveBody) -> dict[str, Any]:
    return {name: getattr(given, name) for name in _NAMES} | {"key": given.job}


def _redrive_id(request: Request) -> UUID:
    return cast("UUID", request.path_params["redrive_id"])


def _base64(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()
