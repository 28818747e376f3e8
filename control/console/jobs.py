"""The list of jobs, what fires next, and the actions on those that are selected: pause and resume."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import ClassVar, Literal
from uuid import UUID

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import Cursors, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import (
    SAMPLE,
    Dialog,
    Done,
    Field,
    no_change,
    reason_field,
    request_id_of,
    sample_of,
    text_of,
)
from tidewheel.control.console.axis import GRID, LIST, Axis, Window, axis
from tidewheel.control.console.door import Form
from tidewheel.control.console.grid import CONDITIONS, NARROW, WIDE, Pitch, Strip, condition, strip
from tidewheel.control.console.many_runs import SelectedQuery, back_of
from tidewheel.control.console.rendering import zone_of_page
from tidewheel.control.console.sentences import wait_label
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, in_snapshot, list_view, or_else, page_now, pairs, part_of, read_filters
from tidewheel.control.console.words import counted, family_of, number
from tidewheel.control.explain.month import JobBins, job_bins
from tidewheel.control.reads.job_position import SelectedJob, read_selected_jobs
from tidewheel.control.reads.outcomes import ErrorLine, read_newest_errors
from tidewheel.control.reads.resuming import preview_resume
from tidewheel.control.reads.waits import read_waits
from tidewheel.doors.address import form_of
from tidewheel.errors import FieldError, InvalidInput
from tidewheel.ids import instant_of
from tidewheel.jobs.values import Key
from tidewheel.nouns.jobs.model import JobPage, JobSummary
from tidewheel.nouns.jobs.reads import list_jobs
from tidewheel.nouns.jobs.web import BY_FIELD, JobsQuery, jobs_query
from tidewheel.nouns.runs.reads import count_queued
from tidewheel.postgres.session import Conn
from tidewheel.runs import SCHEDULED
from tidewheel.schedules.decision import HoldReason

_HELD = {"waiting", "retrying"}
_NAMED = 3  # refusals that the message names
_IN_GRID = 200  # jobs of a page
_IDLE = 6  # jobs that never ran which become one line
_BACKLOGS = 3  # jobs whose waiting runs are counted
_FURTHER = 3  # pages of jobs that are read for the rows of one
_UNREAD = JobBins((), (), is_sample=False)
_FORM = form_of(BY_FIELD, without=("prefix",))
_NONE = FieldError("job", "none of the selected jobs is there", "go back and select others")


class PauseJobs:
    """Pause the jobs that are selected in a list."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return how many of them fire."""
        found = _selected(connection, caller, request)
        paused = sum(each.paused for each in found)
        if paused == len(found):
            return _nothing("Pause", "All of the selected jobs are paused already." if found else "", request, urls)
        return Dialog(
            f"Pause {counted(len(found) - paused, 'job')}?", f"Pause {counted(len(found) - paused, 'job')}",
            back_of(request, urls, "jobs"),
            will=(
                "No occurrence fires until the jobs are resumed.",
                "When a pause ends, each job's on_resume setting fires or skips what came due meanwhile.",
            ),
            stays=("Runs under way and backfills continue. Triggers still run.", *_already(paused, "paused already")),
            fields=(
                reason_field("on each job"),
                Field("kept", "", "hidden", " ".join(each.job_id.hex for each in found if each.paused)),
            ),
            sample=_sample([each for each in found if not each.paused]),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Pause each of them; a job that its dialog has shown as paused keeps that pause, with its end."""
        document = {"type": "job.pause", "reason": text_of(form, "reason")}
        words = _change(connection, caller, form, request, verb="paused", document=document)
        return Done(urls("jobs", status="paused"), words)


class ResumeJobs:
    """Resume the jobs that are selected in a list."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return how many of them are paused."""
        found = _selected(connection, caller, request)
        paused = sum(each.paused for each in found)
        if not paused:
            return _nothing("Resume", "None of the selected jobs is paused." if found else "", request, urls)
        due = in_snapshot(connection, preview_resume, caller.tenant, [each.job_id for each in found])
        return Dialog(
            f"Resume {counted(paused, 'job')}?", f"Resume {counted(paused, 'job')}", back_of(request, urls, "jobs"),
            will=("They fire again.", *due.words),
            stays=_already(len(found) - paused, "not paused"),
            sample=_sample([each for each in found if each.paused]),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Resume each of them."""
        words = _change(connection, caller, form, request, verb="resumed", document={"type": "job.resume"})
        return Done(back_of(request, urls, "jobs"), words)


def freezable_filters(query: JobsQuery) -> Mapping[str, object] | None:
    """Return the scope of a freeze of all jobs that a list shows; None if a freeze has no such filter."""
    given = query.filter
    named = {"key_prefix": given.pop("prefix", None), "label": pairs(given.pop("labels", None) or {})}
    found: dict[str, object] = {name: value for name, value in named.items() if value}
    return found if found and all(value is None for value in given.values()) else None


def _nothing(verb: str, why: str, request: Request, urls: Urls) -> Dialog:
    """Return the dialog of an action that would change none of the selected jobs."""
    return no_change(f"{verb} the selected jobs?", back_of(request, urls, "jobs"), why or "No job is selected.")


def _selected(connection: Connection, caller: Caller, request: Request) -> Sequence[SelectedJob]:
    chosen = read_query(request, SelectedQuery).job
    return in_snapshot(connection, read_selected_jobs, caller.tenant, chosen)


def _change(
    connection: Connection, caller: Caller, form: Form, request: Request, *, verb: str, document: Mapping[str, object]
) -> str:
    """Change each selected job, all in one transaction; return how many have changed, and who was refused.

    Raises:
        InvalidInput: None has changed: each refusal, with the key of its job.
    """
    kept, request_id = set(form.get("kept", "").split()), request_id_of(form)
    found = [each for each in _selected(connection, caller, request) if each.job_id.hex not in kept]
    replies = connection.request_all(
        [
            {**document, "key": each.key, "request_id": f"{request_id}/{each.job_id}" if request_id else None}
            for each in found
        ]
    )
    refused = [
        FieldError(each.key, error.problem, error.remedy)
        for each, reply in zip(found, replies, strict=True)
        for error in reply.errors[:1]
    ]
    same = sum(reply.unchanged for reply in replies)
    if len(refused) == len(found):
        raise InvalidInput(refused or [_NONE])
    words = [f"{counted(len(found) - len(refused) - same, 'job')} {verb}."]
    words += [f"{number(same)} already {'was' if same == 1 else 'were'}."] if same else []
    words += [f"{number(len(refused))} refused: {'; '.join(map(str, refused[:_NAMED]))}."] if refused else []
    return " ".join(words)


def _already(count: int, words: str) -> Sequence[str]:
    return (f"Of these, {counted(count, 'job')} {'is' if count == 1 else 'are'} {words}.",) if count else ()


def _sample(found: Sequence[SelectedJob]) -> Sequence[str]:
    return sample_of([each.key for each in found[:SAMPLE]], len(found))


class JobsPageQuery(JobsQuery):
    """Query of the page of jobs without the filter: its order, and how it shows the list."""

    view: Literal["table", "grid"] = "table"
    window: Literal["1h", "6h", "24h", "7d"] = "1h"
    sort: Literal["problems", "key", "-key"] = "problems"
    idle: Literal["fold", "show"] = "fold"


_QUERY = jobs_query(JobsPageQuery)


class JobsPage:
    """The list of jobs, as a table or as a grid of jobs and time."""

    template: ClassVar[str] = "jobs.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read a page of jobs by the filters of the address."""
        query, errors = read_filters(request, _QUERY)
        now, is_grid = page_now(connection), query.view == "grid"
        zone = zone_of_page(request)[1]
        along = axis(Window(query.window), now, zone, whole=True, windows=GRID if is_grid else LIST)
        shown = ("view", "window", "sort", "idle")
        limit = _IN_GRID if is_grid and "limit" not in query.model_fields_set else query.limit

        def listed() -> tuple[JobPage, str | None]:
            cursors = Cursors.of_list("jobs", query, caller.tenant)
            [after] = cursors.read(Key) or [""]
            read = partial(list_jobs, last_first=query.sort == "-key", **query.filter)
            page = in_snapshot(connection, read, caller.tenant, after=after, limit=limit)
            for _ in range(0 if is_grid or query.idle == "show" else _FURTHER):  # a line of folded jobs leaves room
                left = limit - sum(not is_idle(job) for job in page.jobs)
                idle = len(page.jobs) - (limit - left)
                if page.next_cursor is None or idle < _IDLE or not 0 < left < limit:
                    break
                more = in_snapshot(connection, read, caller.tenant, after=page.next_cursor, limit=left, counts=False)
                page = replace(page, jobs=(*page.jobs, *more.jobs), next_cursor=more.next_cursor)
            return page, cursors.write(page.next_cursor)

        def rows(page: JobPage) -> Mapping[str, object]:
            bins = part_of(connection, job_bins, page.jobs, along.edges, along.behind)
            pitch = WIDE if is_grid else NARROW
            of_job: Mapping[UUID, JobBins] = or_else(bins, {})
            failing = part_of(connection, list_jobs, caller.tenant, unwell=True)
            marked = page if query.status == "unwell" else or_else(failing, None)
            unwell = {job.job_id for job in marked.jobs} if marked and marked.next_cursor is None else None
            found = [row_of(job, of_job.get(job.job_id), pitch, along, unwell) for job in page.jobs]
            whys = part_of(connection, problems, caller.tenant, found)
            idle = [row for row in found if query.idle != "show" and is_idle(row.job)]
            idle = idle if _IDLE <= len(idle) < len(found) else []
            kept = [row for row in found if not (idle and is_idle(row.job))]
            return {
                "rows": in_order(kept) if query.sort == "problems" else kept,
                "idle": idle, "bins": bins, "whys": whys, "failing": failing,
                "freezable": freezable_filters(query), "along": along, "pitch": pitch,
            }  # fmt: skip

        return list_view(
            "jobs", query, listed, errors=errors, now=now, urls=urls, of_page=rows, fields=_FORM, shown=shown
        )


@dataclass(frozen=True, slots=True)
class Row:
    """A job of the list.

    Args:
        condition: One of `CONDITIONS`.
        last_at: When its last run began; before that, the time in the run's id: of a retry, that of the request.
    """

    job: JobSummary
    held: str | None
    strip: Strip
    is_sample: bool
    condition: str
    last_at: datetime | None

    @property
    def mark(self) -> str:
        """The state whose mark the job has: that of its last run, if the job is well."""
        of_last = self.job.last_run.state if self.job.last_run else SCHEDULED
        return of_last if self.condition in ("recovered", "well") else CONDITIONS[self.condition][0]


def problems(connection: Conn, tenant: str, rows: Sequence[Row]) -> Mapping[UUID, tuple[str, str]]:
    """Return why jobs wait, retry or fail, and behind a sample how many runs wait."""
    failing = [row.job.job_id for row in rows if CONDITIONS[row.condition][1] == "b"]
    errors: Mapping[UUID, ErrorLine] = read_newest_errors(connection, failing) if failing else {}
    last = {row.job.last_run.run_id: row for row in rows if row.condition in _HELD and row.job.last_run}
    waits = read_waits(connection, [*last]) if last else {}
    sampled = [row.job.key for row in last.values() if row.is_sample and row.condition == "waiting"][:_BACKLOGS]
    counts = {key: count_queued(connection, tenant, key) for key in sampled}
    many = {key: number(each.runs, at_least=each.at_least) for key, each in counts.items()}
    of_wait = {last[run].job.job_id: (many.get(last[run].job.key, ""), wait_label(wait)) for run, wait in waits.items()}
    return {job_id: ("", error.text) for job_id, error in errors.items()} | of_wait


def row_of(job: JobSummary, bins: JobBins | None, pitch: Pitch, along: Axis, unwell: Collection[UUID] | None) -> Row:
    """Return the row of a job; without bins its strip has no figures."""
    last = job.last_run
    last_at = None if last is None else last.started_at or instant_of(last.run_id)
    runs, due, is_sample = bins or _UNREAD
    since = last.started_at if last and last.started_at and family_of(last.state) == "moving" else None
    drawn = strip(runs, due, pitch, None if since is None or not runs else along.bin_of(since) or 0)
    words = condition(job, drawn.total, along.now, is_unwell=None if unwell is None else job.job_id in unwell)
    return Row(job, hold_words(job), drawn, is_sample, words, last_at)


def is_idle(job: JobSummary) -> bool:
    """Return True if a job has never run, and nothing is known to come."""
    return job.last_run is None and job.next_at is None and hold_words(job) is None


def in_order(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows of a grid, the worst first: by condition, then by the number of runs that it hurts."""
    order = list(CONDITIONS)

    def place(row: Row) -> tuple[int, int, bool, str]:
        hurt = row.strip.total[CONDITIONS[row.condition][1]]
        return order.index(row.condition), -hurt, not row.strip.total, row.job.key

    return sorted(rows, key=place)


def hold_words(job: JobSummary) -> str | None:
    """Return why a job's timer does not fire; None if nothing holds it."""
    if job.hold_reason == HoldReason.QUARANTINED:
        return "quarantined"
    if job.paused:
        return "paused"
    if job.finished_at is not None:
        return "finished"
    return {"freeze": "frozen", "run": "after its run"}.get(job.hold_reason or "")
