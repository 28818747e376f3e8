"""Fire locked timers: create due runs, record skips, and move the timers on.

The caller has locked the timer rows, which makes an occurrence exactly one run. A pure function decides which
occurrences fire, which are skipped and which comes next. This module only writes.

A quarantined job that is released fires by its `catch_up`, as after any downtime.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.ids import JobId, run_id
from tidewheel.outbox import append
from tidewheel.postgres.pg_binary import NEVER, copy_values, instant, instants, instants_of, uuids, words
from tidewheel.postgres.session import Conn, at_commit, read_ids, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.process import tracing
from tidewheel.process.metrics import metrics
from tidewheel.runs import HOLDS, Cause, Gate, Move, Overlap, order_gates, sources
from tidewheel.schedules.decision import Decision, Fire
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import JobDefinition
from tidewheel.transitions.create import create_runs
from tidewheel.transitions.events import ChangedJob, append_job_events, skip_event
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.new_runs import NewRun, RunInputs

_SQL = Statements("tidewheel.transitions")
_MOVE_TIMERS = _SQL["move_timers"]
_FIND_OPEN_FIXED_DELAY_RUNS = _SQL["find_open_fixed_delay_runs"]

_COPY_SKIPS = (
    "COPY skips (job_id, tenant, job_version, reason, first_at, last_at, occurrences, is_exact, created_at) "
    "FROM STDIN (FORMAT BINARY)"
)
_SKIP_TYPES = ("uuid", "text", "int4", "text", "timestamptz", "timestamptz", "int8", "bool", "timestamptz")

_NO_GATES = Gate(0)

_CHAINS = '"kind":"fixed_delay"'  # in the canonical text of the schedule


class LockedTimer(NamedTuple):
    """A locked timer row, with the columns of its job's version that firing needs.

    `due_at` is None if the timer is held without an end. A run of an occurrence before `repeats_until` may exist.
    """

    job_id: UUID
    tenant: str
    shard: int
    scheduled_at: datetime
    version: int
    schedule_json: str
    handler: str
    queue: str
    lane: str
    overlap: str
    definition: bytes
    has_deadlines: bool
    concurrency_key: str | None
    priority: int
    ordering_key: str | None
    passes: bool
    policy_json: str
    due_at: datetime | None
    catch_up_end: datetime | None = None
    hold_reason: str | None = None
    overridden: bool = False
    repeats_until: datetime | None = None

    @property
    def chains(self) -> bool:
        """True if the end of a run sets the next fire time."""
        return _CHAINS in self.schedule_json


Decide = Callable[[LockedTimer], Decision]


def advance_timers(
    connection: Conn,
    installation: Installation,
    timers: Sequence[LockedTimer],
    decide: Decide,
    *,
    now: datetime,
    repeats: bool = False,
    keys: Mapping[UUID, str] = MappingProxyType({}),
) -> list[Decision]:
    """Fire the due occurrences of locked timers and move the timers on, in the caller's transaction.

    Args:
        decide: Pure; called once per timer.
        now: The database's clock, read after the locks were acquired.
        repeats: True if a run may exist already; see `create_runs`.
        keys: The keys of jobs whose definitions may be unreadable, for the events of their skips.

    Returns:
        The decisions, in the order of `timers`.
    """
    decisions = [decide(timer) for timer in timers]
    pairs = list(zip(timers, decisions, strict=True))
    firing = [(timer, fire) for timer, decision in pairs for fire in decision.fires]
    publish_times = _rate_limited(connection, installation, [fire for _, fire in firing], now)
    runs = [new_run(timer, fire, at) for (timer, fire), at in zip(firing, publish_times, strict=True)]
    again = [repeats or _may_repeat(timer, fire) for timer, fire in firing]
    create_runs(connection, installation, [run for run, may in zip(runs, again, strict=True) if not may], now=now)
    repeated = [run for run, may in zip(runs, again, strict=True) if may]
    create_runs(connection, installation, repeated, now=now, repeats=True)
    _write_skips(connection, installation, pairs, now, keys)
    _mark_moves_done(connection, pairs, now)
    move_timers(connection, [(timer.job_id, decision) for timer, decision in pairs if decision.next_at is not None])
    finished = sorted(timer.job_id for timer, decision in pairs if decision.next_at is None)
    if finished:
        drop_timers(connection, finished)
        connection.execute(_SQL["finish_jobs"], {"job_ids": finished, "now": now})
    at_commit(connection, partial(metrics.count, "occurrences", len(runs), "fired"))
    if tracing.spans is not None and runs:
        at_commit(connection, partial(tracing.spans.fired, [run.run_id for run in runs], now))
    return decisions


def move_timers(connection: Conn, moved: Sequence[tuple[UUID, Decision]]) -> None:
    """Move timers as decided; the caller has locked them."""
    if not moved:
        return
    # Jobs that share a schedule share the decision object: each is encoded once.
    encoded: dict[int, tuple[bytes, bytes, bytes, str, str]] = {}
    rows = [
        encoded.get(id(decision)) or encoded.setdefault(id(decision), _timer_columns(decision)) for _, decision in moved
    ]
    scheduled_at, due_at, catch_up_ends, held, overridden = zip(*rows, strict=True)
    columns = {
        "job_ids": uuids(job for job, _ in moved),
        "scheduled_at": instants_of(scheduled_at),
        "due_at": instants_of(due_at),
        "catch_up_ends": instants_of(catch_up_ends),
        "hold_reasons": words(held),
        "overridden": words(overridden),
    }
    connection.execute(_MOVE_TIMERS, columns)


def find_open_fixed_delay_runs(connection: Conn, timers: Sequence[LockedTimer]) -> set[UUID]:
    """Return the fixed_delay jobs whose current run is open: the next fire time waits for its end."""
    chained = [timer for timer in timers if timer.chains]
    if not chained:
        return set()
    columns = {
        "job_ids": uuids(timer.job_id for timer in chained),
        "scheduled_at": instants(timer.scheduled_at for timer in chained),
    }
    return read_ids(connection, _FIND_OPEN_FIXED_DELAY_RUNS, columns)


def drop_timers(connection: Conn, job_ids: Sequence[UUID]) -> None:
    """Delete the timers of jobs that fire no more; the caller has locked them."""
    connection.execute(_SQL["drop_timers"], {"job_ids": job_ids})


def retract_runs(connection: Conn, job_ids: Sequence[UUID], *, now: datetime) -> dict[UUID, datetime]:
    """Retract the scheduled runs of these jobs whose time is still ahead, in the caller's transaction.

    Their messages may be in the outbox or in Kafka already. A claim for such a message matches no row, unless the job
    has created the run again under the same version.

    Returns:
        The earliest time that is undecided again, by job. For a moved occurrence whose scheduled time has passed it is
        the time that it was moved to.
    """
    if not job_ids:
        return {}
    columns = {"job_ids": list(job_ids), "sources": sources(Move.SKIP), "now": now, "holds": HOLDS}
    found = connection.execute(_SQL["retract_runs"], columns, binary=True).fetchall()
    rows = cast("list[tuple[UUID, datetime, UUID, int | None]]", found)
    _leave_orders(connection, {run: key for _, _, run, key in rows if key is not None})
    # Occurrences that were skipped ahead of time are undecided again too.
    skipped = connection.execute(_SQL["retract_skips"], columns, binary=True).fetchall()
    retracted = cast("list[tuple[UUID, datetime]]", [*(row[:2] for row in rows), *skipped])
    moved = _restore_moves(connection, retracted)
    earliest: dict[UUID, datetime] = {}
    for job, at in retracted:
        opens = at if at > now else moved.get((job, at), at)
        earliest[job] = min(opens, earliest.get(job, opens))
    return earliest


def _leave_orders(connection: Conn, keys: Mapping[UUID, int]) -> None:
    """Give up the places of retracted runs in their ordering keys; a scheduler queues the next runs."""
    if keys:
        columns: dict[str, object] = {"key_ids": sorted(set(keys.values())), "run_ids": uuids(keys)}
        connection.execute(_SQL["leave_orders"], columns)


def _restore_moves(
    connection: Conn, retracted: Sequence[tuple[UUID, datetime]]
) -> dict[tuple[UUID, datetime], datetime]:
    if not retracted:
        return {}
    columns = {"job_ids": uuids(job for job, _ in retracted), "instants": instants(at for _, at in retracted)}
    rows = connection.execute(_SQL["restore_moves"], columns, binary=True).fetchall()
    return {(job, at): to for job, at, to in cast("list[tuple[UUID, datetime, datetime]]", rows)}


def _may_repeat(timer: LockedTimer, fire: Fire) -> bool:
    """Return True if a run of this occurrence may exist.

    The timer was set back, or occurrences were moved.
    """
    return timer.overridden or (timer.repeats_until is not None and fire.at < timer.repeats_until)


def new_run(timer: LockedTimer, fire: Fire, publish_at: datetime) -> NewRun:
    """Return the run of an occurrence."""
    inputs = None if fire.late is None else RunInputs(late=fire.late)
    overlap = Overlap.BUFFER_ALL if fire.buffered and timer.overlap != Overlap.ALLOW_ALL else timer.overlap
    # By position, in the order of the fields: this many keyword arguments cost a microsecond.
    return NewRun(
        run_id(timer.job_id, fire.at, Cause.TIMER),
        JobId(timer.job_id),
        timer.tenant,
        timer.version,
        timer.shard,
        Cause.TIMER,
        timer.queue,
        timer.lane,
        timer.handler,
        overlap,
        fire.at,
        publish_at,
        timer.definition,
        timer.has_deadlines,
        inputs,
        None,  # it retries no run
        None,
        None,  # no request creates it
        None,
        _NO_GATES if timer.ordering_key is None else order_gates(passes=timer.passes),
        None,  # its occurrence of a workflow
        None,
        timer.concurrency_key,
        timer.priority,
        False,  # noqa: FBT003 - not blocked
        timer.ordering_key,
    )


def _rate_limited(connection: Conn, installation: Installation, fires: Sequence[Fire], now: datetime) -> list[datetime]:
    """Return the publish time of each run; caught-up runs are spread at the fleet's catch-up rate.

    Deadlines count from the publish time, so that a late run has its full time.
    """
    late = sum(fire.late is not None for fire in fires)
    if not late:
        return [max(fire.publish_at, now) for fire in fires]
    every = timedelta(seconds=1) / installation.catch_up_rate
    columns = {"now": now, "needed_us": every * late // timedelta(microseconds=1)}
    row = connection.execute(_SQL["reserve_catch_up_slots"], columns, binary=True).fetchone()
    assert row is not None  # noqa: S101 - it returns what it wrote
    free_at = row[0]
    assert isinstance(free_at, datetime)  # noqa: S101 - the column's type
    slot = free_at - every * late
    times: list[datetime] = []
    for fire in fires:
        times.append(max(fire.publish_at, now) if fire.late is None else max(slot, now))
        slot += every if fire.late is not None else timedelta(0)
    at_commit(connection, partial(metrics.count, "occurrences_caught_up", late))
    return times


def _timer_columns(decision: Decision) -> tuple[bytes, bytes, bytes, str, str]:
    due_at = decision.due_at or (decision.next_at if decision.hold_reason is None else None)
    return (
        instant(decision.next_at),
        NEVER if due_at is None else instant(due_at),
        instant(decision.catch_up_end),
        decision.hold_reason or "NULL",
        "true" if decision.overridden else "false",
    )


def _mark_moves_done(connection: Conn, pairs: Sequence[tuple[LockedTimer, Decision]], now: datetime) -> None:
    done = [(timer.job_id, at) for timer, decision in pairs for at in decision.moved]
    if done:
        columns = {"job_ids": uuids(job for job, _ in done), "instants": instants(at for _, at in done), "now": now}
        connection.execute(_SQL["mark_moves_done"], columns)


def _write_skips(
    connection: Conn,
    installation: Installation,
    pairs: Sequence[tuple[LockedTimer, Decision]],
    now: datetime,
    keys: Mapping[UUID, str],
) -> None:
    skips = [(timer, skip) for timer, decision in pairs for skip in decision.skips]
    if not skips:
        return
    rows = [
        (t.job_id, t.tenant, t.version, s.reason, s.first_at, s.last_at, s.occurrences, s.exact, now) for t, s in skips
    ]
    copy_values(connection, _COPY_SKIPS, _SKIP_TYPES, rows)
    for _, skip in skips:
        at_commit(connection, partial(metrics.count, "occurrences", skip.occurrences, skip.reason))
    events = [
        skip_event(installation, timer, keys.get(timer.job_id) or _key(timer), skip, now) for timer, skip in skips
    ]
    append(connection, events, shards=installation.shards)


def _key(timer: LockedTimer) -> str:
    return decode(timer.definition, JobDefinition).job_key


def release_quarantined(
    connection: Conn,
    installation: Installation,
    timers: Sequence[LockedTimer],
    *,
    now: datetime,
    until: datetime | None = None,
    reason: str | None = None,
) -> list[ChangedJob]:
    """Release the jobs of these locked timers, in the caller's transaction; return the released ones.

    Args:
        timers: The timers as they were quarantined. A job that was edited or released since then stays as it is.
        until: The time before which none of them is tried again; None for at once.
    """
    if not timers:
        return []
    columns: dict[str, object] = {
        "job_ids": [timer.job_id for timer in timers],
        "positions": [timer.scheduled_at for timer in timers],
        "waiting": list(find_open_fixed_delay_runs(connection, timers)),
        "until": until,
    }
    released = read_rows(connection, class_row(ChangedJob), _SQL["release_timers"], columns)
    reasons = {job.job_id: reason for job in released}
    append_job_events(connection, installation, "job.released", released, now=now, reasons=reasons)
    return released
