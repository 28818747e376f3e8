"""`job.trigger`: create one run per request, now or later.

No job row is written. The run has the version in force when the request was applied. Its id is derived from its
scheduled time, and from the request_id or the message's coordinates. Without a `run_at` that is ahead, the scheduled
time is the time of application: if the request were applied again, it would create another run. The stored offsets
and the first replies prevent that.

Triggers of a job with one dedupe key have one run in a window (ADR 0060). The window's row is locked before its run, so
triggers of one key are applied one after another, in whatever process. A run that has not begun keeps its id and gets
the inputs of the later trigger. The lock of its row decides between a claim and a trigger: what the answer names is
what runs.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple, cast
from uuid import UUID

from tidewheel.errors import InvalidInput, UnknownJob, refuse
from tidewheel.ids import JobId, RunId, dedupe_id, run_id
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.writing import Writing
from tidewheel.jobs.keys import Dedupe, merged_dedupe
from tidewheel.jobs.requests import JobTrigger
from tidewheel.jobs.values import LONGEST_DELAY
from tidewheel.postgres.pg_binary import instants, texts, uuids
from tidewheel.postgres.session import read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause, Gate, Overlap, order_gates
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.batch_writer import SharedJob, lock_jobs_for_share
from tidewheel.transitions.create import create_runs
from tidewheel.transitions.new_runs import NewRun, RunInputs
from tidewheel.transitions.requested_changes import NEXT, lock_unbegun, move_runs

_SQL = Statements("tidewheel.intake")
_OPEN_WINDOWS = _SQL["open_windows"]
_WRITE_WINDOWS = _SQL["write_windows"]

ACCEPTED, DEDUPLICATED = "accepted", "deduplicated"
_MOVED = {"replace": "replaced", "debounce": "debounced"}
_NOTHING = RunInputs()
_NO_GATES = Gate(0)


def apply_triggers(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Trigger jobs."""
    connection, installation = writing.connection, writing.installation
    jobs = lock_jobs_for_share(connection, {received.job_id for received in batch})
    now = writing.now()
    runs: list[NewRun] = []
    ahead: set[RunId] = set()
    replies: list[Reply] = []
    shared: list[SharedTrigger] = []
    for received in batch:
        job = jobs.get(received.job_id)
        if job is None:
            replies.append(rejected(received, UnknownJob(received.tenant, received.key or "")))
            continue
        request = cast("JobTrigger", received.request)
        try:
            run = _run(received, job, now)
            dedupe = None if request.dedupe is None and job.dedupe is None else _dedupe(received, request, job)
        except InvalidInput as refused:
            replies.append(rejected(received, refused))
            continue
        if request.run_at is not None:
            ahead.add(run.run_id)
        if dedupe is None:
            runs.append(run)
        else:
            shared.append(SharedTrigger(len(replies), dedupe, run))
        facts = {"job_id": str(job.job_id), "job_version": job.version, "run_id": str(run.run_id)}
        replies.append(accepted(received, **facts, next_run_at=run.scheduled_at))
    if shared:
        windows = open_windows(writing, shared, now)
        for trigger in shared:
            answer = windows.apply(trigger)
            replies[trigger.place] = replace(
                replies[trigger.place],
                run_id=str(answer.run_id),
                next_run_at=answer.runs_at,
                dedupe=answer.outcome,
                unchanged=answer.outcome == DEDUPLICATED,
            )
        runs += windows.write(writing)
    # The id of a run that has a `run_at` ahead may be that of an earlier run. All others hold the time of this call.
    unique = {run.run_id: run for run in runs}
    create_runs(connection, installation, [run for run_id, run in unique.items() if run_id not in ahead], now=now)
    again = [run for run_id, run in unique.items() if run_id in ahead]
    create_runs(connection, installation, again, now=now, repeats=True)
    return replies


def _run(received: ReceivedRequest, job: SharedJob, now: datetime) -> NewRun:
    request = received.of(JobTrigger)
    order, gates = _order(received, request, job)
    at = _instant(request, now)
    payload = request.carried
    content, content_type = (payload.content, payload.content_type) if payload else (None, None)
    inputs = RunInputs(content, content_type, request.labels, request.overlap, received.traceparent)
    return NewRun(
        run_id=run_id(job.job_id, at, Cause.TRIGGER, received.seed() or os.urandom(16)),
        job_id=JobId(job.job_id),
        tenant=received.tenant,
        job_version=job.version,
        shard=job.shard,
        cause=Cause.TRIGGER,
        queue=job.queue,
        lane=job.lane,
        handler=job.handler,
        overlap=request.overlap or job.overlap,
        scheduled_at=at,
        publish_at=at,
        definition=job.definition,
        inputs=None if inputs == _NOTHING else inputs,
        concurrency_key=None if order else job.key_of(payload, request.concurrency_key),
        gates=gates,
        ordering_key=order,
        priority=job.priority if request.priority is None else request.priority,
        request_id=request.request_id,
        requested_from=received.requested_from,
    )


def _order(received: ReceivedRequest, request: JobTrigger, job: SharedJob) -> tuple[str | None, Gate]:
    ordering = request.ordering_key
    if ordering is None and job.ordering_key is None:
        return None, _NO_GATES
    if ordering is None and request.concurrency_key is not None:
        refuse("concurrency_key", "the job has an ordering_key", "leave it out; ordered runs never overlap")
    if job.key is not None:
        refuse("ordering_key", "the job has a concurrency_key", "leave one out; ordered runs never overlap")
    if (overlap := request.overlap or job.overlap) != Overlap.ALLOW_ALL:
        if ordering is None:
            refuse("overlap", "the job has an ordering_key", "leave it out; ordered runs never overlap")
        refuse("ordering_key", f"the run's overlap is {overlap}", "set overlap: allow_all in the trigger or the job")
    _ensure_short(received, "ordering_key", "ordering key")
    if ordering is None:
        return job.order_of(request.carried)
    key = job.fill(ordering.key, request.carried, "ordering key")
    return key, order_gates(passes=ordering.on_failure == "skip")


def _dedupe(received: ReceivedRequest, request: JobTrigger, job: SharedJob) -> Dedupe | None:
    """Return the dedupe of a trigger, with the fields of its payload filled in."""
    dedupe = merged_dedupe(request.dedupe, job.dedupe)
    if dedupe is None:
        return None
    if dedupe.mode == "debounce" and (request.delay or request.run_at):
        path = "delay" if request.delay else "run_at"
        refuse(path, "cannot be combined with debounce, where a run starts after its window", "leave it out")
    _ensure_short(received, "dedupe", "dedupe window")
    return dedupe._replace(key=job.fill(dedupe.key, request.carried, "dedupe key"))


def _ensure_short(received: ReceivedRequest, path: str, what: str) -> None:
    """Refuse a shared row in a caller's transaction, whose end the ends of other runs would wait for."""
    if received.in_callers_transaction:
        remedy = "call the SQL function tidewheel_enqueue instead; intake creates the run after the commit"
        refuse(path, f"a row of this {what} would stay locked until your transaction ends", remedy)


def _instant(request: JobTrigger, now: datetime) -> datetime:
    if request.run_at is None:
        return now + (request.delay or timedelta(0))
    if request.run_at > now + LONGEST_DELAY:
        problem = f"{request.run_at.isoformat()} is more than {LONGEST_DELAY.days} days ahead"
        refuse("run_at", problem, "submit a job with a `once` schedule instead")
    return max(request.run_at, now)  # a past instant means now


class SharedTrigger(NamedTuple):
    """A trigger with dedupe, and the run that it makes unless it has that of an earlier one."""

    place: int
    dedupe: Dedupe
    run: NewRun

    @property
    def dedupe_id(self) -> int:
        """The id of its window's row."""
        return dedupe_id(self.run.job_id, self.dedupe.key)


class Answer(NamedTuple):
    """The answer to a trigger: what happened, the run that it has, and when that is due."""

    outcome: str
    run_id: UUID
    runs_at: datetime


class _Row(NamedTuple):
    """The row of a window, in the order of its columns."""

    dedupe_id: int
    run_id: UUID
    first_at: datetime
    until_at: datetime
    runs_at: datetime


@dataclass(slots=True)
class _Window:
    """A window: its row as it was and as it is, and its run if this batch makes or moves it."""

    before: _Row
    row: _Row
    new: NewRun | None = None
    moved: NewRun | None = None


class Windows:
    """The windows of a batch, locked; `unbegun` has None for a run that waits for others."""

    def __init__(self, rows: Sequence[_Row], unbegun: Mapping[UUID, datetime | None], now: datetime) -> None:
        self._windows = {row.dedupe_id: _Window(row, row) for row in rows}
        self._unbegun, self._now = unbegun, now

    def apply(self, trigger: SharedTrigger) -> Answer:
        """Decide about a trigger, after those before it."""
        window = self._windows[trigger.dedupe_id]
        row = window.row
        if window.new is None:
            inserted = row.run_id == trigger.run.run_id
            if inserted or self._now >= row.until_at:
                return self._begin(window, trigger)
        if trigger.dedupe.mode == "reject":
            return Answer(DEDUPLICATED, row.run_id, row.runs_at)
        if window.new is None and row.run_id not in self._unbegun:
            return self._begin(window, trigger)
        return self._move(window, trigger)

    def write(self, writing: Writing) -> list[NewRun]:
        """Write the windows and the moved runs; return the new ones, which the caller creates."""
        windows = sorted(self._windows.values(), key=lambda each: each.row.dedupe_id)
        changed = [window.row for window in windows if window.row != window.before]
        if changed:
            writing.execute(_WRITE_WINDOWS, **_columns(changed))
        moved = [each.moved for each in windows if each.moved is not None]
        move_runs(writing.connection, writing.installation, moved)
        return [each.new for each in windows if each.new is not None]

    def _begin(self, window: _Window, trigger: SharedTrigger) -> Answer:
        window.new, window.row = _first(trigger, self._now)
        return Answer(ACCEPTED, window.row.run_id, window.row.runs_at)

    def _move(self, window: _Window, trigger: SharedTrigger) -> Answer:
        row, dedupe = window.row, trigger.dedupe
        known = None if window.new or window.moved else self._unbegun[row.run_id]
        at = (known or row.runs_at) + NEXT
        if dedupe.mode == "debounce":
            at = max(at, min(self._now + dedupe.window, row.first_at + dedupe.bound))
            row = row._replace(until_at=at)
        window.row = row._replace(runs_at=at)
        run = trigger.run._replace(run_id=RunId(row.run_id), scheduled_at=at, publish_at=at)
        if window.new is None:
            window.moved = run
        else:
            window.new = run
        return Answer(_MOVED[dedupe.mode], row.run_id, at)


def open_windows(writing: Writing, triggers: Sequence[SharedTrigger], now: datetime) -> Windows:
    """Lock the windows of triggers, and the runs that these may move."""
    first: dict[int, SharedTrigger] = {}
    for trigger in triggers:
        first.setdefault(trigger.dedupe_id, trigger)
    given = [first[key] for key in sorted(first)]
    rows = [_first(each, now)[1] for each in given]
    columns = _columns(rows) | {
        "tenants": texts([each.run.tenant for each in given]),
        "job_ids": uuids(each.run.job_id for each in given),
    }
    found = read_rows(writing.connection, rows_of(_Row._make), _OPEN_WINDOWS, columns)
    moving = {each.dedupe_id for each in triggers if each.dedupe.mode != "reject"}
    open_runs = [row.run_id for row in found if row.dedupe_id in moving and now < row.until_at]
    return Windows(found, lock_unbegun(writing.connection, open_runs) if open_runs else {}, now)


def _columns(rows: Sequence[_Row]) -> dict[str, object]:
    return {
        "ids": [row.dedupe_id for row in rows],
        "run_ids": uuids(row.run_id for row in rows),
        "first_at": instants(row.first_at for row in rows),
        "until_at": instants(row.until_at for row in rows),
        "runs_at": instants(row.runs_at for row in rows),
    }


def _first(trigger: SharedTrigger, now: datetime) -> tuple[NewRun, _Row]:
    """Return the run of the first trigger of a window, and the window's row."""
    run, dedupe = trigger.run, trigger.dedupe
    until = now + dedupe.window
    if dedupe.mode == "debounce":
        run = run._replace(scheduled_at=until, publish_at=until)
    return run, _Row(trigger.dedupe_id, run.run_id, now, until, run.publish_at)
