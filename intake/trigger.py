"""`job.trigger`: create one run per request, now or later.

No job row is written. The run has the version in force when the request was applied. Its id is derived from its
scheduled time, and from the request_id or the message's coordinates. Without a `run_at` that is ahead, the scheduled
time is the time of application: if the request were applied again, it would create another run. The stored offsets
and the first replies prevent that.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

from tidewheel.errors import FieldError, InvalidInput, UnknownJob, refuse
from tidewheel.ids import JobId, RunId, run_id
from tidewheel.intake.dedupes import DEDUPLICATED, SharedTrigger, open_windows
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.jobs.dedupe import Dedupe, merged_dedupe
from tidewheel.jobs.requests import JobTrigger
from tidewheel.jobs.values import LONGEST_DELAY
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.runs import Cause, Gate, Overlap, order_gates
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.create import NewRun, RunInputs, create_runs
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.shared_jobs import SharedJob, lock_jobs_for_share


def apply_triggers(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Trigger jobs in the caller's transaction; return a reply for each request, in their order."""
    jobs = lock_jobs_for_share(connection, {received.job_id for received in batch})
    now = read_now(connection)
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
        replies.append(
            accepted(
                received,
                job_id=str(job.job_id),
                job_version=job.version,
                run_id=str(run.run_id),
                next_run_at=run.scheduled_at,
            )
        )
    if shared:
        windows = open_windows(connection, shared, now)
        for trigger in shared:
            answer = windows.apply(trigger)
            replies[trigger.place] = replace(
                replies[trigger.place],
                run_id=str(answer.run_id),
                next_run_at=answer.runs_at,
                dedupe=answer.outcome,
                unchanged=answer.outcome == DEDUPLICATED,
            )
        runs += windows.write(connection, installation)
    # The id of a run that has a `run_at` ahead may be that of an earlier run. All others hold the time of this call.
    unique = {run.run_id: run for run in runs}
    create_runs(connection, installation, [run for run_id, run in unique.items() if run_id not in ahead], now=now)
    create_runs(
        connection, installation, [run for run_id, run in unique.items() if run_id in ahead], now=now, repeats=True
    )
    return replies


def _run(received: ReceivedRequest, job: SharedJob, now: datetime) -> NewRun:
    request = received.request
    assert isinstance(request, JobTrigger)  # noqa: S101 - by the table of `apply`
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
    """Return the ordering key of a new run, and its gates."""
    ordering = request.ordering_key
    if ordering is None and job.ordering_key is None:
        return None, _NO_GATES
    if ordering is None and request.concurrency_key is not None:
        refuse("concurrency_key", "the job has an ordering_key", "leave it out: ordered runs start one after another")
    if job.key is not None:
        refuse("ordering_key", "the job has a concurrency_key", "leave one out: ordered runs start one after another")
    if (overlap := request.overlap or job.overlap) != Overlap.ALLOW_ALL:
        if ordering is None:
            refuse("overlap", "the job has an ordering_key", "leave it out: ordered runs start one after another")
        refuse("ordering_key", f"the run's overlap is {overlap}", "write overlap: allow_all in the trigger or the job")
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
        refuse(path, "a debounced run starts after its window", "leave it out")
    _ensure_short(received, "dedupe", "dedupe window")
    return dedupe._replace(key=job.fill(dedupe.key, request.carried, "dedupe key"))


def _ensure_short(received: ReceivedRequest, path: str, what: str) -> None:
    """Refuse a shared row in a caller's transaction, whose end the ends of other runs would wait for."""
    if received.in_callers_transaction:
        remedy = "call the SQL function tidewheel_enqueue in it, and intake creates the run after the commit"
        refuse(path, f"a row of this {what} would stay locked until your transaction ends", remedy)


_NOTHING = RunInputs()
_NO_GATES = Gate(0)


def _instant(request: JobTrigger, now: datetime) -> datetime:
    if request.run_at is None:
        return now + (request.delay or timedelta(0))
    if request.run_at > now + LONGEST_DELAY:
        problem = f"{request.run_at.isoformat()} is more than {LONGEST_DELAY.days} days ahead"
        raise InvalidInput([FieldError("run_at", problem, "submit a job with a `once` schedule instead")])
    return max(request.run_at, now)  # a past instant means now
