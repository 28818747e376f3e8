"""Answer a question: the first meaning of its text that exists, and what else it may mean.

An answer takes a fixed number of indexed reads. A time without an offset is one of the reader's zone, else of the
job's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import cast

from tidewheel.control.ask.question import Named, Question, likeliest, read_question
from tidewheel.control.explain.explain import explain
from tidewheel.control.explain.explanation import Explanation
from tidewheel.control.explain.recent import around
from tidewheel.control.instants import read_instant, unit_of
from tidewheel.control.reads.fleet import list_executors
from tidewheel.control.reads.job_keys import key_of_job
from tidewheel.control.reads.run_detail import show_run
from tidewheel.control.reads.runs import LOOKED_AT, RunSummary, find_short_id
from tidewheel.control.reads.stored import read_stored_json
from tidewheel.control.schedule_words import schedule_words
from tidewheel.errors import FieldError, Refused, UnknownDeadLetter, UnknownJob, UnknownRun
from tidewheel.ids import job_id
from tidewheel.jobs.strict_json import as_object
from tidewheel.nouns.dead_letters.reads import show_dead_letter
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.zones import zone as known_zone

_SQL = Statements("tidewheel.control")
_FIND_JOBS_NAMED = _SQL["find_jobs_named"]
_FIND_KEYS_FROM = _SQL["find_keys_from"]

MAX_ALTERNATIVES = 8
"""The other meanings that an answer has at most."""

EXAMPLES = ("nightly", "nightly at 13 Nov 02:30", "#4711")
"""Questions that are understood, where such a job and dead letter exist."""

_KEYS = 100  # on each side of a text that are compared with it: all of a small installation
_EXECUTORS = 1000
_ALIKE = 0.6  # of difflib: an error in each third character


class Kind(StrEnum):
    """Kind of a meaning."""

    RUN = "run"
    DEAD_LETTER = "dead_letter"
    JOB = "job"
    OCCURRENCE = "occurrence"
    """An instant of a job, with its explanation."""
    QUEUE = "queue"
    HANDLER = "handler"
    EXECUTOR = "executor"
    MATCHES = "matches"
    """Keys that begin with the text, and others that have it, or runs of a short id: the alternatives."""
    NOTHING = "nothing"
    """The text means nothing here; the alternatives are the nearest keys."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """A meaning of a question.

    Args:
        kind: Its kind.
        target: The id, the number or the name of it.
        words: A line about it.
        at: The instant of an occurrence.
        zone: The zone of the job, if the time was read in it and the reader has another one.
    """

    kind: Kind
    target: str
    words: str
    at: datetime | None = None
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question.

    Args:
        question: The question.
        kind: The kind of its first meaning.
        target: The id, the number or the name of that.
        words: A line about it; of a text that means nothing, what was tried.
        at: The instant of an occurrence.
        zone: The zone in which its time was read.
        alternatives: Other meanings, at most eight.
        explanation: The explanation of an occurrence.
    """

    question: str
    kind: Kind
    target: str | None
    words: str
    at: datetime | None = None
    zone: str | None = None
    alternatives: tuple[Meaning, ...] = ()
    explanation: Explanation | None = None


class NotUnderstood(Refused):
    """A question that means nothing here."""

    code = "unknown_question"

    def __init__(self, found: Answer) -> None:
        near = [each.target for each in found.alternatives]
        remedy = f"the nearest keys are {', '.join(near)}" if near else f"write one such as {', '.join(EXAMPLES)}"
        super().__init__([FieldError("question", found.words, remedy)])


@dataclass(frozen=True, slots=True)
class _Job:
    key: str
    is_live: bool
    schedule: Mapping[str, object]

    @property
    def zone(self) -> str:
        """The zone of its schedule."""
        named = self.schedule.get("timezone")
        return named if isinstance(named, str) else "UTC"

    @property
    def words(self) -> str:
        """Its schedule."""
        return schedule_words(self.schedule) if self.is_live else "a deleted job"


def ask(
    connection: Conn,
    tenant: str,
    text: str,
    zone: str | None = None,
    *,
    all_tenants: bool = False,
    misfire_after: timedelta,
) -> Answer:
    """Answer a question.

    Args:
        connection: Reads in REPEATABLE READ, so that all rows are of one snapshot.
        tenant: The tenant.
        text: The question.
        zone: The zone of a time without an offset; by default that of the job.
        all_tenants: True for a reader who may see executors.
        misfire_after: How late an occurrence may be before it is missed: the scheduler's setting.

    Raises:
        ScheduleRefused: There is no such zone.
    """
    if zone is not None:
        known_zone(zone)
    question = read_question(text)
    if (found := _by_id(connection, tenant, question) or _by_short_id(connection, tenant, question)) is not None:
        return found
    tried: dict[str, str] = {}
    now = read_now(connection)
    jobs = _jobs(connection, tenant, question.named)
    for named in question.named:
        if (job := jobs.get(named.key)) is None:
            continue
        if named.time is not None:
            try:
                at = read_instant(named.time, "", zone or job.zone, now=now)
                unit = unit_of(named.time)
                seen = explain(connection, tenant, job.key, at, misfire_after=misfire_after, unit=unit)
                found = _with_other(_explained(seen, text), at, named.time, job, now)
            except Refused as refused:
                tried.setdefault(job.key, f"the time of {job.key} cannot be read: {refused}")
                continue
            return _in_zone(found, zone, job)
        if question.asks_why and named.key != question.text:
            near = around(connection, tenant, job.key, misfire_after=misfire_after)
            return _in_zone(_explained(near.last or near.present, text), zone, job)
        if job.is_live:
            others = _matches(connection, tenant, question, all_tenants=all_tenants)
            rest = tuple(each for each in others if each.target != job.key)
            return Answer(text, Kind.JOB, job.key, job.words, alternatives=rest)
    if matches := _matches(connection, tenant, question, all_tenants=all_tenants):
        return Answer(text, Kind.MATCHES, None, f"begins with {question.text}", alternatives=matches)
    words = "; ".join(tried.values()) or _unknown(question, zone, now)
    return Answer(text, Kind.NOTHING, None, words, alternatives=() if tried else _nearest(connection, tenant, question))


def _by_id(connection: Conn, tenant: str, question: Question) -> Answer | None:
    if question.dead_letter is not None:
        try:
            letter = show_dead_letter(connection, tenant, question.dead_letter)
        except UnknownDeadLetter:
            return None
        about = letter.key or f"{letter.topic} {letter.partition} @ {letter.offset}"
        words = f"{about}: {letter.error_type or letter.reason}"
        return Answer(question.text, Kind.DEAD_LETTER, str(letter.id), words)
    if question.id is None:
        return None
    try:
        run = show_run(connection, tenant, question.id).summary
    except UnknownRun:
        try:
            return Answer(question.text, Kind.JOB, key_of_job(connection, tenant, question.id), "the job of this id")
        except UnknownJob:
            return None
    return Answer(question.text, Kind.RUN, str(run.run_id), _about(run))


def _by_short_id(connection: Conn, tenant: str, question: Question) -> Answer | None:
    """Return the run of a short id, or all runs that have it; None if there is none."""
    if question.short_id is None:
        return None
    text, (begin, end) = question.text, question.short_id
    runs, is_cut = find_short_id(connection, tenant, begin, end)
    if is_cut:
        words = f"more than {LOOKED_AT:,} runs have ids that begin with {begin}: open the run, and copy its whole id"
        return Answer(text, Kind.NOTHING, None, words)
    found = [Meaning(Kind.RUN, str(run.run_id), _about(run)) for run in runs[:MAX_ALTERNATIVES]]
    if len(found) == 1:
        return Answer(text, Kind.RUN, found[0].target, found[0].words)
    return Answer(text, Kind.MATCHES, None, f"runs with the id {text}", alternatives=tuple(found)) if found else None


def _about(run: RunSummary) -> str:
    return f"{run.key}: {run.status.replace('_', ' ')}"


def _jobs(connection: Conn, tenant: str, named: Sequence[Named]) -> dict[str, _Job]:
    """Return the jobs that a question may name, by their keys."""
    columns = {"job_ids": [job_id(tenant, each.key) for each in named], "tenant": tenant}
    rows = connection.execute(_FIND_JOBS_NAMED, columns).fetchall()
    return {
        key: _Job(key, is_live, as_object(read_stored_json("schedule", schedule, f"job {key}")) or {})
        for key, is_live, schedule in cast("list[tuple[str, bool, str | None]]", rows)
    }


def _explained(found: Explanation, text: str) -> Answer:
    near = [each for each in (found.before, found.after) if each is not None]
    words = f"the nearest {'run' if found.between_runs else 'occurrence'}"
    others = tuple(Meaning(Kind.OCCURRENCE, found.key, words, each) for each in near)
    return Answer(text, Kind.OCCURRENCE, found.key, found.words, found.at, found.zone, others, found)


def _with_other(found: Answer, at: datetime, time: str, job: _Job, now: datetime) -> Answer:
    """Return an answer with the instant of its time in the zone of the job, if that is not `at`."""
    try:
        other = read_instant(time, "", job.zone, now=now)
    except Refused:
        return found
    if other == at:
        return found
    meant = Meaning(Kind.OCCURRENCE, job.key, "the same time in the zone of the job", other, job.zone)
    return replace(found, alternatives=(meant, *found.alternatives))


def _in_zone(found: Answer, zone: str | None, job: _Job) -> Answer:
    return replace(found, zone=zone or job.zone)


def _matches(connection: Conn, tenant: str, question: Question, *, all_tenants: bool) -> tuple[Meaning, ...]:
    """Return the keys that begin with a text, then executors, queues and handlers."""
    text = question.text
    if not question.named:
        return ()
    keys = [key for key in _keys(connection, tenant, text, MAX_ALTERNATIVES) if key.startswith(text)]
    found = [Meaning(Kind.JOB, key, "a job") for key in sorted(keys)]
    if all_tenants:
        found += _of_executors(connection, text)
    return tuple(found[:MAX_ALTERNATIVES])


def _of_executors(connection: Conn, text: str) -> list[Meaning]:
    """Return executors, queues and handlers whose names begin with a text."""
    alive = [each for each in list_executors(connection, limit=_EXECUTORS) if not each.is_silent]
    queues = sorted({name for each in alive for name in each.queues if name.startswith(text)})
    handlers = sorted({name for each in alive for name in each.handlers if name.startswith(text)})
    return [
        *(Meaning(Kind.EXECUTOR, str(each.executor_id), each.name) for each in alive if each.name.startswith(text)),
        *(Meaning(Kind.QUEUE, name, "a queue that executors serve") for name in queues),
        *(Meaning(Kind.HANDLER, name, "a handler that executors have") for name in handlers),
    ]


def _keys(connection: Conn, tenant: str, text: str, limit: int) -> list[str]:
    """Return keys from a text on, and before it."""
    columns = {"tenant": tenant, "text": text, "limit": limit}
    return [str(key) for (key,) in connection.execute(_FIND_KEYS_FROM, columns)]


def _unknown(question: Question, zone: str | None, now: datetime) -> str:
    """Return the thing that is not there, and why its time cannot be read."""
    if question.short_id is not None:
        return f"no run is {question.text!r}"
    if question.id is not None or question.dead_letter is not None:
        return f"no {'run or job' if question.id else 'dead letter'} is {question.text!r}"

    def error_of(time: str) -> Refused | None:
        try:
            read_instant(time, "", zone or "UTC", now=now)
        except Refused as refused:
            return refused
        return None

    named, error = likeliest(question, error_of)
    return f"no job is {named.key!r}" + (f", and {error}" if error else "")


def _nearest(connection: Conn, tenant: str, question: Question) -> tuple[Meaning, ...]:
    """Return the keys nearest to the likeliest one."""
    wanted = list(dict.fromkeys(each.key for each in question.named))
    nearest: dict[str, None] = {}
    for text in (*wanted[:2], *wanted[-1:]):  # the whole text, the part before the likeliest time, the first words
        nearest |= dict.fromkeys(get_close_matches(text, _keys(connection, tenant, text, _KEYS), n=3, cutoff=_ALIKE))
    return tuple(Meaning(Kind.JOB, key, "a key like it") for key in nearest)[:MAX_ALTERNATIVES]
