"""The effect of saving a job: in words, by its next instants beside those of now, and by fields."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import unified_diff

from tidewheel.control.client.connection import Connection
from tidewheel.control.console.payloads import pretty
from tidewheel.control.console.words import NONE, agreed, counted
from tidewheel.control.explain.explanation import OccurrenceOutcome
from tidewheel.control.explain.preview import Preview, preview
from tidewheel.control.explain.upcoming import Upcoming, UpcomingOccurrence, upcoming
from tidewheel.errors import FieldError, Refused
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.jobs.values import format_timestamp
from tidewheel.nouns.jobs.form import Job
from tidewheel.nouns.jobs.model import Change, JobDetail
from tidewheel.nouns.jobs.versions import changes as changes_of
from tidewheel.postgres.session import Conn

_SHOWN = 10
_PAYLOAD_LINES = 2_000  # compared line by line up to here: beyond, a comparison takes seconds
_LINES_SHOWN = 200
_LONGEST = 400  # characters of a value
_ROUNDS = 3
_NAMED = re.compile(r"\w+ is \w+: (?=\w)| \(misfire_after of the schedulers\)")  # what the form names by labels


@dataclass(frozen=True, slots=True)
class Instant:
    """An instant of the job as it is, of the job as typed, or of both.

    Args:
        now: On the clock of the job in force, if it fires then; `then` on that of the job as typed.
        mark: `gone`, `new`, or empty.
        notes: Effects of clock changes, and what keeps it from firing.
    """

    at: datetime
    now: datetime | None
    then: datetime | None
    mark: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """The effect of saving a job.

    Args:
        version: The version that is made; the version in force if nothing differs.
        words: Schedule and policies, a sentence each.
        zones: The zones of the job in force, None for a new one, and of the job as typed.
        until: The end of their time, in words; empty for a new job.
        payload: The lines of the payload that differ, each with its sign.
    """

    version: int
    words: Sequence[str]
    zones: tuple[str | None, str]
    instants: Sequence[Instant]
    until: str
    changes: Sequence[Change]
    payload: Sequence[tuple[str, str]]
    effects: Sequence[str]
    unchanged: bool


def check(connection: Connection, tenant: str, job: Job, in_force: JobDetail | None) -> Check:
    """Return the effect of saving a job; raise Refused where a submit would."""
    allowed, late = connection.installation.allow_lists, connection.installation.misfire_after
    with connection.snapshot() as reading:
        found = preview(reading, tenant, dict(job), _SHOWN, allow_lists=allowed, misfire_after=late)
        before = None if in_force is None else _in_force(reading, tenant, in_force)
    unchanged = in_force is not None and _hash(tenant, job) == _hash(tenant, in_force.job)
    version = in_force.summary.version if in_force is not None and unchanged else found.version
    changes, lines = list[Change](), list[tuple[str, str]]()
    if in_force is not None and not unchanged:
        changes, lines = changed_fields(in_force.job, job), list(_payload_lines(in_force.job, job))
    old = () if before is None else before.occurrences
    instants, until = beside(found.occurrences if in_force is None else old, found.occurrences)
    words = [_NAMED.sub("", each) for each in found.words]
    return Check(
        version, words, (None if before is None else before.zone, found.zone), instants, until if before else "",
        changes, lines, () if unchanged else tuple(_effects(in_force, old, found, version)), unchanged,
    )  # fmt: skip


def every_error(connection: Connection, tenant: str, job: Job, known: Sequence[FieldError]) -> list[FieldError]:
    """Return all errors of a job at once: what was found is left out, and the rest is looked at again.

    A submit names the zones and expressions that cannot be read only where the shape of everything is right.
    """
    errors, left = list(known), deepcopy(dict(job))
    for _ in range(_ROUNDS):
        _leave_out(left, errors)
        try:
            with connection.snapshot() as reading:
                preview(reading, tenant, left, 1, allow_lists=connection.installation.allow_lists)
        except Refused as refused:
            found = [each for each in refused.errors if not any(_is_about(each.path, other.path) for other in errors)]
        else:
            found = []
        if not found:
            break
        errors += found
    return errors


def beside(
    before: Sequence[UpcomingOccurrence], after: Sequence[UpcomingOccurrence], most: int = _SHOWN
) -> tuple[list[Instant], str]:
    """Return the instants of two lists in order, as far as both lists reach; and that end in words."""
    excluded = OccurrenceOutcome.WILL_BE_EXCLUDED
    was, then = (
        {each.at: each for each in some if each.outcome is not excluded and each.last_at is None}
        for some in (before, after)
    )
    last = [max(each.at for each in some) for some in (before, after) if len(some) >= most]  # more of these follow
    reach = min(last, default=None)
    rows: list[Instant] = []
    for at in sorted(was.keys() | then.keys()):
        if reach is not None and at > reach:
            break
        old, new = was.get(at), then.get(at)
        mark = "" if old and new else "gone" if old else "new"
        notes = tuple(dict.fromkeys(note for each in (new, old) if each for note in _notes(each)))
        rows.append(Instant(at, old.local if old else None, new.local if new else None, mark, notes))
    if reach is None:
        return rows, ""
    beyond = ((name, min(some)) for name, some in (("now", was), ("after saving", then)) if some and min(some) > reach)
    later = (f" The first instant {name} is {format_timestamp(at)}." for name, at in beyond)
    return rows, f"Both columns end at {format_timestamp(reach)}.{''.join(later)}"


def changed_fields(before: Job, after: Job) -> list[Change]:
    """Return the fields that differ between two jobs, as text."""
    return [Change(each.path, _value_text(each.before), _value_text(each.after)) for each in changes_of(before, after)]


def _value_text(value: object) -> str:
    """Return a value for a table, shortened; a dash if it is not set."""
    if value is None:
        return NONE
    some = as_list(value)
    if some and all(isinstance(each, str) for each in some):
        value = ", ".join(map(str, some))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _is_about(path: str, known: str) -> bool:
    """Return True for the same field, one within it, and an object that lacks it since it was left out."""
    first, second = (f"{each.removeprefix('job.')}." for each in (path, known))
    return first.startswith(second) or second.startswith(first)


def _leave_out(job: dict[str, object], errors: Sequence[FieldError]) -> None:
    for each in errors:
        below: dict[str, object] | None = job
        *parents, last = each.path.removeprefix("job.").split(".")
        for name in parents:
            below = None if below is None else as_object(below.get(name))
        if below is not None:
            below.pop(last, None)


def _in_force(reading: Conn, tenant: str, job: JobDetail) -> Upcoming | None:
    try:
        found = upcoming(reading, tenant, job.summary.key, _SHOWN)
        return replace(found, occurrences=tuple(each for each in found.occurrences if each.at > found.now))
    except Refused:  # a quarantined job may have a schedule that cannot be read
        return None


def _notes(each: UpcomingOccurrence) -> Iterator[str]:
    if each.outcome not in {OccurrenceOutcome.SCHEDULED, OccurrenceOutcome.WAITING}:
        yield str(each.outcome).replace("_", " ")
    yield from each.notes


def _effects(
    in_force: JobDetail | None, coming: Sequence[UpcomingOccurrence], found: Preview, version: int
) -> Iterator[str]:
    if in_force is None:
        yield "It is created as version 1." if version == 1 else f"It is created again, as version {version}."
        return
    ahead = sum(each.run_id is not None for each in coming)
    if ahead:
        are = agreed(ahead, "is", "are")
        yield f"{counted(ahead, 'run')} written ahead {are} retracted. Version {version} writes its own runs."
    if found.drops:
        yield found.drops
    yield f"Runs under way end as they are, with version {in_force.summary.version}."
    if in_force.error is not None:
        yield "The job is quarantined. Saving releases it."


def _payload_lines(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the lines of the payload that differ; of long ones only how many there are."""
    if "payload" not in before or "payload" not in after or before["payload"] == after["payload"]:
        return
    was, then = (pretty(each["payload"]).splitlines() for each in (before, after))
    if max(len(was), len(then)) > _PAYLOAD_LINES:
        yield " ", f"The payload differs: {len(was):,} lines before, {len(then):,} after."
        return
    lines = list(unified_diff(was, then, n=0, lineterm=""))[2:]  # after the two lines that name files
    found = [(line[0], line[1:]) for line in lines if line[0] in "+-"]
    yield from found[:_LINES_SHOWN]
    if len(found) > _LINES_SHOWN:
        yield " ", f"{len(found) - _LINES_SHOWN:,} more lines differ."


def _hash(tenant: str, job: Job) -> bytes | None:
    """Return the hash by which equal specs are known; None for a stored job that this release refuses."""
    try:
        return ReceivedRequest(parse_request({"type": "job.submit", "tenant": tenant, "job": dict(job)})).spec_hash
    except Refused:
        return None
