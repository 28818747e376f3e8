"""One job on its time axis: what it did, why not, what comes."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar, Literal, Self, TypeVar, cast
from urllib.parse import unquote
from uuid import UUID

from pydantic import Field, model_validator
from starlette.exceptions import HTTPException
from starlette.requests import Request

from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import TenantQuery, as_key
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.axis import LEAST_SPAN, Axis, Window, axis, axis_between, window_of
from tidewheel.control.console.job_line import job_line
from tidewheel.control.console.jobs import hold_words
from tidewheel.control.console.rendering import zone_of_page
from tidewheel.control.console.runs import LATE, Row, Show, counts, filtered, frozen, job_rows
from tidewheel.control.console.sentences import about_job
from tidewheel.control.console.urls import Urls, read_ref
from tidewheel.control.console.view import (
    Failed,
    View,
    in_snapshot,
    page_now,
    part,
    part_of,
    read_filters,
    without_zone,
)
from tidewheel.control.explain.explain import Around, around
from tidewheel.control.explain.explanation import OccurrenceOutcome
from tidewheel.control.explain.job_timeline import JobTimeline, TimelineRun, job_timeline
from tidewheel.control.explain.month import Counted, coming_counts
from tidewheel.control.explain.operations import MOST_DAYS
from tidewheel.control.explain.upcoming import UpcomingOccurrence, upcoming
from tidewheel.control.reads.job_position import key_of_job
from tidewheel.control.reads.resuming import Resumption, preview_resume
from tidewheel.control.words import schedule_words
from tidewheel.ids import job_id
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import Instant, format_second, format_timestamp
from tidewheel.nouns.dead_letters.operations import DeadLetterFilter, list_dead_letters
from tidewheel.nouns.freezes.reads import freeze_changes
from tidewheel.nouns.jobs.model import JobDetail
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.nouns.runs.model import PageFilter, RunSummary, Status
from tidewheel.nouns.runs.reads import list_runs
from tidewheel.runs import DEAD_LETTERED, SkipReason
from tidewheel.schedules.describe import describe_times

T = TypeVar("T")

_RUNS = 50
_NEXT = 10
_LATEST = 20
_DOZENS = 20
_UNFIRED = {
    OccurrenceOutcome.SKIPPED, OccurrenceOutcome.WAITING, OccurrenceOutcome.PAUSED, OccurrenceOutcome.WILL_BE_SKIPPED,
    OccurrenceOutcome.WILL_BE_EXCLUDED,
}  # fmt: skip


class JobQuery(TenantQuery):
    """A window up to now, or a time in its place; without both, the time of some dozens of occurrences."""

    window: Literal["2m", "10m", "1h", "6h", "24h", "7d", "30d", "90d"] | None = None
    from_at: Instant | None = Field(default=None, alias="from")
    to_at: Instant | None = Field(default=None, alias="to")
    show: Literal["all", "failed", "skipped", "slow", "retried"] = "all"

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
    place: ClassVar[str] = "jobs"
    reads_zone: ClassVar[bool] = True

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the job, its runs and skips in a time, and what comes."""
        zone_name, zone = zone_of_page(request)
        request = without_zone(request)
        query, errors = read_filters(request, JobQuery)
        key = key_of_page(connection, caller, request)
        moved = moved_to(request, urls, key, job_id(caller.tenant, key))
        if moved is not None:
            return View({}, moved_to=moved)
        now, tenant = page_now(connection), caller.tenant
        late = connection.installation.misfire_after
        job = in_snapshot(connection, show_job, tenant, key)
        coming = part_of(connection, upcoming, tenant, key, _NEXT)
        listed = part_of(connection, list_runs, tenant, PageFilter(key=key, until=now), limit=_LATEST)
        latest = () if isinstance(listed, Failed) else listed.runs
        ahead = () if isinstance(coming, Failed) else coming.occurrences
        along = axis(_window(query, now, ahead, latest), now, zone)
        if query.from_at is not None and query.to_at is not None:
            along = axis_between(query.from_at, query.to_at, now, zone)

        def list_past() -> tuple[JobTimeline, Sequence[TimelineRun | RunSummary]]:
            with connection.snapshot() as reading:
                found = job_timeline(reading, tenant, key, along.edges[: along.behind + 1], misfire_after=late)
                if found.mode == "runs":
                    return found, found.runs
                status: Status | None = "failed" if query.show == "failed" else None
                narrowed = PageFilter(key=key, status=status, since=along.begin, until=min(now, along.until))
                return found, list_runs(reading, tenant, narrowed, limit=_RUNS).runs

        def list_redriven() -> Mapping[UUID, UUID]:
            filters: DeadLetterFilter = {"kind": "run", "key": key, "redriven": True, "since": along.begin}
            found = in_snapshot(connection, list_dead_letters, tenant, filters, limit=_RUNS).dead_letters
            return {each.run_id: each.redriven_run_id for each in found if each.run_id and each.redriven_run_id}

        def find_frozen(rows: Sequence[Row]) -> set[UUID | None]:
            begun_late = [row.at for row in rows if row.late is not None and row.late > LATE]
            if not begun_late:
                return set()
            found = in_snapshot(connection, freeze_changes, tenant, min(begun_late), now)
            queue, labels = str(job.job.get("queue") or "default"), job.summary.labels
            return frozen(
                rows, [each for each in found if not each.begins and each.names(queue=queue, key=key, labels=labels)]
            )

        address = partial(urls.job, key, job_id(tenant, key), show=query.show)
        past = part(list_past)
        counted: Sequence[Counted] | Failed = ()
        if along.end > now:
            counted = part_of(connection, coming_counts, tenant, key, along.edges[max(along.behind - 1, 0) :])
        last_and_next = part_of(connection, around, tenant, key, misfire_after=late)
        resumption: Resumption | Failed | None = None
        if job.summary.paused:
            resumption = part_of(connection, preview_resume, tenant, [job.summary.job_id])
        values: dict[str, object] = {"line": None, "rows": [], "counts": {}, "more": False}
        if not isinstance(past, Failed):
            timeline, runs = past
            rows = job_rows(runs, timeline)
            shown = filtered(rows, Show(query.show), timeline.took_p95)
            values = {
                "line": job_line(along, timeline, _or(counted, ()), ahead, urls, address=address),
                "rows": shown[:_RUNS],
                "redriven": _or(part(list_redriven), {}) if any(each.state in DEAD_LETTERED for each in shown) else {},
                "frozen": _or(part(lambda: find_frozen(shown[:_RUNS])), set()),
                "more": len(shown) > _RUNS or timeline.mode == "bins",
                "counts": counts(rows, timeline.took_p95) if timeline.mode == "runs" else {},
            }  # fmt: skip
        return View(
            {
                "now": now, "coming": coming, "past": past, "query": query, "errors": errors,
                "windows": list(Window), "shows": list(Show), "zoom": _zoom(along), "zone": zone_name,
                "window": along.window if query.from_at is None else None,
                "span": {"from": format_timestamp(along.begin), "to": format_timestamp(along.end)},
                "why": "" if isinstance(last_and_next, Failed) else why(last_and_next),
                **head_of(job, "timeline"),
                "sentence": about_job(
                    job, latest, _or(coming, None), now,
                    unfired=() if isinstance(past, Failed) else past[0].skips,
                    more_unfired=not isinstance(past, Failed) and past[0].more_skips,
                    resumption=_or(resumption, None),
                ),
                "chosen": {"window": query.window} if query.from_at is None else {
                    "from": format_timestamp(query.from_at), "to": format_timestamp(query.to_at or now)},
                **values,
            },
            422 if errors else 200,
        )  # fmt: skip


def _or(read: T | Failed, otherwise: T) -> T:
    return otherwise if isinstance(read, Failed) else read


def why(found: Around) -> str:
    """Return why the last due occurrence did not fire, or the next one will not; empty without one.

    The sentence of the job names its present pause.
    """
    for each in (found.last, found.next):
        in_pause = each is not None and each.outcome is OccurrenceOutcome.PAUSED and each.reason == SkipReason.PAUSED
        if each is not None and each.outcome in _UNFIRED and not in_pause:
            has = "has not fired" if each.outcome is OccurrenceOutcome.WAITING else "did not fire"
            which = "The next occurrence is that" if each is found.next else "The occurrence"
            lead = f"{which} of {format_timestamp(each.at)}{'' if each is found.next else f' {has}'}."
            return f"{lead} {each.words}"
    return ""


def moved_to(request: Request, urls: Urls, key: str, job_id: UUID, name: str = "job") -> str | None:
    """Return the address of a page of a job; None if the request has it."""
    address = urls.job(key, job_id, name)
    given = urls(name, ref=unquote(str(request.path_params["ref"])))
    return None if address.partition("?")[0] == given.partition("?")[0] else address


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
    """Return a schedule in a sentence: a single cron expression is described."""
    expressions = cast("Sequence[object]", schedule.get("expressions") or ())
    if schedule.get("kind") != "cron" or len(expressions) != 1:
        return schedule_words(schedule)
    times = describe_times(str(expressions[0]), str(schedule.get("timezone") or "UTC"))
    return f"{schedule_words(schedule)}: {times}"


def head_of(job: JobDetail, tab: str) -> Mapping[str, object]:
    """Return the values of the head that the pages of a job share."""
    schedule = schedule_text(job.summary.schedule)
    return {"job": job, "tab": tab, "held": hold_words(job.summary), "schedule": schedule}


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
