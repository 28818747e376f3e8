"""Record the ends that Kafka has, and what is known of runs that have not ended."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import LiteralString, NamedTuple, cast
from uuid import UUID

from tidewheel.control.restore.history import History
from tidewheel.ids import JobId, RunId
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.partitions import day_of, ensure_days
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, Session, read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.runs import IN_FLIGHT, Cause, RunState
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import JobDefinition, RunCompleted, RunRequest
from tidewheel.transitions.create import create_runs
from tidewheel.transitions.drain import drain
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import UNKNOWN_OUTCOME, RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.new_runs import NewRun, RunInputs

_SQL = Statements("tidewheel.control.restore")

_AT_ONCE = 500
_UNPUBLISHED = 5  # attempts of a run that may have begun although no relay had published their messages
_BEFORE_ALL = UUID(int=0)


class _Version(NamedTuple):
    """The columns of `read_versions`."""

    job_id: UUID
    version: int
    tenant: str
    shard: int
    queue: str
    lane: str
    handler: str
    overlap: str
    definition: bytes
    has_deadlines: bool
    concurrency_key: str | None
    priority: int


class _Unclaimed(NamedTuple):
    """The columns of `find_unclaimed`."""

    run_id: UUID
    attempt: int
    scheduled_at: datetime
    definition: bytes


def create_missing(
    session: Session, installation: Installation, history: History, *, runs: Iterable[UUID] | None = None
) -> tuple[int, list[UUID]]:
    """Create the runs that Kafka has and the database lacks, or these of them.

    Returns their number, and the runs of unknown versions.
    """
    created, lost = 0, list[UUID]()
    known = history.runs
    for some in _parts(sorted(known if runs is None else runs)):
        with session.transaction() as connection:
            there = _runs(connection, some)
            missing = [known[run] for run in some if run not in there and not history.was_taken_back(run)]
            versions = _versions(connection, missing)
            new: list[NewRun] = []
            for each in missing:
                version = versions.get((UUID(each.job_id), each.job_version))
                if version is None:
                    lost.append(UUID(each.run_id))
                else:
                    new.append(_new_run(each, history.requests.get(UUID(each.run_id)), version))
            created += len(create_runs(connection, installation, new, now=read_now(connection), repeats=True))
            failpoint("restoring.runs")
    return created, lost


def record_ends(
    session: Session,
    installation: Installation,
    history: History,
    since: datetime,
    *,
    runs: Iterable[UUID] | None = None,
) -> int:
    """End the open runs whose completions Kafka has, or these of them; return their number.

    The end of a run may release others of its workflow, which have ended too. Runs that have ended at another time, as
    by a request that was applied again, get the time of their completion.
    """
    known = sorted(history.ends if runs is None else runs)
    ended = _record_ends(session, installation, history, since, known)
    while known and _drain(session, installation):
        ended += _record_ends(session, installation, history, since, known)
    return ended


def _drain(session: Session, installation: Installation) -> int:
    """Write the runs of children whose parents have ended; return the number of releases."""
    releases = 0
    while True:
        done = session.within(drain, installation, range(installation.shards))
        releases += done.releases
        if not done.more:
            return releases


def _record_ends(
    session: Session, installation: Installation, history: History, since: datetime, known: Sequence[UUID]
) -> int:
    ended = 0
    for some in _parts(known):
        with session.transaction() as connection:
            found = _runs(connection, some)
            if not found:
                continue
            ends = [history.ends[run] for run in sorted(found)]
            instants = {at for each in ends for at in (each.finished_at, each.started_at) if at is not None}
            ensure_days(connection, {*map(day_of, instants)})
            if left := [each for each in ends if found[UUID(each.run_id)]]:
                connection.execute(_SQL["set_ending"], _columns(left))
                ended += len(finish_runs(connection, installation, [_end(each) for each in left]).states)
            times: dict[str, object] = {
                "run_ids": uuids(UUID(each.run_id) for each in ends),
                "finished": [each.finished_at for each in ends],
            }
            connection.execute(_SQL["set_ended"], {**times, "since": since})
            connection.execute(_SQL["set_failed"], times)
            _add_attempts(connection, left)
            failpoint("restoring.ends")
    return ended


def raise_attempts(session: Session, history: History) -> int:
    """Raise the attempts of open runs past those that may have begun; return how many were raised.

    A sweep may have claimed later attempts whose messages are not in Kafka. Their fences and task tokens stay stale.
    """
    raised = 0
    for some in _parts(sorted(history.requests)):
        raised += _raise(
            session, {run: (history.requests[run].attempt, history.requests[run].publish_at) for run in some}
        )
    after = _BEFORE_ALL
    while True:
        with session.transaction() as connection:
            columns: dict[str, object] = {"after": after, "limit": _AT_ONCE, "running": RunState.RUNNING}
            rows = connection.execute(_SQL["find_running"], columns, binary=True).fetchall()
            now = read_now(connection)
        if not rows:
            return raised
        left = cast("list[tuple[UUID, int]]", rows)
        after = left[-1][0]
        raised += _raise(session, {run: (attempt, now) for run, attempt in left})


def _raise(session: Session, last: Mapping[UUID, tuple[int, datetime]]) -> int:
    """Raise the attempts of these runs past those; each has its time."""
    with session.transaction() as connection:
        columns: dict[str, object] = {
            "run_ids": uuids(last),
            "attempts": [attempt for attempt, _ in last.values()],
            "unpublished": _UNPUBLISHED,
            "running": RunState.RUNNING,
            "queued": RunState.QUEUED,
            "kept": [RunState.WAITING, RunState.CANCELLING],  # no claim follows: an answer or a sweep ends them
        }
        rows = connection.execute(_SQL["raise_attempts"], columns, binary=True).fetchall()
        found = cast("list[tuple[UUID, str, int]]", rows)
        ensure_days(connection, {day_of(last[run][1]) for run, _, _ in found})
        added: dict[str, object] = {
            "run_ids": uuids(run for run, _, _ in found),
            "tenants": [tenant for _, tenant, _ in found],
            "attempts": [attempt for _, _, attempt in found],
            "at": [last[run][1] for run, _, _ in found],
        }
        connection.execute(_SQL["add_unknown_attempts"], added)
        return len(found)


def end_unknown(session: Session, installation: Installation, history: History, stopped_at: datetime) -> int:
    """Fail the at-most-once runs that may have begun, and return their number.

    Kafka has a message of such a run, or it was due before an instant.
    """
    ended, after = 0, _BEFORE_ALL
    for some in _parts(sorted(history.requests)):
        with session.transaction() as connection:
            found = _unclaimed(connection, _SQL["find_requested"], {"run_ids": uuids(some)})
            ended += _fail(connection, installation, found)
    while True:
        with session.transaction() as connection:
            columns = {"after": after, "before": stopped_at, "limit": _AT_ONCE}
            found = _unclaimed(connection, _SQL["find_unclaimed"], columns)
            if not found:
                return ended
            after = found[-1].run_id
            ended += _fail(connection, installation, found)


def _unclaimed(connection: Conn, statement: LiteralString, columns: Mapping[str, object]) -> list[_Unclaimed]:
    return read_rows(connection, rows_of(_Unclaimed._make), statement, {**columns, "owned": [*IN_FLIGHT]})


def _fail(connection: Conn, installation: Installation, found: Sequence[_Unclaimed]) -> int:
    """Fail those of these runs that run at most once; return their number."""
    once = [run for run in found if decode(run.definition, JobDefinition).at_most_once]
    if not once:
        return 0
    ensure_days(connection, {day_of(run.scheduled_at) for run in once})
    columns: dict[str, object] = {
        "run_ids": uuids(run.run_id for run in once),
        "states": [RunState.RUNNING] * len(once),
        "attempts": [max(run.attempt, 1) for run in once],
        "executors": uuids(None for _ in once),
        "started": [None if run.attempt else run.scheduled_at for run in once],  # it has its record
        "published": [run.scheduled_at for run in once],
    }
    connection.execute(_SQL["set_ending"], columns)
    message = "the database was restored, and the run may have begun before"
    end = partial(RunEnd, reason=UNKNOWN_OUTCOME, error_type=UNKNOWN_OUTCOME, error_message=message)
    ends = [end(run.run_id, max(run.attempt, 1), RunState.FAILED) for run in once]
    ended = len(finish_runs(connection, installation, ends).states)
    failpoint("restoring.unknown")
    return ended


def _parts(run_ids: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    return (run_ids[start : start + _AT_ONCE] for start in range(0, len(run_ids), _AT_ONCE))


def _runs(connection: Conn, run_ids: Sequence[UUID]) -> dict[UUID, bool]:
    """Return those of these runs that exist, with true if they are open."""
    rows = connection.execute(_SQL["find_runs"], {"run_ids": uuids(run_ids)}, binary=True).fetchall()
    return dict(cast("list[tuple[UUID, bool]]", rows))


def _versions(connection: Conn, runs: Iterable[RunCompleted | RunRequest]) -> Mapping[tuple[UUID, int], _Version]:
    named = sorted({(UUID(each.job_id), each.job_version) for each in runs})
    columns = {"job_ids": uuids(job for job, _ in named), "versions": [version for _, version in named]}
    with connection.cursor(row_factory=rows_of(_Version._make), binary=True) as cursor:
        return {(row.job_id, row.version): row for row in cursor.execute(_SQL["read_versions"], columns)}


def _new_run(run: RunCompleted | RunRequest, request: RunRequest | None, version: _Version) -> NewRun:
    inputs, publish_at = None, run.scheduled_at
    if request is not None:
        publish_at = request.publish_at
        if request.payload is not None or request.labels or request.traceparent:
            inputs = RunInputs(
                request.payload,
                request.payload_content_type,
                dict(request.labels) if request.labels else None,
                None,
                request.traceparent,
            )
    origin = run.origin if isinstance(run, RunCompleted) else None
    return NewRun(
        run_id=RunId(UUID(run.run_id)),
        job_id=JobId(version.job_id),
        tenant=version.tenant,
        job_version=version.version,
        shard=version.shard,
        cause=Cause(run.cause.value),
        queue=version.queue,
        lane=version.lane,
        handler=version.handler,
        overlap=version.overlap,
        scheduled_at=run.scheduled_at,
        publish_at=publish_at,
        definition=version.definition,
        has_deadlines=version.has_deadlines,
        inputs=inputs,
        parent_run_id=None if run.parent_run_id is None else RunId(UUID(run.parent_run_id)),
        root_run_id=None if run.root_run_id is None else RunId(UUID(run.root_run_id)),
        request_id=run.request_id if isinstance(run, RunCompleted) else None,
        requested_from=None if origin is None else f"{origin.topic}/{origin.partition}/{origin.offset}",
        concurrency_key=None if request is None else request.concurrency_key,
        priority=version.priority,
    )


def _columns(ends: Sequence[RunCompleted]) -> dict[str, object]:
    return {
        "run_ids": uuids(UUID(each.run_id) for each in ends),
        "states": [_state_before(each) for each in ends],
        "attempts": [each.attempt for each in ends],
        "executors": uuids(None if each.executor_id is None else UUID(each.executor_id) for each in ends),
        "started": [each.started_at for each in ends],
        "published": [each.published_at for each in ends],
    }


def _state_before(end: RunCompleted) -> RunState:
    """Return a state from which the run may end as it did."""
    state = RunState(end.status.value)
    if end.started_at is not None:
        return RunState.CANCELLING if state is RunState.CANCELLED else RunState.RUNNING
    return RunState.QUEUED if state in (RunState.CANCELLED, RunState.SKIPPED, RunState.TIMED_OUT) else RunState.RUNNING


def _end(end: RunCompleted) -> RunEnd:
    return RunEnd(
        UUID(end.run_id),
        end.attempt,
        RunState(end.status.value),
        None if end.executor_id is None else UUID(end.executor_id),
        reason=end.reason,
        error_type=None if end.error is None else end.error.type,
        error_message=None if end.error is None else end.error.message,
        result=end.result,
    )


def _add_attempts(connection: Conn, runs: Sequence[RunCompleted]) -> None:
    """Record the attempts before the last one, of which no message tells the outcome."""
    if earlier := [run for run in runs if run.attempt > 1]:
        instants = [run.published_at or run.scheduled_at for run in earlier]
        columns: dict[str, object] = {
            "run_ids": uuids(UUID(run.run_id) for run in earlier),
            "tenants": [run.tenant for run in earlier],
            "attempts": [run.attempt - 1 for run in earlier],
            "at": instants,
        }
        ensure_days(connection, {*map(day_of, instants)})
        connection.execute(_SQL["add_unknown_attempts"], columns)
