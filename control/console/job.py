"""One job: what it did, why not, what comes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, cast
from urllib.parse import unquote
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tidewheel.control.api.callers import Caller
from tidewheel.control.api.queries import TenantQuery, as_key, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.jobs import hold_words
from tidewheel.control.console.sentences import about_job
from tidewheel.control.console.strip import strip
from tidewheel.control.console.urls import Urls, read_ref
from tidewheel.control.console.view import Failed, View, page_now, part
from tidewheel.control.console.words import pretty
from tidewheel.control.explain.recent import UnfiredOccurrences, unfired
from tidewheel.control.explain.upcoming import Upcoming, upcoming
from tidewheel.control.reads.job_keys import key_of_job
from tidewheel.control.reads.jobs import show_job
from tidewheel.control.reads.runs import RunFilter, RunPage, list_runs
from tidewheel.control.schedule_words import schedule_words
from tidewheel.ids import job_id
from tidewheel.jobs.strict_json import as_object
from tidewheel.schedules.describe import describe

_RUNS = 40
_NEXT = 10
_SKIPS = 20
_BACK = timedelta(days=30)
_APART = ("key", "payload", "payload_base64", "labels", "description")  # parts of a job that have a place of their own


@dataclass(frozen=True, slots=True)
class JobPage:
    """The page of a job."""

    template: ClassVar[str] = "job.html"
    place: ClassVar[str] = "jobs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the job, its latest runs, its next instants and what did not fire."""
        read_query(request, TenantQuery)
        key = key_of_page(connection, caller, request)
        address = urls.job(key, job_id(caller.tenant, key))
        if address.partition("?")[0] != urls("job", ref=unquote(str(request.path_params["ref"]))).partition("?")[0]:
            return View({}, moved_to=address)
        now, tenant = page_now(connection), caller.tenant
        with connection.snapshot() as reading:
            job = show_job(reading, tenant, key)

        def list_latest() -> RunPage:
            with connection.snapshot() as reading:
                return list_runs(reading, tenant, RunFilter(key=key, until=now), limit=_RUNS)

        def list_coming() -> Upcoming:
            with connection.snapshot() as reading:
                return upcoming(reading, tenant, key, _NEXT)

        def list_skips() -> UnfiredOccurrences:
            with connection.snapshot() as reading:
                return unfired(reading, tenant, key, _BACK, limit=_SKIPS)

        latest, coming, skips = part(list_latest), part(list_coming), part(list_skips)
        runs = () if isinstance(latest, Failed) else latest.runs
        return View(
            {
                "now": now, "job": job, "latest": latest, "coming": coming, "skips": skips,
                "held": hold_words(job.summary), "schedule": _schedule(job.summary.schedule),
                "sentence": about_job(job, runs, None if isinstance(coming, Failed) else coming, now),
                "settings": list(flattened(job.job)), "document": pretty(job.job),
                "payload": pretty(job.job["payload"]) if "payload" in job.job else job.job.get("payload_base64"),
                "strip": strip(runs, 0 if isinstance(coming, Failed) else len(coming.occurrences), now, urls),
            }
        )  # fmt: skip


def flattened(job: Mapping[str, object], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings of a job with their paths, in the order in which they were submitted.

    >>> list(flattened({"key": "a", "retry": {"max_attempts": 3}, "queue": "default"}))
    [('retry.max_attempts', '3'), ('queue', 'default')]
    """
    for name, value in job.items():
        if not path and name in _APART:
            continue
        below = as_object(value)
        if below:
            yield from flattened(below, f"{path}{name}.")
        else:
            yield f"{path}{name}", value if isinstance(value, str) else pretty(value)


def _schedule(schedule: Mapping[str, object]) -> str:
    """Return a schedule in a sentence: a single cron expression is described."""
    expressions = cast("Sequence[object]", schedule.get("expressions") or ())
    if schedule.get("kind") != "cron" or len(expressions) != 1:
        return schedule_words(schedule)
    text = describe(str(expressions[0]), str(schedule.get("timezone") or "UTC"))
    return f"{schedule_words(schedule)}: {text.partition('. ')[0].rstrip('.')}"


def key_of_page(connection: Connection, caller: Caller, request: Request) -> str:
    """Return the key of the job that the address of a page names.

    Raises:
        HTTPException: It names none.
        UnknownJob: There is no job of this id.
    """
    ref = str(request.path_params["ref"])
    named = read_ref(unquote(ref))
    if isinstance(named, UUID):
        with connection.snapshot() as reading:
            return key_of_job(reading, caller.tenant, named)
    if unquote(ref).startswith("id:"):
        raise HTTPException(404, "a job's id is a UUID")
    return as_key(unquote(ref), "key")
