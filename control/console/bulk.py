"""Bulk work: cancellations by filter and works; pause, resume and cancel a work."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar, Literal, cast, get_type_hints
from uuid import UUID

from pydantic import create_model
from starlette.exceptions import HTTPException
from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import TenantQuery, read_number, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import Dialog, Done, cannot, reason_field, text_of
from tidewheel.control.console.door import Form
from tidewheel.control.console.progress import Paces, Work, of_cancellation, of_work, ordered
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, View, of_all_tenants, page_now, part
from tidewheel.control.console.words import number, state
from tidewheel.control.reads.fleet import is_scheduler_alive
from tidewheel.control.reads.stored import readable
from tidewheel.ids import job_id, read_uuid
from tidewheel.jobs.strict_json import as_list
from tidewheel.jobs.values import parse_timestamp
from tidewheel.nouns.dead_letters.operations import DeadLetterFilter, DeadLetters, list_dead_letters
from tidewheel.nouns.freezes.reads import freezes_of, standing_freezes
from tidewheel.nouns.runs.model import Cancellation
from tidewheel.nouns.runs.operations import list_cancellations, show_cancellation
from tidewheel.nouns.works.operations import COUNTED, ENDS, INSTANTS, KINDS, Works, list_works, show_work
from tidewheel.nouns.works.operations import Work as StoredWork
from tidewheel.postgres.session import Conn

_OF_EACH = 50
_COUNTED = 10  # redrives that left dead letters, or will: so many are counted, those under way first
_ACCOUNTED = timedelta(days=1)  # after the end: later, retention removes dead letters, and deleted jobs
_LISTED = 200  # dead letters of a redrive, of which the rejected ones are left out
_CHOSEN = 10  # of the dead letters that a redrive names one by one

_FIELDS: dict[str, Any] = {
    name: (hint, None) for name, hint in get_type_hints(DeadLetterFilter, include_extras=True).items()
}
_Letters = create_model("_Letters", **_FIELDS)

Verb = Literal["pause", "resume", "cancel"]

_FROM: Mapping[Verb, Collection[str]] = {
    "pause": ("running",), "resume": ("paused",), "cancel": ("running", "paused")
}  # fmt: skip
_WILL: Mapping[Verb, str] = {
    "pause": "It stops until it is resumed. What it has done stays.",
    "resume": "It continues where it was paused, at its rate.",
    "cancel": "It stops. What it has done stays, and its runs continue.",
}  # fmt: skip
_STOPS_BACKFILL = "It creates no further run. Its runs that have not started are cancelled, and started runs continue."
_DONE: Mapping[str, str] = {"pause": "is paused", "resume": "continues", "cancel": "is cancelled"}


@dataclass(frozen=True, slots=True)
class BulkPage:
    """The list of bulk work."""

    paces: Paces
    template: ClassVar[str] = "bulk.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the newest fifty of each kind."""
        read_query(request, TenantQuery)
        now = page_now(connection)
        parts = [part(partial(_newest, connection, caller, kind, now)) for kind in ("cancellation", "work")]
        read = [work for found in parts if not isinstance(found, Failed) for work in found]
        works = ordered([self.paces.seen(work, now) for work in read])
        ending = sum(work.state == "ending" for work in works)
        goes_on = sum(work.finished_at is None for work in works) - ending
        failures = [found for found in parts if isinstance(found, Failed)]
        return View(
            {"now": now, "works": works, "goes_on": goes_on, "ending": ending, "failures": failures,
             "stalled": _is_stalled(connection, works), "most": _OF_EACH}
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BulkWorkPage:
    """The page of one cancellation or work."""

    paces: Paces
    template: ClassVar[str] = "bulk-work.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read it."""
        read_query(request, TenantQuery)
        now, (_, number) = page_now(connection), _place(request)
        with connection.snapshot() as reading:
            row = _row(reading, caller.tenant, number)
            read = _read_work(reading, caller.tenant, row, now)
            frozen = _is_frozen(reading, caller.tenant, row)
        work = self.paces.seen(read, now)
        given = _given(row)
        chosen = [each for each in as_list(given.get("ids")) or () if isinstance(each, int)][:_CHOSEN]
        times = {name: _instant(given.get(name), f"work {number}") for name in INSTANTS}
        letters = DeadLetters(connection).list(ids=chosen, redriven=True).dead_letters if chosen else ()
        stalled = _is_stalled(connection, [work])
        return View(
            {"now": now, "work": work, "row": row, "stalled": stalled, "letters": letters, "frozen": frozen,
             "times": times, "creates_runs": isinstance(row, StoredWork) and _creates_runs(row)}
        )  # fmt: skip


def _instant(text: Any, row: str) -> datetime | None:  # noqa: ANN401 - as it is stored
    return None if text is None else readable("filter", row, lambda: parse_timestamp(text), None)


def _place(request: Request) -> tuple[str, UUID | int]:
    """Return the kind and the id that an address names, or answer 404."""
    kind, text = str(request.path_params["kind"]), str(request.path_params["id"])
    if kind in {"cancellation", *KINDS}:
        with suppress(ValueError):
            number = read_number(text) if kind == "cancellation" else read_uuid(text)
            if number is not None:
                return kind, number
    raise HTTPException(404, f"there is no bulk work {kind} {text}; copy its address from the list")


def _read_work(connection: Conn, tenant: str, row: Cancellation | StoredWork, now: datetime) -> Work:
    """Return the progress of a row, with the dead letters that others have taken from a redrive."""
    if isinstance(row, Cancellation):
        return of_cancellation(row, now)
    work = of_work(row, now)
    is_long_ended = row.finished_at is not None and now - row.finished_at > _ACCOUNTED
    if row.kind != "redrive" or row.state == "finished" or is_long_ended:
        return work
    gone, rest = _taken(connection, tenant, row)
    return replace(work, gone=gone, kept=rest if row.state == "cancelled" else 0)


def _row(connection: Conn, tenant: str, number: UUID | int) -> Cancellation | StoredWork:
    if isinstance(number, int):
        return show_cancellation(connection, tenant, number)
    return show_work(connection, tenant, number)


def _taken(connection: Conn, tenant: str, row: StoredWork) -> tuple[int, int]:
    """Return how many dead letters others took from a redrive, and the rest; 0 if that is not known."""
    left = row.matched_count - row.processed
    if row.matched_count > COUNTED or left <= 0:
        return 0, 0
    letters = readable("filter", f"work {row.work_id}", lambda: _letters_of(row), None)
    if letters is None:
        return 0, 0
    found = list_dead_letters(connection, tenant, limit=_LISTED, **letters)
    if found.at_least:
        return 0, 0
    rest = found.total - row.rejected_count
    if found.total <= _LISTED and row.rejected_count == len(row.rejections):
        rejected = {each.get("id") for each in row.rejections}  # some may be purged meanwhile
        rest = sum(letter.id not in rejected for letter in found.dead_letters)
    rest = min(max(rest, 0), left)
    return left - rest, rest


def _letters_of(row: StoredWork) -> DeadLetterFilter:
    """Return the filter of the dead letters that a redrive has not redriven."""
    given = _given(row)
    names = [name for name in DeadLetterFilter.__annotations__ if name in given]
    read = _Letters.model_validate(
        {**{name: given[name] for name in names}, "key": given.get("job"), "redriven": False}
    )
    return cast("DeadLetterFilter", read.model_dump(exclude_unset=True))


def _given(row: Cancellation | StoredWork) -> Mapping[str, Any]:
    """Return the filter and the facts of a work; empty for a cancellation."""
    return {**row.filter, **row.facts} if isinstance(row, StoredWork) else {}


def _is_frozen(connection: Conn, tenant: str, row: Cancellation | StoredWork) -> bool:
    """Return True if a freeze covers all the runs that bulk work creates."""
    if isinstance(row, Cancellation) or row.finished_at or not _creates_runs(row):
        return False
    if "job" in row.filter:
        return bool(freezes_of(connection, tenant, job_id(tenant, str(row.filter["job"]))))
    freezes = standing_freezes(connection, tenant)
    return any(not each.narrow() for each in freezes)


def _creates_runs(row: StoredWork) -> bool:
    return row.kind in KINDS and KINDS[row.kind].creates_runs and row.filter.get("kind") != "message"


def _newest(connection: Connection, caller: Caller, kind: str, now: datetime) -> Sequence[Work]:
    with connection.snapshot() as reading:
        if kind == "cancellation":
            return [of_cancellation(each, now) for each in list_cancellations(reading, caller.tenant, limit=_OF_EACH)]
        rows = list_works(reading, caller.tenant, limit=_OF_EACH)
        unfinished = [row for row in rows if row.state != "finished"]
        counted = sorted(unfinished, key=lambda row: row.finished_at is not None)[:_COUNTED]
        return [_read_work(reading, caller.tenant, row, now) if row in counted else of_work(row, now) for row in rows]


def _is_stalled(connection: Connection, works: Sequence[Work]) -> bool:
    """Return True if some of the works run or end, and no scheduler is alive to go on with them."""
    if all(work.state not in {"running", "ending"} for work in works):
        return False
    return not of_all_tenants(connection, is_scheduler_alive)


@dataclass(frozen=True, slots=True)
class ChangeBulk:
    """Pause, resume or cancel bulk work."""

    verb: Verb
    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what the change stops, with the progress so far."""
        now, (_, named) = page_now(connection), _place(request)
        with connection.snapshot() as reading:
            work = _read_work(reading, caller.tenant, _row(reading, caller.tenant, named), now)
        _require_change(work.kind)
        total = "" if work.total is None else f" of {number(work.total, at_least=work.at_least)}"
        so_far = f"Done so far: {number(work.done)}{total} {work.noun}. {work.gone_words}".rstrip()
        asks = f"{self.verb.capitalize()} the {work.words.verb}"
        back = urls("bulk_work", kind=work.kind, id=work.id)
        if work.state not in _FROM[self.verb]:
            is_now = f"It {ENDS}" if work.state == "ending" else f"Its state is {state(work.state)}"
            return cannot(f"{asks}?", back, f"Nothing would change. {is_now}.", so_far)
        return Dialog(
            f"{asks}?", asks, back, danger=self.verb == "cancel",
            will=(_STOPS_BACKFILL if (self.verb, work.kind) == ("cancel", "backfill") else _WILL[self.verb], so_far),
            sample=work.about, fields=() if self.verb == "resume" else (reason_field("on the bulk work"),),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Change it."""
        kind, found = _place(request)
        _require_change(kind)
        assert isinstance(found, UUID)  # noqa: S101 - of these kinds
        given = {} if self.verb == "resume" else {"reason": text_of(form, "reason")}
        to = urls("bulk_work", kind=kind, id=found)
        if getattr(Works(connection), self.verb)(found, **given).unchanged:
            return Done(to, f"Nothing to {self.verb}: the {KINDS[kind].verb} has changed.")
        other = {"pause": "resume", "resume": "pause"}.get(self.verb)
        undo = None if other is None else (other.capitalize(), urls(f"bulk_{other}", kind=kind, id=found))
        return Done(to, f"The {KINDS[kind].verb} {_DONE[self.verb]}.", undo)


def _require_change(kind: str) -> None:
    if kind == "cancellation":
        raise HTTPException(HTTPStatus.NOT_FOUND, "a cancellation cannot be stopped: no executor starts its runs")
