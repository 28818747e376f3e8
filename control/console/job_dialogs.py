"""Actions on one job: trigger, delete, restore, roll back, backfill."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.authorization import Caller
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import (
    SAMPLE,
    Dialog,
    Done,
    Field,
    cannot,
    counted_of,
    no_change,
    reason_field,
    request_id_of,
    text_of,
    whole_of,
)
from tidewheel.control.console.door import Form
from tidewheel.control.console.job import job_of_page, key_of_page
from tidewheel.control.console.spec_check import changed_fields
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import in_snapshot, part
from tidewheel.control.console.words import agreed, counted, number
from tidewheel.control.explain.explanation import OccurrenceOutcome
from tidewheel.control.explain.preview import NOT_FIRING, Preview, preview
from tidewheel.control.explain.upcoming import UpcomingOccurrence
from tidewheel.control.instants import typed_whole
from tidewheel.control.reads.job_position import read_job_position
from tidewheel.control.reads.stored import readable
from tidewheel.errors import InvalidInput, Refused, refuse
from tidewheel.ids import job_id
from tidewheel.intake.backfills import TAKE_ALL, TAKE_CURRENT
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.nouns.jobs.fields import FIELDS, MEANINGS, SpecField, value_of
from tidewheel.nouns.jobs.model import JobDetail, backfill_of, job_of
from tidewheel.nouns.jobs.reads import list_children
from tidewheel.nouns.jobs.versions import job_at, keep_zone, versions
from tidewheel.nouns.runs.operations import Runs
from tidewheel.runs import Overlap
from tidewheel.schedules.describe import to_zone

_LABELS, _PAYLOAD = (next(each for each in FIELDS if each.path == path) for path in ("labels", "payload"))
_SAMPLE = 12
_NEXT = 3
_OVERLAPS = MEANINGS["overlap"]
_RECURRING = frozenset({"cron", "interval", "fixed_delay"})
_NEVER = "The job then has no upcoming occurrence."
_CLOCK = "%a %d %b %H:%M"
_RANGE = ("from", "to", "what", "versions", "order", "overlap", "reason")
_IN_TURN = "These runs wait for each other, because the overlap of the job does not allow two at once."
_CURRENT = "version {} for all"
_EVEN_FIRED = "all, also those whose run succeeded or failed"
_MISSING = "An occurrence whose run was skipped or cancelled runs again. One whose run failed does not."


class TriggerJob:
    """Run a job once."""

    scope = Scope.WRITE
    most_bytes: ClassVar[int] = 2 * 1024 * 1024  # a payload of 256 KiB, percent-encoded

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what a trigger makes."""
        job = job_of_page(connection, caller, request)
        key = job.summary.key
        own = "the payload of the job" if {"payload", "payload_base64"} & job.job.keys() else "no payload"
        has = f"If empty, the run has {own}."
        paused = ("The job is paused, but this trigger runs nevertheless.",) if job.summary.paused else ()
        begins = "the run starts after the thaw" if job.freezes else "it runs now"
        frozen = (f"A freeze covers the job: {begins}.",) if job.freezes else ()
        followers = _followers(connection, caller, job)
        return Dialog(
            f"Trigger {key}?", f"Trigger {key}", urls.job(key, job.summary.job_id),
            will=(
                f"This creates 1 run of version {job.summary.version}.", *_beside_active(_overlap_of(job)),
                *followers, *paused, *frozen,
            ),
            stays=("The schedule of the job does not change.",) if job.summary.next_at else (),
            fields=(
                Field("payload", "payload, as JSON", "long", help=has),
                Field("delay", "delay", help=f"Such as 10m. If empty, {begins}."),
                Field("labels", "labels of the run", "long", rows=2,
                      help="One name=value per line. A label replaces the job's label of the same name."),
            ),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Trigger it."""
        key = key_of_page(connection, caller, request)
        document: dict[str, object] = {
            "type": "job.trigger", "key": key, "delay": text_of(form, "delay"),
            "labels": _typed(form, _LABELS),
        }  # fmt: skip
        if text_of(form, "payload") is not None:
            document["payload"] = _typed(form, _PAYLOAD)
        reply = connection.request(document, request_id_of(form))
        may_cancel = Scope.OPERATE in caller.scopes
        undo = ("Cancel the run", urls("run_cancel", run_id=reply.run_id)) if may_cancel else None
        return Done(urls("run", run_id=reply.run_id), f"Run {reply.run_id} of {key} is created.", undo)


def _overlap_of(job: JobDetail) -> Overlap:
    """Return the policy of a job; an order takes its place."""
    if "ordering_key" in job.job:
        return Overlap.ALLOW_ALL
    default = Overlap.SKIP if job.summary.kind in _RECURRING else Overlap.ALLOW_ALL
    stored = str(job.job.get("overlap", default))
    return readable("overlap", f"job {job.summary.key}", lambda: Overlap(stored), default)


def _beside_active(overlap: Overlap) -> Sequence[str]:
    """Return what becomes of a new run that finds an active one; nothing where both run."""
    both = overlap is Overlap.ALLOW_ALL
    return () if both else (f"If a run of the job is active when it starts, {_OVERLAPS[overlap]}.",)


def _followers(connection: Connection, caller: Caller, job: JobDetail) -> Sequence[str]:
    """Return a sentence about the jobs that a trigger of a root runs too; none for other jobs."""
    if job.summary.kind == "after":
        return ("Only this job runs. To run the whole workflow, trigger its root.",)
    following = _children(connection, caller, job.summary.key)
    return (f"This job is the root of a workflow, so these jobs may run after it: {following}.",) if following else ()


def _children(connection: Connection, caller: Caller, key: str) -> str:
    """Return the keys of the first jobs that come after a job; empty without one."""
    found = in_snapshot(connection, list_children, caller.tenant, key, limit=SAMPLE + 1)
    return f"{', '.join(found[:SAMPLE])}{' and more' if len(found) > SAMPLE else ''}"


class DeleteJob:
    """Delete a job."""

    scope = Scope.WRITE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what a deletion ends."""
        job = job_of_page(connection, caller, request)
        key = job.summary.key
        if following := _children(connection, caller, key):
            words = f"{key} cannot be deleted, because these jobs run after it: {following}."
            back = urls.job(key, job.summary.job_id)
            return cannot(f"Delete {key}?", back, f"{words} Change or delete them first.")
        cancelled = _cancelled(connection, key)
        return Dialog(
            f"Delete {key}?", f"Delete {key}", urls.job(key, job.summary.job_id), danger=True,
            will=(
                f"The job stops firing, and {cancelled}." if cancelled else "The job stops firing.",
                "Its backfills end.",
                "If you submit the job again, its version numbers continue.",
            ),
            stays=("Runs that have started finish, with their retries. Ended runs stay until their retention ends.",),
            fields=(Field("if_version", "", "hidden", str(job.summary.version)), reason_field()),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Delete it, in the version that the dialog has shown."""
        key = key_of_page(connection, caller, request)
        document = {
            "type": "job.delete", "key": key, "if_version": whole_of(form, "if_version"),
            "reason": text_of(form, "reason"),
        }  # fmt: skip
        cancelled = part(lambda: _cancelled(connection, key))
        found = job_of(connection.request(document, request_id_of(form)))
        undo = ("Submit it again", urls.job(key, found.job_id, "job_restore"))
        also = f" {cancelled}." if isinstance(cancelled, str) and cancelled else ""
        return Done(urls("jobs"), f"{key} is deleted.{also} Its runs under way finish.", undo)


def _cancelled(connection: Connection, key: str) -> str:
    """Return how many waiting runs of a job a deletion cancels, as a part of a sentence; empty for none."""
    waiting = Runs(connection).cancel_matching(key=key, include_started=False, dry_run=True)
    many = counted(waiting.matched, "waiting run", at_least=waiting.at_least)
    return f"{many} {agreed(waiting.matched, 'is', 'are')} cancelled" if waiting.matched else ""


class RestoreJob:
    """Submit the last version of a deleted job again."""

    scope = Scope.WRITE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return which version comes back."""
        key = key_of_page(connection, caller, request)
        with connection.snapshot() as reading:
            last = versions(reading, caller.tenant, key, limit=1)[0]
            is_deleted = read_job_position(reading, caller.tenant, key).deleted_at is not None
        if not is_deleted:
            back = urls.job(key, job_id(caller.tenant, key))
            return no_change(f"Submit {key} again?", back, f"{key} is not deleted.")
        return Dialog(
            f"Submit {key} again?", f"Submit {key} again", urls("jobs"),
            will=(f"Its version {last.number} becomes version {last.number + 1}.",),
            stays=("Occurrences that passed meanwhile do not fire.",),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Submit it, unless there is a job of its key."""
        key = key_of_page(connection, caller, request)
        with connection.snapshot() as reading:
            last = versions(reading, caller.tenant, key, limit=1)[0]
            job = keep_zone(reading, caller.tenant, job_at(reading, caller.tenant, key, last.number))
        document = {"type": "job.submit", "job": job, "if_version": 0}
        found = job_of(connection.request(document, request_id_of(form)))
        return Done(urls.job(key, found.job_id), f"{key} is back, as version {found.version}.")


class RollBackJob:
    """Give a job the spec of an earlier version again; the address names it."""

    scope = Scope.WRITE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what the earlier version changes, and when it fires."""
        job = job_of_page(connection, caller, request)
        key = job.summary.key
        number, current = _version(request, "version"), job.summary.version
        with connection.snapshot() as reading:
            earlier = keep_zone(reading, caller.tenant, job_at(reading, caller.tenant, key, number))
            found = preview(reading, caller.tenant, earlier, _NEXT, allow_lists=connection.installation.allow_lists)
        changes = changed_fields(job.job, earlier)
        question, back = f"Roll {key} back to version {number}?", urls.job(key, job.summary.job_id, "job_versions")
        if not changes:
            same = "It is the version in force." if number == current else f"Version {current} has the same spec."
            return no_change(question, back, same)
        lines = [f"{each.path}: {each.before} → {each.after}" for each in changes]
        more = [f"{len(lines) - _SAMPLE} more fields"] if len(lines) > _SAMPLE else []
        return Dialog(
            question, f"Back to version {number}", back,
            will=(f"The spec of version {number} becomes version {current + 1}.", *_then(found)),
            stays=("Open runs keep their versions.",),
            sample=(*lines[:_SAMPLE], *more),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Roll it back, in the version that the page has shown."""
        key, number = key_of_page(connection, caller, request), _version(request, "version")
        expected = _version(request, "if_version") if "if_version" in request.query_params else None
        document = {"type": "job.rollback", "key": key, "version": number, "if_version": expected}
        found = job_of(connection.request(document, request_id_of(form)))
        words = f"Version {found.version} of {key} is in force: the spec of version {number}."
        undo = None
        if expected is not None and not found.unchanged:
            back = urls.job(key, found.job_id, "job_rollback", version=expected, if_version=found.version)
            undo = (f"Back to version {expected}", back)
        return Done(urls.job(key, found.job_id), words, undo)


class BackfillJob:
    """Run the occurrences of a past range: counted first, then made."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return the fields of a range."""
        job = job_of_page(connection, caller, request)
        key = job.summary.key
        query = request.query_params
        return Dialog(
            f"Backfill {key}?", "Count the occurrences", urls.job(key, job.summary.job_id),
            will=(
                "A backfill runs the occurrences of a past range. The next step only counts them and creates nothing.",
            ),
            fields=(
                Field("from", "from", value=query.get("from", ""), required=True,
                      help="The first instant, such as 2026-11-01T00:00:00Z."),
                Field("to", "to", value=query.get("to", ""), required=True, help="The last instant."),
                Field("what", "which", "choice", options=(
                    ("missing_only", "those without a run, or whose run was skipped or cancelled"),
                    ("all", _EVEN_FIRED))),
                Field("versions", "versions", "choice", options=(
                    ("as_of", "the one in force at each instant"),
                    ("current", _CURRENT.format(job.summary.version)))),
                Field("max_concurrent", "open at once", "number", "10"),
                Field("order", "order", "choice", options=(
                    ("oldest_first", "oldest first"), ("newest_first", "newest first"))),
                Field("overlap", "overlap", "choice", options=(
                    ("", "the job's own setting"), *((each, f"{each}: {does}") for each, does in _OVERLAPS.items())
                )),
                reason_field("on the bulk work"),
            ),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done | Dialog:
        """Count its occurrences; with the count confirmed, make it."""
        key = key_of_page(connection, caller, request)
        sent = {name: text_of(form, name) for name in _RANGE} | {"max_concurrent": whole_of(form, "max_concurrent")}
        document: Mapping[str, object] = {"type": "job.backfill", "key": key, **sent}
        named = job_id(caller.tenant, key)
        shown = counted_of(form)
        try:
            counted_now = backfill_of(connection.request({**document, "dry_run": True}, None)).occurrences or 0
        except Refused as refused:
            version = job_of_page(connection, caller, request).summary.version
            raise _in_form(refused, version) from refused
        if not counted_now and shown is None:
            words = "No occurrence of this range is left to run."
            return no_change(f"Backfill {key}?", urls.job(key, named, "job_backfill"), words)
        if shown is None or counted_now > shown:
            return _confirm(job_of_page(connection, caller, request), counted_now, form, urls.job(key, named))
        found = backfill_of(connection.request(document, request_id_of(form)))
        words = f"Backfill {found.backfill_id} makes {counted(found.occurrences or 0, 'run')} of {key}."
        if not found.backfill_id:
            return Done(urls.job(key, named), f"No occurrence of {key} is left to run.")
        return Done(urls("bulk_work", kind="backfill", id=found.backfill_id), words)


def _in_form(refused: Refused, version: int) -> InvalidInput:
    """Return the refusal of a backfill with the fields and choices of the form in its remedies."""
    words = {
        TAKE_CURRENT: f'in the field versions, choose "{_CURRENT.format(version)}"',
        TAKE_ALL: f'in the field which, choose "{_EVEN_FIRED}"',
    }
    errors = [replace(each, path="versions") if each.remedy == TAKE_CURRENT else each for each in refused.errors]
    for remedy, choice in words.items():
        errors = [replace(each, remedy=each.remedy.replace(remedy, choice)) for each in errors]
    return InvalidInput(errors)


def _confirm(job: JobDetail, occurrences: int, form: Form, back: str) -> Dialog:
    """Return the second step of a backfill, with its number."""
    runs, before, chosen = counted(occurrences, "run"), counted_of(form), form.get("overlap", "")
    may_overlap = _overlap_of(job) is Overlap.ALLOW_ALL
    grown = () if before is None else (f"It was {counted(before, 'run')} when they were counted.",)
    fields = [Field(name, "", "hidden", form.get(name, "")) for name in (*_RANGE, "max_concurrent")]
    return Dialog(
        f"Make {runs} of {job.summary.key}?", f"Make {runs}", back,
        will=(f"Occurrences from {form.get('from', '')} to {form.get('to', '')} that become runs:"
              f" {number(occurrences)}, at most {form.get('max_concurrent', '')} open at once.",
              *(_beside_active(Overlap(chosen)) if chosen in _OVERLAPS else () if may_overlap else (_IN_TURN,)),
              *((_MISSING,) if form.get("what") == "missing_only" else ()), *grown),
        stays=("The schedule continues as it is. A backfill can be paused and cancelled.",),
        fields=(*fields, Field("counted", "", "hidden", str(occurrences))),
    )  # fmt: skip


def _then(found: Preview) -> Iterator[str]:
    """Yield the next instants of a job after a rollback, and what becomes of skips and moves."""
    fires = (each for each in found.occurrences if each.outcome not in NOT_FIRING and each.last_at is None)
    fire = ", ".join(_instant(each, found.zone) for each in fires)
    yield f"It then fires at {fire}, by the clock of {found.zone}." if fire else f"{found.words[0]} {_NEVER}"
    skipped = [each for each in found.occurrences if each.outcome is OccurrenceOutcome.WILL_BE_SKIPPED]
    if skipped:
        out = ", ".join(f"{each.local:{_CLOCK}}" for each in skipped[:_SAMPLE])
        more = f" and {number(len(skipped) - _SAMPLE)} more" if len(skipped) > _SAMPLE else ""
        leave = "A skip by request leaves" if len(skipped) == 1 else "Skips by request leave"
        yield f"{leave} out {out}{more}."
    if found.drops:
        yield found.drops


def _instant(each: UpcomingOccurrence, zone: str) -> str:
    if each.outcome is not OccurrenceOutcome.WILL_BE_MOVED or each.leaves_at is None:
        return f"{each.local:{_CLOCK}}"
    return f"{each.local:{_CLOCK}} (moved to {to_zone(each.leaves_at, zone):{_CLOCK}})"


def _typed(form: Form, field: SpecField) -> object:
    """Return the value that was typed into a field; None for an empty one."""
    if (text := text_of(form, field.path)) is None:
        return None
    try:
        return value_of(field, text)
    except InvalidValue as error:
        refuse(field.path, error.errors[0].problem, error.errors[0].remedy)


def _version(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if (found := typed_whole(text)) is None:
        refuse(name, f"{text[:40]!r} is not a version", "write the number of a version")
    return found
