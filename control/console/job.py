"""One job on its time axis: what it did, why not, what comes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar, Literal, Self
from urllib.parse import unquote
from uuid import UUID

from pydantic import Field, model_validator
from starlette.exceptions import HTTPException
from starlette.requests import Request

from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import TenantQuery, as_key
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.axis import LEAST_SPAN, Axis, Window, axis, axis_between, axis_since, window_of
from tidewheel.control.console.job_lead import LATEST, Seen, ended, read_lead
from tidewheel.control.console.job_line import job_line, ran_at
from tidewheel.control.console.job_rows import Row, Show, counts, error_lines, filtered, folded, job_rows, woven
from tidewheel.control.console.jobs import hold_words
from tidewheel.control.console.rendering import zone_of_page
from tidewheel.control.console.urls import Urls, read_ref
from tidewheel.control.console.view import Failed, View, in_snapshot, or_else, page_now, part, part_of, read_filters
from tidewheel.control.console.words import schedule_of
from tidewheel.control.explain.month import Counted, coming_counts
from tidewheel.control.explain.operations import MOST_DAYS, JobTimeline, TimelineRun, job_timeline
from tidewheel.control.explain.upcoming import UpcomingOccurrence, upcoming
from tidewheel.control.reads.job_position import key_of_job
from tidewheel.control.reads.outcomes import read_repeated
from tidewheel.control.reads.resuming import preview_resume
from tidewheel.control.words import schedule_words
from tidewheel.ids import job_id
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import Instant, format_second, format_timestamp
from tidewheel.nouns.dead_letters.operations import DeadLetters
from tidewheel.nouns.freezes.reads import thaws_of
from tidewheel.nouns.jobs.model import JobDetail
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.nouns.runs.model import PageFilter, RunSummary, Status
from tidewheel.nouns.runs.reads import count_queued, list_runs
from tidewheel.runs import DEAD_LETTERED, Cause, RunState

_LATE = timedelta(seconds=1)  # from the instant of a run to its start
_RUNS = 50
_NEXT = 10
_DOZENS = 20
_RECENT = 10  # ended runs: a job with a failure among them is in the list of failing ones


class JobQuery(TenantQuery):
    """A window up to now, or a time in its place; without both, the time of some dozens of occurrences."""

    window: Literal["2m", "10m", "1h", "6h", "24h", "7d", "30d", "90d"] | None = None
    from_at: Instant | None = Field(default=None, alias="from")
    to_at: Instant | None = Field(default=None, alias="to")
    show: Literal["all", "failed", "skipped", "slowest", "retried"] = "all"
    opened_at: Instant | None = Field(default=None, alias="open")  # among the neighbours that the list does not fold

    @model_validator(mode="after")
    def _both_in_order(self) -> Self:
        if (self.from_at is None) != (self.to_at is None):
            raise InvalidValue(problem="from and to belong together", remedy="write both, or neither", path="to")
        if self.from_at is not None and self.to_at is not None:
            if self.to_at <= self.from_at:
                raise InvalidValue(problem="it does not lie after from", remedy="write a later instant", path="to")
            if self.to_at - self.from_at > timedelta(days=MOST_DAYS):
                raise InvalidValue(problem="the time is too long", remedy=f"write {MOST_DAYS} days at most", path="to")
        return self


class JobPage:
    """The page of a job."""

    template: ClassVar[str] = "job.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the job, its runs and skips in a time, and what comes."""
        zone_name, zone = zone_of_page(request)
        query, errors = read_filters(request, JobQuery)
        key = key_of_page(connection, caller, request)
        if (away := moved(request, urls, key, job_id(caller.tenant, key))) is not None:
            return away
        now, tenant = page_now(connection), caller.tenant
        job = in_snapshot(connection, show_job, tenant, key)
        coming = part_of(connection, upcoming, tenant, key, _NEXT)
        seen = seen_of(connection, tenant, key, now)
        latest = seen.latest
        ahead = () if isinstance(coming, Failed) else coming.occurrences
        along = axis(_window(query, now, ahead, latest), now, zone)
        if query.from_at is not None and query.to_at is not None:
            along = axis_between(query.from_at, query.to_at, now, zone)

        def list_past() -> tuple[JobTimeline, Sequence[TimelineRun | RunSummary]]:
            with connection.snapshot() as reading:
                found = job_timeline(reading, tenant, key, along.edges[: along.behind + 1], explained=False)
                if found.mode == "runs":
                    return found, found.runs
                status: Status | None = "failed" if query.show == "failed" else None
                narrowed = PageFilter(key=key, status=status, since=along.begin, until=min(now, along.until))
                return found, list_runs(reading, tenant, narrowed, limit=_RUNS, counts=False).runs

        address = partial(urls.job, key, job_id(tenant, key), show=query.show)
        past = part(list_past)
        counted: Sequence[Counted] | Failed = ()
        if along.end > now:
            counted = part_of(connection, coming_counts, tenant, key, along.edges[max(along.behind - 1, 0) :])
        seen = replace(seen, coming=or_else(coming, None))
        if job.summary.paused:
            resumption = part_of(connection, preview_resume, tenant, [job.summary.job_id])
            seen = replace(seen, resumption=or_else(resumption, None))
        values: dict[str, object] = {"line": None, "folds": [], "counts": {}, "more": False}
        if not isinstance(past, Failed):
            timeline = past[0]
            many = len(timeline.runs) if all(run.state == RunState.SUCCEEDED for run in timeline.runs) else 0
            seen = replace(seen, unfired=timeline.skips, more_unfired=timeline.more_skips, succeeded=many)
            if query.from_at is None:
                seen = seen if timeline.complete_since else replace(seen, shown=f"the last {along.bins.words}")
                bins = [each.at for each in timeline.bins if any(each.counts.values())]
                shown = [*map(ran_at, timeline.runs), *(each.at for each in timeline.skips), *bins]
                along = axis_since(along, min([job.created_at, *shown]))  # a backfill is older than its job
            line = job_line(along, timeline, or_else(counted, ()), ahead, urls, address=address)
            values = {"line": line, **_list(connection, job, past, query)}
        return View(
            {
                "now": now, "coming": coming, "past": past, "query": query, "errors": errors,
                **_windows(along, job, now, latest), "shows": list(Show), "zoom": _zoom(along), "zone": zone_name,
                "window": along.window if query.from_at is None else None,
                "span": {"from": format_timestamp(along.begin), "to": format_timestamp(along.end)},
                **head_of(connection, caller, job, "timeline", seen),
                "chosen": {"window": query.window} if query.from_at is None else {
                    "from": format_timestamp(query.from_at), "to": format_timestamp(query.to_at or now)},
                **values,
            },
            422 if errors else 200,
        )  # fmt: skip


def seen_of(connection: Connection, tenant: str, key: str, now: datetime) -> Seen:
    """Return a job's latest runs; if all of them are queued, with the number of all that are."""
    listed = part_of(connection, list_runs, tenant, PageFilter(key=key, until=now), limit=LATEST, counts=False)
    latest = () if isinstance(listed, Failed) else listed.runs
    if len(latest) < LATEST or any(run.status != RunState.QUEUED for run in latest):
        return Seen(now, latest)
    return Seen(now, latest, waiting=or_else(part_of(connection, count_queued, tenant, key), None))


def _list(
    connection: Connection,
    job: JobDetail,
    past: tuple[JobTimeline, Sequence[TimelineRun | RunSummary]],
    query: JobQuery,
) -> Mapping[str, object]:
    """Return the values of the list of occurrences."""
    timeline, runs = past
    rows = job_rows(runs, timeline, error_lines(connection, runs))
    show = Show(query.show)
    shown = filtered(rows, show)
    folds: list[Sequence[Row]] = [(row,) for row in shown]
    if show is not Show.SLOW:
        folds = woven(folded(shown, query.opened_at), query.opened_at)
    apart = [rows[0] for rows in folds[:_RUNS] if len(rows) == 1]
    retries = [row.run_id for row in shown if row.run_id and row.is_retry][:_RUNS]
    repeated: Mapping[UUID, UUID] = or_else(part_of(connection, read_repeated, retries), {}) if retries else {}
    return {
        "folds": folds[:_RUNS], "looked_at": len(runs),
        "listed": sum(row.occurrences for fold in folds[:_RUNS] for row in fold),
        "repeated": repeated, "retried": {parent: run for run, parent in repeated.items()},
        "frozen": or_else(part(lambda: _frozen(connection, job, apart, timeline.now)), set()),
        "more": len(folds) > _RUNS or timeline.mode == "bins" or timeline.more_skips,
        "counts": counts(rows) if timeline.mode == "runs" else {},
    }  # fmt: skip


def _frozen(connection: Connection, job: JobDetail, rows: Sequence[Row], now: datetime) -> set[UUID | None]:
    """Return the late runs of a list that a freeze held."""
    late = [row for row in rows if row.late is not None and row.late > _LATE]
    if not late:
        return set()
    queue, labels = str(job.job.get("queue") or "default"), job.summary.labels
    about = partial(thaws_of, queue=queue, key=job.summary.key, labels=labels)
    found = in_snapshot(connection, about, connection.tenant, min(row.at for row in late), now)
    thaws = [each.at for each in found]
    return {row.run_id for row in late if row.late and any(row.at < at <= row.at + row.late for at in thaws)}


def moved(request: Request, urls: Urls, key: str, job_id: UUID, name: str = "job") -> View | None:
    """Return the way to the address of a page of a job; None if the request has it."""
    address = urls.job(key, job_id, name)
    given = urls(name, ref=unquote(str(request.path_params["ref"])))
    return None if address.partition("?")[0] == given.partition("?")[0] else View({}, moved_to=address)


def _window(
    query: JobQuery, now: datetime, ahead: Sequence[UpcomingOccurrence], latest: Sequence[RunSummary]
) -> Window:
    """Return the window of a query, else one of some dozens of occurrences, with the latest run in it."""
    if query.window is not None:
        return Window(query.window)
    ages = [now - each.scheduled_at for each in latest]
    many = sum(each.occurrences for each in ahead)
    if many > 1:
        period = ((ahead[-1].last_at or ahead[-1].at) - ahead[0].at) / (many - 1)
        return window_of(max(_DOZENS * period, min(ages, default=period)))
    return window_of(max(ages)) if ages else Window.DAY


def _windows(along: Axis, job: JobDetail, now: datetime, latest: Sequence[RunSummary]) -> Mapping[str, object]:
    """Return the windows that a job fills, and the one that has all of it; longer ones look the same.

    A backfill may be older than its job.
    """
    is_backfilled = any(run.cause == Cause.BACKFILL for run in latest)
    every, whole = list(Window), Window.QUARTER if is_backfilled else window_of(now - job.created_at)
    last = max(every.index(whole), every.index(along.window))
    return {"windows": every[: last + 1], "whole": every[last] if every[last] is not Window.QUARTER else None}


def _zoom(along: Axis) -> Mapping[str, Mapping[str, str]]:
    """Return the times that the buttons of the axis lead to."""
    span, middle = along.end - along.begin, along.begin + (along.end - along.begin) / 2
    longest = timedelta(days=MOST_DAYS - 2)

    def around(at: datetime, length: timedelta) -> Mapping[str, str]:
        length = min(max(length, LEAST_SPAN), longest)
        return {"from": format_second(at - length / 2), "to": format_second(at + length / 2)}

    return {
        "out": around(middle, span * 2), "in": around(middle, span / 2), "back": around(middle - span / 2, span),
        "on": around(middle + span / 2, span),
    }  # fmt: skip


def schedule_text(schedule: Mapping[str, object]) -> str:
    """Return a schedule in words, with its cron expression."""
    if schedule.get("kind") == "manual":
        return "manual: runs when triggered"
    times, stored = schedule_of(schedule), schedule_words(schedule)
    return times if times == stored else f"{times} ({stored})"


def head_of(connection: Connection, caller: Caller, job: JobDetail, tab: str, seen: Seen) -> Mapping[str, object]:
    """Return the values of the head that the pages of a job share."""
    schedule, lead = schedule_text(job.summary.schedule), read_lead(connection, caller, job, seen)
    letters = None
    if lead.family == "bad" and lead.run_id:
        find = partial(DeadLetters(connection).list, key=job.summary.key, kind="run", redriven=False, limit=1)
        letters = or_else(part(find), None)
    recent = [run.status in DEAD_LETTERED for run in ended(seen.latest)[:_RECENT]]
    return {
        "job": job, "tab": tab, "held": hold_words(job.summary), "schedule": schedule, "lead": lead, "letters": letters,
        "backlog": seen.waiting, "has_failed": any(recent),
    }  # fmt: skip


def job_of_page(connection: Connection, caller: Caller, request: Request) -> JobDetail:
    """Return the job that the address of a page names."""
    return in_snapshot(connection, show_job, caller.tenant, key_of_page(connection, caller, request))


def key_of_page(connection: Connection, caller: Caller, request: Request) -> str:
    """Return the key of the job, perhaps deleted, that the address of a page names, or answer 404."""
    ref = str(request.path_params["ref"])
    named = read_ref(unquote(ref))
    if isinstance(named, UUID):
        return in_snapshot(connection, key_of_job, caller.tenant, named)
    if unquote(ref).startswith("id:"):
        raise HTTPException(404, "a job's id is a UUID")
    return as_key(unquote(ref), "key")
