"""Actions on one job: pause, resume, release it; skip or move an occurrence to come, undo that."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import TenantQuery, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import (
    Dialog,
    Done,
    Field,
    as_shown,
    cannot,
    ensure_as_shown,
    no_change,
    reason_field,
    request_id_of,
    text_of,
)
from tidewheel.control.console.door import Form
from tidewheel.control.console.job import job_of_page, key_of_page
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import in_snapshot, page_now
from tidewheel.control.explain.explain import explain
from tidewheel.control.explain.explanation import Explanation, OccurrenceOutcome
from tidewheel.control.explain.facts import read_instant_facts
from tidewheel.control.explain.preview import NOT_FIRING
from tidewheel.control.explain.upcoming import Upcoming, upcoming
from tidewheel.control.reads.resuming import preview_resume
from tidewheel.ids import job_id
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import Instant, format_second, format_timestamp, parse_timestamp
from tidewheel.nouns.jobs.changes import release
from tidewheel.nouns.jobs.model import JobDetail, job_of
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.runs import OVERLAP_EFFECTS, Overlap
from tidewheel.schedules.decision import CatchUp
from tidewheel.schedules.describe import to_zone

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
    CatchUp.SKIP: "are skipped",
    CatchUp.FIRE_ONCE: "are skipped but for the latest, which fires when the pause ends",
    CatchUp.FIRE_ALL: "fire when the pause ends, as far as the `window` of the job has them",
}
_LONGEST = 100  # characters of a reason in the address of an undo, which a cookie holds


class PauseJob:
    """Pause a job."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what a pause stops."""
        job = job_of_page(connection, caller, request)
        key, resumes = job.summary.key, CatchUp(str(job.job.get("on_resume", CatchUp.SKIP)))
        stays = [f"{_news(job)} {_REPLACES}"] if job.summary.paused else []
        return Dialog(
            f"Pause {key}?", f"Pause {key}", urls.job(key, job.summary.job_id),
            will=_WITHOUT_TIMER.get(job.summary.kind) or (
                "No occurrence fires until the job is resumed.",
                f"Occurrences that come due meanwhile {_LATER[resumes]}: on_resume is {resumes}.",
            ),
            stays=("Runs that exist continue, started or not. Triggers and backfills still run.", *stays),
            fields=(
                as_shown(_state(job)),
                *(() if job.summary.kind in _WITHOUT_TIMER else (Field(
                    "until", "Resume automatically at (optional)", value=request.query_params.get("until", ""),
                    help="With its offset, such as 2026-12-24T08:00:00Z.",
                ),)),
                replace(reason_field("on the job"), value=request.query_params.get("reason", "")),
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


class ResumeJob:
    """Resume a paused job."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what fires again."""
        job = job_of_page(connection, caller, request)
        key, found = job.summary.key, job.summary.job_id
        if not job.summary.paused:
            return no_change(f"Resume {key}?", urls.job(key, found), f"{key} is not paused.")
        with connection.snapshot() as reading:
            due = preview_resume(reading, caller.tenant, [found])
            again = _RESUMED.get(job.summary.kind) or _next(upcoming(reading, caller.tenant, key), job)
        return Dialog(
            f"Resume {key}?", f"Resume {key}", urls.job(key, found),
            will=(again, *due.words), stays=(_news(job),), fields=(as_shown(_state(job)),),
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


class ReleaseJob:
    """Release a quarantined job."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return why it is quarantined."""
        job = job_of_page(connection, caller, request)
        key = job.summary.key
        question, back = f"Release {key}?", urls.job(key, job.summary.job_id)
        if not job.error:
            return no_change(question, back, f"{key} is not quarantined.")
        return Dialog(
            question, f"Release {key}", back,
            sample=(f"Its next time could not be computed: {job.error}",),
            will=("Its next time is computed again. The setting catch_up fires or skips what was missed.",),
            stays=("Until then, the job does not fire. If the computation fails again, it is quarantined again.",),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Release it; a second release finds nothing to do."""
        key = key_of_page(connection, caller, request)
        done = release(connection, [key], error=None, everything=False, dry_run=False)
        words = f"{key} is released." if done.released else f"{key} was not quarantined: nothing was changed."
        return Done(urls.job(key, job_id(caller.tenant, key)), words)


def _next(coming: Upcoming, job: JobDetail) -> str:
    """Return when a paused job fires after its resume."""
    if job.freezes:
        return "A freeze covers the job: it fires again after the thaw."
    ahead = [each for each in coming.occurrences if each.outcome not in NOT_FIRING and each.run_id is None]
    at = next((at for each in ahead if (at := each.leaves_at or each.at) > coming.now), None)
    return f"It fires again, next at {format_timestamp(at)}." if at else "Its schedule has no later occurrence."


def _unchanged(connection: Connection, caller: Caller, form: Form, request: Request) -> JobDetail:
    """Return a job whose pause is as its dialog has shown it."""
    job = job_of_page(connection, caller, request)
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


class OccurrenceQuery(TenantQuery):
    """Query of these actions; `at` is the nominal instant."""

    at: Instant


class SkipOccurrence:
    """Skip one occurrence."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return the occurrence that will not fire."""
        found = _explained(connection, caller, request)
        back = urls.job(found.key, job_id(caller.tenant, found.key), "job_next")
        question = f"Skip {_clock(found.local)} of {found.key}?"
        if found.outcome == OccurrenceOutcome.WILL_BE_SKIPPED:
            return cannot(question, back, _readings(found), f"Nothing would change. {found.words}")
        if found.outcome == OccurrenceOutcome.NO_OCCURRENCE:
            return cannot(question, back, _readings(found), found.words, *_nearest(found))
        return Dialog(
            question, f"Skip {_clock(found.local)}", back,
            will=(_readings(found), _now(found), "After the skip, it creates no run."),
            stays=("The other occurrences stay as they are.",), fields=(reason_field("on the occurrence"),),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Skip it."""
        return _change(connection, caller, form, request, urls, kind="job.skip", words="will be skipped")


class MoveOccurrence:
    """Move one occurrence to another time."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return the occurrence, and ask for its new time."""
        found = _explained(connection, caller, request)
        example = found.local.isoformat(timespec="seconds")
        about = f"A time with its offset from UTC, such as {example}."
        to = Field("to", "Fires instead at", value=example, help=about, required=True)
        return Dialog(
            f"Move {_clock(found.local)} of {found.key}?", f"Move {_clock(found.local)}",
            urls.job(found.key, job_id(caller.tenant, found.key), "job_next"),
            will=(_readings(found), _now(found), "After the move, it fires at the time below."),
            stays=("Records keep its original time.",),
            fields=(to, reason_field("on the occurrence")),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done | Dialog:
        """Move it; onto another occurrence only after a warning."""
        to = text_of(form, "to")
        if to is not None and form.get("onto") != to and (met := _met(connection, caller, request, to)):
            fields = [Field(name, "", "hidden", form.get(name, "")) for name in ("to", "reason")]
            dialog = self.ask(connection, caller, request, urls)
            return replace(dialog, will=(*dialog.will, *met), fields=(*fields, Field("onto", "", "hidden", to)))
        return _change(connection, caller, form, request, urls, kind="job.move", words="is moved", to=to)


class UnskipOccurrence:
    """Undo a skip or a move."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return the occurrence that fires again."""
        found = _explained(connection, caller, request)
        what = "skip" if found.moved_to is None else "move"
        ahead = found.at > page_now(connection)
        fires = "on time" if ahead else "at once, because its own time has passed"
        return Dialog(
            f"Undo the {what} of {_clock(found.local)} of {found.key}?", f"Undo the {what}",
            urls.job(found.key, job_id(caller.tenant, found.key), "job_next"),
            will=(_readings(found), _now(found), f"After that, it fires {fires}."),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Undo it."""
        at = read_query(request, OccurrenceQuery).at
        words = "will fire on time" if at > page_now(connection) else "fires now: its time has passed"
        return _change(connection, caller, form, request, urls, kind="job.unskip", words=words)


def _met(connection: Connection, caller: Caller, request: Request, to: str) -> Sequence[str]:
    """Return a sentence if another occurrence fires at the time that was typed."""
    key, own = key_of_page(connection, caller, request), read_query(request, OccurrenceQuery).at
    try:
        at = parse_timestamp(to)
    except InvalidValue:  # the request refuses it
        return ()
    with connection.snapshot() as reading:
        facts = read_instant_facts(reading, caller.tenant, key, at, connection.installation.misfire_after)
        job = show_job(reading, caller.tenant, key).job
    span = facts.version_span
    moved = any(each.moved_to == at and each.scheduled_at != own for each in facts.override)
    if at == own or not (moved or (span is not None and facts.own_override is None and span.fires(at))):
        return ()
    overlap = Overlap.BUFFER_ALL if "ordering_key" in job else Overlap(str(job.get("overlap", Overlap.SKIP)))
    has_places = " if the concurrency key has a place for each" if "concurrency_key" in job else ""
    effect = f"{OVERLAP_EFFECTS[overlap]}{has_places if overlap is Overlap.ALLOW_ALL else ''}"
    met = f"Another occurrence of this job fires at {format_timestamp(at)}, too."
    return (f"{met} If one run is still active when the other, the new run, starts, {effect}.",)


def _nearest(found: Explanation) -> Iterator[str]:
    """Yield the occurrence nearest to an instant that has none."""
    near = [at for at in (found.before, found.after) if at is not None]
    if near:
        at = min(near, key=lambda at: abs(at - found.at))
        yield f"The nearest occurrence is that of {_clock(to_zone(at, found.zone))} {found.zone}."


def _now(found: Explanation) -> str:
    """Return the present state of an occurrence, before the action."""
    return "At present, it will fire at this time." if found.outcome == OccurrenceOutcome.SCHEDULED else found.words


def _readings(found: Explanation) -> str:
    """Return an instant on the job's clock and in UTC, in a sentence."""
    own = f"{_clock(found.local)} {found.zone} ({found.local:%Z, UTC%z})"
    return f"Its time is {own}." if found.zone == "UTC" else f"Its time is {own}, which is {_clock(found.at)} UTC."


def _clock(at: datetime) -> str:
    return f"{at:%a} {at.day} {at:%b %Y %H:%M:%S}"


def _explained(connection: Connection, caller: Caller, request: Request) -> Explanation:
    """Return the explanation of the occurrence."""
    key, at = key_of_page(connection, caller, request), read_query(request, OccurrenceQuery).at
    late = connection.installation.misfire_after
    return in_snapshot(connection, explain, caller.tenant, key, at, misfire_after=late)


def _change(
    connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls, *,
    kind: str, words: str, **fields: object,
) -> Done:  # fmt: skip
    """Change the occurrence that an address names; what is changed may be taken back."""
    key = key_of_page(connection, caller, request)
    at = format_timestamp(read_query(request, OccurrenceQuery).at)
    document = {"type": kind, "key": key, "at": at, "reason": text_of(form, "reason"), **fields}
    job = job_of(connection.request(document, request_id_of(form)))
    found = _explained(connection, caller, request)
    what = f"{_clock(found.local)} {found.zone} of {key}"
    undo = None if kind == "job.unskip" else ("Undo", urls.job(key, job.job_id, "job_unskip", at=at))
    return Done(urls.job(key, job.job_id, "job_next"), f"{what} {words}.", undo)
