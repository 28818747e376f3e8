"""Batches on the web: the list, the page of one, and dialogs to close, resume and cancel one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import ClassVar, Literal, NamedTuple
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import Cursors, PageQuery, TenantQuery, Text, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import Dialog, Done, no_change, reason_field, request_id_of, text_of
from tidewheel.control.console.door import Form
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, list_view, or_else, page_now, part_of, read_filters
from tidewheel.control.console.words import agreed, counted, number, short_id, state
from tidewheel.control.reads.outcomes import ErrorLine, read_error_lines
from tidewheel.doors.address import after_of, next_cursor
from tidewheel.ids import read_uuid
from tidewheel.intake.apply import replies_of
from tidewheel.nouns.batches.operations import (
    Batches,
    BatchNode,
    BatchSummary,
    list_failed_runs,
    read_callbacks,
    show_batch,
)
from tidewheel.nouns.operation import Page, operations
from tidewheel.nouns.runs.model import RunSummary
from tidewheel.nouns.runs.reads import read_runs
from tidewheel.postgres.session import Conn
from tidewheel.runs import OPEN
from tidewheel.transitions.occurrences import NodeRun, read_node_runs

ROWS = 200
"""Runs in one page of a batch."""
_LIST = operations(Batches)["list"]


class BatchQuery(TenantQuery):
    """Query of the page of a batch."""

    show: Literal["failed", "all"] | None = None  # by default those that failed, if some did
    after: Text | None = None  # the ref before the first run of the page


@dataclass(frozen=True, slots=True)
class Share:
    """The runs of a batch in one state, as a part of its bar in percent."""

    state: str
    runs: int
    x: float
    width: float


STATES = ("succeeded", "failed", "pending", "cancelled", "skipped")
"""The states of a bar, in its order."""


def shares(counts: Mapping[str, int]) -> list[Share]:
    """Return the parts of a bar of runs by state; each is seen."""
    total = sum(counts[name] for name in STATES)
    widths = {name: max(counts[name] / total, 0.005) for name in STATES if counts[name]}
    found: list[Share] = []
    for name, width in widths.items():
        x = found[-1].x + found[-1].width if found else 0.0
        found.append(Share(name, counts[name], x, 100 * width / sum(widths.values())))
    return found


def _shares(batch: BatchSummary) -> list[Share]:
    return shares({name: getattr(batch, name) for name in STATES})


def about_batch(batch: BatchSummary) -> str:
    """Return how many runs of a batch have ended, and why it waits; empty if the counts by state say all."""
    paused = f"Paused{f': {batch.reason}' if batch.reason else ''}. " if batch.state == "paused" else ""
    runs = counted(batch.total, "run")
    if batch.total and batch.succeeded == batch.total:
        return f"All {runs} succeeded."
    ended = f"{number(batch.total - batch.pending)} of {runs} ended." if batch.pending else ""
    return f"{paused}{ended}".rstrip()


class Callback(NamedTuple):
    """A job that a batch triggers, with its run, if the reply to the trigger is stored."""

    on: str
    key: str
    is_due: bool
    run: NodeRun | None


def callbacks_of(connection: Conn, tenant: str, batch: BatchSummary) -> list[Callback]:
    """Return the callbacks of a batch, as this generation has triggered them."""
    due = {
        "failed": batch.first_failed_run_id is not None,
        "succeeded": batch.state == "succeeded",
        "finished": batch.finished_at is not None,
    }
    again = f"/{batch.generation}" if batch.generation else ""
    keys = read_callbacks(connection, batch.batch_id)
    asked = {on: f"batch/{batch.batch_id}/{on}{again}" for on in keys if due[on]}
    replies = replies_of(connection, tenant, list(asked.values()))
    ids = {on: UUID(reply.run_id) for on, name in asked.items() if (reply := replies.get(name)) and reply.run_id}
    runs = read_node_runs(connection, ids.values(), batch.batch_id)
    return [Callback(on, key, due[on], runs.get(ids[on]) if on in ids else None) for on, key in keys.items()]


@dataclass(frozen=True, slots=True)
class BatchesPage:
    """The list of batches."""

    template: ClassVar[str] = "batches.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read a page, the newest batches first."""
        query, errors = read_filters(request, PageQuery)

        def listed() -> tuple[list[tuple[BatchSummary, list[Share]]], str | None]:
            cursors = Cursors.of_list("batches", query, caller.tenant)
            found: Page[BatchSummary] = Batches(connection).list(after=after_of(cursors, _LIST), limit=query.limit)
            return [(each, _shares(each)) for each in found], next_cursor(cursors, found.next_cursor)

        def failures(page: Sequence[tuple[BatchSummary, list[Share]]]) -> Mapping[str, object]:
            first = [batch.first_failed_run_id for batch, _ in page if batch.first_failed_run_id]
            runs: Sequence[RunSummary] = or_else(part_of(connection, read_runs, first), ()) if first else ()
            lines: Mapping[UUID, ErrorLine] = or_else(part_of(connection, read_error_lines, first), {}) if first else {}
            return {"failures": {run.run_id: (run.key, lines.get(run.run_id)) for run in runs}}

        now = page_now(connection)
        return list_view("batches", query, listed, errors=errors, now=now, urls=urls, of_page=failures)


@dataclass(frozen=True, slots=True)
class BatchPage:
    """The page of a batch."""

    template: ClassVar[str] = "batch.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read its counts, its callbacks, and a page of its runs."""
        query, now, batch_id = read_query(request, BatchQuery), page_now(connection), _batch_of(request)
        with connection.snapshot() as reading:
            found = show_batch(reading, caller.tenant, batch_id, limit=ROWS, after=query.after or "")
            batch = found.summary
            show = query.show or ("failed" if batch.failed else "all")
            failed = list_failed_runs(reading, batch_id, limit=ROWS, after=query.after or "")
            callbacks = callbacks_of(reading, caller.tenant, batch)
            first = batch.first_failed_run_id
            error = read_error_lines(reading, [first]).get(first) if first else None
            statuses = _statuses(reading, found.runs)
        rows = failed if show == "failed" else found.runs
        again = batch.failed + batch.cancelled if batch.finished_at else 0
        following = urls("batch", batch_id=batch_id, show=show, after=rows[-1].ref) if len(rows) == ROWS else None
        return View(
            {
                "now": now, "batch": batch, "shares": _shares(batch), "sentence": about_batch(batch),
                "rows": rows, "show": show, "again": again, "error": error, "callbacks": callbacks, "more": following,
                "after": query.after, "statuses": statuses,
                "open_runs": Counter(statuses.values()) if len(statuses) == batch.pending else None,
            }
        )  # fmt: skip


def _statuses(reading: Conn, rows: Sequence[BatchNode]) -> Mapping[UUID, str]:
    """Return the states of open runs, as the list of runs has them."""
    found = [each.run_id for each in rows if each.state in OPEN]
    return {run.run_id: run.status for run in read_runs(reading, found)} if found else {}


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Close, resume or cancel a batch."""

    verb: Literal["close", "resume", "cancel"]

    @property
    def scope(self) -> Scope:
        """The right that the operation needs."""
        return operations(Batches)[self.verb].scope

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what changes and what stays."""
        batch, back = Batches(connection).get(_batch_of(request), limit=1).summary, _page(urls, request)
        effect = _effect(self.verb, batch)
        verb = "Retry" if self.verb == "resume" and batch.finished_at else self.verb.capitalize()
        if effect is None:
            closed = ", and takes no further runs" if self.verb == "close" else ""
            return no_change(f"{verb} this batch?", back, f"The batch is {state(batch.state)}{closed}.")
        runs, will, stays = effect
        failed = "failed " if self.verb == "resume" and not batch.cancelled else ""
        what, of = counted(runs, f"{failed}run") if runs else "", f"batch {short_id(batch.batch_id)}"
        return Dialog(
            f"{verb} {what} of {of}?" if what else f"{verb} {of}?", f"{verb} {what or 'batch'}", back,
            will=(will,), stays=(stays,) if stays else (), danger=self.verb == "cancel",
            fields=() if self.verb == "close" else (reason_field("on the batch"),),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Do it."""
        given = {} if self.verb == "close" else {"reason": text_of(form, "reason")}
        change = getattr(Batches(connection), self.verb)
        done = {"close": "closed", "resume": "resumed", "cancel": "being cancelled"}[self.verb]
        changed = change(_batch_of(request), request_id=request_id_of(form), **given)
        return Done(_page(urls, request), f"The batch is {done}{'' if changed else ' already, or has ended'}.")


def _effect(verb: str, batch: BatchSummary) -> tuple[int, str, str] | None:
    """Return the number of runs that a change touches, its effect, and what stays; None without an effect."""
    ended = batch.total - batch.pending
    match verb:
        case "close" if batch.accepts_runs:
            return 0, "Clients can add no further runs. The batch ends with its last run.", ""
        case "resume" if batch.state == "paused":
            return 0, "Runs start whose conditions are met.", ""
        case "resume" if batch.finished_at and (again := batch.failed + batch.cancelled):
            runs = counted(again, "failed or cancelled run" if batch.cancelled else "failed run")
            kept = f"; the {number(batch.succeeded)} that succeeded {agreed(batch.succeeded, 'is', 'are')} kept"
            return again, f"Retries the {runs} with the same payloads{kept if batch.succeeded else ''}.", ""
        case "cancel" if batch.finished_at is None and batch.state != "cancelling":
            will = "Open runs end as cancelled; attempts under way get a signal."
            return batch.pending, will, _stay(ended, "ended run", "stays as it is", "stay as they are")
        case _:
            return None


def _stay(runs: int, noun: str, one: str, more: str) -> str:
    return f"The {counted(runs, noun)} {agreed(runs, one, more)}." if runs else ""


def _batch_of(request: Request) -> UUID:
    """Return the batch that an address names, or answer 404."""
    try:
        return read_uuid(str(request.path_params["batch_id"]))
    except ValueError:
        raise HTTPException(HTTPStatus.NOT_FOUND, "there is no such batch: its id is a UUID") from None


def _page(urls: Urls, request: Request) -> str:
    return urls("batch", batch_id=_batch_of(request))
