"""Actions on one job: pause and resume."""

from dataclasses import dataclass

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.callers import Caller
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import Dialog, Done, Field, request_id_of, text_of
from tidewheel.control.console.confirming import as_shown, ensure_as_shown
from tidewheel.control.console.forms import Form
from tidewheel.control.console.job import key_of_page
from tidewheel.control.console.urls import Urls
from tidewheel.control.explain.preview import NOT_FIRING
from tidewheel.control.explain.upcoming import Upcoming, upcoming
from tidewheel.control.reads.resuming import preview_resume
from tidewheel.jobs.values import format_second, format_timestamp
from tidewheel.nouns.jobs.model import JobDetail, job_of
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.schedules.policies import CatchUp

_WITHOUT_TIMER = {
    "manual": ("The job has no schedule: a pause marks it as paused, and has no occurrence to stop.",),
    "after": ("Until it is resumed, its part of each workflow is skipped, with the reason paused.",),
}
_RESUMED = {
    "manual": "The job has no schedule. Triggers run it, as they did during the pause.",
    "after": "It runs in workflows again.",
}
_REPLACES = "A pause with another end replaces that one. A pause with the same end changes nothing."
_LATER = {
    CatchUp.SKIP: "none fires later",
    CatchUp.FIRE_ONCE: "only the latest fires when the pause ends",
    CatchUp.FIRE_ALL: "those within the `window` of the job fire when the pause ends",
}
_LONGEST = 100  # characters of a reason in the address of an undo, which a cookie holds


@dataclass(frozen=True, slots=True)
class PauseJob:
    """Pause a job."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what a pause stops."""
        job = _shown(connection, caller, key_of_page(connection, caller, request))
        key, resumes = job.summary.key, CatchUp(str(job.job.get("on_resume", CatchUp.SKIP)))
        stays = [f"{_news(job)} {_REPLACES}"] if job.summary.paused else []
        return Dialog(
            f"Pause {key}?", f"Pause {key}", urls.job(key, job.summary.job_id), place="jobs",
            will=_WITHOUT_TIMER.get(job.summary.kind) or (
                "No occurrence fires until the job is resumed.",
                f"Of the occurrences that come due in the pause, {_LATER[resumes]}: on_resume is {resumes}.",
            ),
            stays=("Runs that exist go on, started or not. Triggers and backfills still run.", *stays),
            fields=(
                as_shown(_state(job)),
                *(() if job.summary.kind in _WITHOUT_TIMER else (Field(
                    "until", "Resume automatically at (optional)", value=request.query_params.get("until", ""),
                    help="With its offset, such as 2026-12-24T08:00:00Z.",
                ),)),
                Field(
                    "reason", "Reason (optional)", value=request.query_params.get("reason", ""),
                    help="Stored with the pause and in the audit log.",
                ),
            ),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Pause it."""
        key = _unchanged(connection, caller, form, request).summary.key
        given = {**request.query_params, **form}  # the undo of a resume has them in its address
        document = {
            "type": "job.pause", "key": key, "until": text_of(given, "until"), "reason": text_of(given, "reason")
        }  # fmt: skip
        found = job_of(connection.request(document, request_id_of(form)))
        undo = ("Resume", urls.job(key, found.job_id, "job_resume"))
        if found.unchanged:
            return Done(urls.job(key, found.job_id), f"Nothing was changed: {key} was already paused that way.")
        return Done(urls.job(key, found.job_id), f"{key} is paused.", undo)


@dataclass(frozen=True, slots=True)
class ResumeJob:
    """Resume a paused job."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what fires again."""
        job = _shown(connection, caller, key_of_page(connection, caller, request))
        key, found = job.summary.key, job.summary.job_id
        if not job.summary.paused:
            words = f"Nothing would change. {key} is not paused."
            return Dialog(f"Resume {key}?", "", urls.job(key, found), place="jobs", will=(words,), keep="Back")
        with connection.snapshot() as reading:
            due = preview_resume(reading, caller.tenant, [found])
            again = _RESUMED.get(job.summary.kind) or _next(upcoming(reading, caller.tenant, key), job)
        return Dialog(
            f"Resume {key}?", f"Resume {key}", urls.job(key, found), place="jobs",
            will=(again, *due.words), stays=(_news(job),), fields=(as_shown(_state(job)),),
            keep="Keep it paused",
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Resume it."""
        was = _unchanged(connection, caller, form, request)
        key, until = was.summary.key, was.summary.paused_until
        found = job_of(connection.request({"type": "job.resume", "key": key}, request_id_of(form)))
        end, reason = format_timestamp(until) if until is not None else None, was.pause_reason or ""
        reason = reason if len(reason) <= _LONGEST else f"{reason[: _LONGEST - 1]}…"
        undo = ("Pause", urls.job(key, found.job_id, "job_pause", until=end, reason=reason or None))
        return Done(urls.job(key, found.job_id), f"{key} is resumed.", undo)


def _next(coming: Upcoming, job: JobDetail) -> str:
    """Return when a paused job fires after its resume."""
    if job.freezes:
        return "A freeze covers the job: it fires again after the thaw."
    ahead = [each for each in coming.occurrences if each.outcome not in NOT_FIRING and each.run_id is None]
    at = next((at for each in ahead if (at := each.leaves_at or each.at) > coming.now), None)
    return f"It fires again, next at {format_timestamp(at)}." if at else "Its schedule has no later occurrence."


def _shown(connection: Connection, caller: Caller, key: str) -> JobDetail:
    """Return a job."""
    with connection.snapshot() as reading:
        return show_job(reading, caller.tenant, key)


def _unchanged(connection: Connection, caller: Caller, form: Form, request: Request) -> JobDetail:
    """Return a job whose pause is as its dialog has shown it."""
    key = key_of_page(connection, caller, request)
    job = _shown(connection, caller, key)
    ensure_as_shown(connection, form, _state(job), _news(job))
    return job


def _state(job: JobDetail) -> str:
    return format_timestamp(job.paused_at) if job.paused_at is not None else ""


def _news(job: JobDetail) -> str:
    if job.paused_at is None:
        return "It is not paused."
    by = f" by {job.paused_by}" if job.paused_by else ""
    why = f": {job.pause_reason}" if job.pause_reason else ""
    return f"It has been paused since {format_second(job.paused_at)}{by}{why}."
