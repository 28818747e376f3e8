"""Create runs: the only code that inserts them.

A run and its outbox row are written together in the caller's transaction. So no run exists without its message, and no
message without its run. The primary key of `job_runs` makes open runs unique. The row of a finished run has left that
table, so an id that may belong to one is looked up first (`repeats`).
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.types.json import Jsonb

from tidewheel.ids import RunId, key_id, order_id
from tidewheel.outbox import OutboxRow, append
from tidewheel.postgres.partitions import day_of, ensure_days
from tidewheel.postgres.pg_binary import (
    NULL,
    boolean,
    columns,
    copy_rows,
    copy_values,
    instant,
    instants,
    instants_of,
    int2,
    int4,
    int8,
    integers,
    text,
    texts,
    uuid,
    uuids,
    words,
)
from tidewheel.postgres.session import Conn, read_ids
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause, Gate, Overlap, RunState
from tidewheel.schemas.generated.wire import run_request
from tidewheel.transitions.held_back import hold_runs, lock_orders, take_order
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.messages import DEFINITIONS
from tidewheel.transitions.new_runs import NewRun, RunInputs

_SQL = Statements("tidewheel.transitions")
_FIND_EXISTING_RUNS = _SQL["find_existing_runs"]
_FIND_ROOTS = _SQL["find_roots"]
_FIND_HOLDING_VERSIONS = _SQL["find_holding_versions"]
_ADD_JOB_RUNS = _SQL["add_job_runs"]
_DROP_REPEATED_RUNS = _SQL["drop_repeated_runs"]

_COPY_JOB_RUNS = (
    "COPY job_runs (run_id, job_id, tenant, shard, queue, lane, handler, cause, overlap, state, job_version, priority, "
    "scheduled_at, publish_at, moved_ahead, created_at, deadline_at, schedule_to_close_at, parent_run_id, root_run_id, "
    "request_id, requested_from, gates, workflow_run_id, generation, concurrency_key, key_id, order_no, waits_for) "
    "FROM STDIN (FORMAT BINARY)"
)
_JOB_RUN = columns(29)
_COPY_INPUTS = (
    "COPY run_inputs (run_id, created_at, tenant, payload, payload_content_type, labels, overlap, traceparent, "
    "late_ms) FROM STDIN (FORMAT BINARY)"
)
_OPENS = (Cause.TIMER, Cause.TRIGGER, Cause.BACKFILL)  # of a root's run that opens an occurrence; a set would hash
_NEVER = int8((1 << 63) - 1)  # infinity, as timestamptz
_INPUT_TYPES = ("uuid", "timestamptz", "text", "bytea", "text", "jsonb", "text", "text", "int8")


def create_runs(
    connection: Conn, installation: Installation, runs: Sequence[NewRun], *, now: datetime, repeats: bool = False
) -> set[UUID]:
    """Create runs with their outbox rows, in the caller's transaction.

    Args:
        now: The database's clock, read in this transaction.
        repeats: True if some of them may exist already, open or finished: these are skipped. Slower.

    Returns:
        The ids of the created runs.

    Raises:
        psycopg.errors.UniqueViolation: An open run exists already and `repeats` is false.
    """
    if not runs:
        return set()
    if any(run.inputs is not None for run in runs):
        ensure_days(connection, [day_of(now)])
    runs = _in_workflows(connection, runs)
    if any(run.ordering_key is not None for run in runs):
        runs = _in_order(connection, runs, repeats=repeats)
    runs, held = _shaped(connection, installation, runs)
    if repeats:
        # One row per id: two requests for the same run in one batch create one run.
        requested = {run.run_id: run for run in runs}
        new = _add_new(connection, requested, now)
        runs = [run for run_id, run in requested.items() if run_id in new]
        if not runs:
            return set()
    else:
        copy_rows(connection, _COPY_JOB_RUNS, _job_runs(runs, now))
    _copy_inputs(connection, runs, now)
    if held:
        hold_runs(connection, {run.run_id: run.tenant for run in runs if run.run_id in held})
    published = [run for run in runs if not (run.blocked or run.waits_in_order or (held and run.run_id in held))]
    if len({run.priority for run in published}) > 1:  # a relay reads rows of one instant in the order of their ids
        published.sort(key=lambda run: (run.publish_at, -run.priority))
    append(connection, _outbox_rows(published, installation), shards=installation.shards)
    return {run.run_id for run in runs}


def _shaped(connection: Conn, installation: Installation, runs: Sequence[NewRun]) -> tuple[Sequence[NewRun], set[UUID]]:
    """Return the runs with the times that their tenants' rates allow, and those that are held."""
    delayed, held = installation.rates.shape(
        connection, [run for run in runs if not (run.blocked or run.waits_in_order)]
    )
    if delayed:
        runs = [run._replace(publish_at=delayed[run.run_id]) if run.run_id in delayed else run for run in runs]
    return runs, held


def _in_workflows(connection: Conn, runs: Sequence[NewRun]) -> Sequence[NewRun]:
    """Return the runs, those of roots with the gates for what their end does."""
    jobs = [run.job_id for run in runs if run.cause in _OPENS]
    roots = read_ids(connection, _FIND_ROOTS, {"job_ids": uuids(jobs)}) if jobs else set[UUID]()
    if not roots:
        return runs
    versions = {(run.job_id, run.job_version) for run in runs if run.job_id in roots}
    columns = {"job_ids": uuids(job for job, _ in versions), "versions": integers(version for _, version in versions)}
    holding = set(connection.execute(_FIND_HOLDING_VERSIONS, columns, binary=True).fetchall())
    return [
        run._replace(gates=run.gates | _gates_of(run, holding), workflow_run_id=run.run_id, generation=0)
        if run.job_id in roots and run.cause in _OPENS
        else run
        for run in runs
    ]


def _gates_of(run: NewRun, holding: Collection[object]) -> Gate:
    holds = run.overlap != Overlap.ALLOW_ALL and (run.job_id, run.job_version) in holding
    return Gate.FLOW | Gate.WHOLE if holds else Gate.FLOW


def _in_order(connection: Conn, runs: Sequence[NewRun], *, repeats: bool) -> list[NewRun]:
    """Return the runs, the ordered ones with their numbers; of repeated ones none that exists already."""
    ordered = [run for run in runs if run.ordering_key is not None]
    locks = repeats or any(run.repeats_blocker is not None for run in ordered)
    keys = lock_orders(connection, ordered) if locks else {}
    if repeats:
        # Under the locks: a repeat in another transaction is written, or comes later.
        found = read_ids(connection, _FIND_EXISTING_RUNS, {"run_ids": uuids(run.run_id for run in runs)})
        runs = [run for run in {each.run_id: each for each in runs}.values() if run.run_id not in found]
        ordered = [run for run in runs if run.ordering_key is not None]
    numbered = {run.run_id: run for run in take_order(connection, ordered, keys)}
    return [numbered.get(run.run_id, run) for run in runs]


def milliseconds(late: timedelta | None) -> int | None:
    """Return the delay in milliseconds, as rows and messages hold it."""
    return None if late is None else late // timedelta(milliseconds=1)


def _add_new(connection: Conn, runs: dict[RunId, NewRun], now: datetime) -> set[UUID]:
    """Insert those of these runs that neither are open nor have finished; return them."""
    found = read_ids(connection, _FIND_EXISTING_RUNS, {"run_ids": uuids(runs)})
    new = [run for run_id, run in runs.items() if run_id not in found]
    if not new:
        return set()
    limits = [deadlines(run) for run in new]
    added = read_ids(
        connection,
        _ADD_JOB_RUNS,
        {
            "run_ids": uuids(run.run_id for run in new),
            "job_ids": uuids(run.job_id for run in new),
            "tenants": texts([run.tenant for run in new]),
            "shards": integers(run.shard for run in new),
            "queues": texts([run.queue for run in new]),
            "lanes": words(run.lane for run in new),
            "handlers": texts(run.handler for run in new),
            "causes": words(run.cause for run in new),
            "overlaps": words(run.overlap for run in new),
            "states": words(_state(run) for run in new),
            "versions": integers(run.job_version for run in new),
            "scheduled_at": instants(run.scheduled_at for run in new),
            "publish_at": instants_of([_publish_at(run) for run in new]),
            "moved_ahead": words("true" if run.publish_at < run.scheduled_at else "false" for run in new),
            "created_at": instants([now] * len(new)),
            "deadline_at": instants(earliest for earliest, _ in limits),
            "close_at": instants(closes for _, closes in limits),
            "parents": uuids(run.parent_run_id for run in new),
            "roots": uuids(run.root_run_id for run in new),
            "request_ids": texts(run.request_id for run in new),
            "requested_from": texts(run.requested_from for run in new),
            "gates": integers(_gates(run) for run in new),
            "workflows": uuids(run.workflow_run_id for run in new),
            "generations": [run.generation for run in new],
            "keys": texts(run.concurrency_key for run in new),
            "key_ids": [_key_id(run) for run in new],
            "order_nos": [run.order_no for run in new],
            "waits_for": [_key_id(run) if run.waits_in_order else None for run in new],
            "priorities": integers(run.priority for run in new),
        },
    )
    return added - read_ids(connection, _DROP_REPEATED_RUNS, {"run_ids": uuids(added)}) if added else added


def _job_runs(runs: Sequence[NewRun], now: datetime) -> Iterator[bytes]:
    shared: dict[tuple[object, ...], bytes] = {}  # the columns that runs of one batch have in common
    created_at = instant(now)
    last, at = None, b""
    for run in runs:
        common = (
            run.tenant, run.shard, run.queue, run.lane, run.handler, run.cause, run.overlap, run.job_version,
            run.blocked, run.waits_in_order, run.priority,
        )  # fmt: skip
        fields = shared.get(common)
        if fields is None:
            fields = shared[common] = b"".join(
                (
                    text(run.tenant), int2(run.shard), text(run.queue), text(run.lane), text(run.handler),
                    text(run.cause), text(run.overlap), text(_state(run)), int4(run.job_version),
                    int2(run.priority),
                )
            )  # fmt: skip
        if (run.scheduled_at, run.publish_at, run.blocked, run.waits_in_order) != last:
            last = run.scheduled_at, run.publish_at, run.blocked, run.waits_in_order
            moved_ahead = boolean(run.publish_at < run.scheduled_at)
            at = instant(run.scheduled_at) + _publish_at(run) + moved_ahead + created_at
        earliest, closes = deadlines(run)
        limits = _NO_DEADLINES if earliest is None else instant(earliest) + instant(closes)
        origin = _NO_ORIGIN
        if (run.parent_run_id or run.root_run_id or run.request_id or run.requested_from) is not None:
            origin = uuid(run.parent_run_id) + uuid(run.root_run_id) + text(run.request_id) + text(run.requested_from)
        shares = _NO_SHARES
        if (run.workflow_run_id or run.concurrency_key or run.ordering_key) is not None:
            shares = b"".join(
                (
                    int2(_gates(run)),
                    uuid(run.workflow_run_id),
                    NULL if run.generation is None else int2(run.generation),
                    text(run.concurrency_key),
                    NULL if (key := _key_id(run)) is None else int8(key),
                    NULL if run.order_no is None else int8(run.order_no),
                    int8(key) if run.waits_in_order and key is not None else NULL,
                )
            )
        yield b"".join((_JOB_RUN, uuid(run.run_id), uuid(run.job_id), fields, at, limits, origin, shares))


def _state(run: NewRun) -> RunState:
    return RunState.BLOCKED if run.blocked else RunState.BUFFERED if run.waits_in_order else RunState.QUEUED


def _publish_at(run: NewRun) -> bytes:
    return _NEVER if run.blocked or run.waits_in_order else instant(run.publish_at)


def _gates(run: NewRun) -> Gate:
    return run.gates if run.concurrency_key is None else run.gates | Gate.KEY


def _key_id(run: NewRun) -> int | None:
    if run.ordering_key is not None:
        return order_id(run.tenant, run.ordering_key)
    return None if run.concurrency_key is None else key_id(run.tenant, run.concurrency_key)


def deadlines(run: NewRun) -> tuple[datetime | None, datetime | None]:
    """Return the earliest deadline of a new run and its schedule_to_close; both count from its publish_at."""
    if not run.has_deadlines or run.blocked:
        return None, None
    definition = DEFINITIONS.of(run.definition)
    start_ms, close_ms = definition.schedule_to_start_ms, definition.schedule_to_close_ms
    starts = None if start_ms is None else run.publish_at + timedelta(milliseconds=start_ms)
    closes = None if close_ms is None else run.publish_at + timedelta(milliseconds=close_ms)
    return min((at for at in (starts, closes) if at is not None), default=None), closes


def _copy_inputs(connection: Conn, runs: Sequence[NewRun], now: datetime) -> None:
    given = [(run, run.inputs) for run in runs if run.inputs is not None]
    if not given:
        return
    rows = [
        (
            run.run_id, now, run.tenant, i.payload, i.payload_content_type,
            None if i.labels is None else Jsonb(i.labels), i.overlap, i.traceparent, milliseconds(i.late),
        )
        for run, i in given
    ]  # fmt: skip
    copy_values(connection, _COPY_INPUTS, _INPUT_TYPES, rows)


def _outbox_rows(runs: Sequence[NewRun], installation: Installation) -> Iterator[OutboxRow]:
    topics: dict[tuple[str, str], str] = {}
    for run in runs:
        topic = topics.get((run.queue, run.lane))
        if topic is None:
            topic = topics[run.queue, run.lane] = installation.topics.runs(run.queue, run.lane)
        inputs = run.inputs or _NO_INPUTS
        run_id = str(run.run_id)
        # By position, in the schema's order: this many keyword arguments cost more than half a microsecond.
        value = run_request(
            run_id,
            str(run.job_id),
            run.job_version,
            1,  # the first attempt
            run.cause,
            run.shard,
            run.scheduled_at,
            run.publish_at,
            inputs.payload,
            inputs.payload_content_type,
            inputs.labels,
            inputs.traceparent,
            milliseconds(inputs.late),
            None,  # no checkpoint
            str(run.parent_run_id) if run.parent_run_id else None,
            str(run.root_run_id) if run.root_run_id else None,
            run.definition,
            run.concurrency_key,
        )
        headers = NULL if inputs.traceparent is None else [("traceparent", inputs.traceparent.encode())]
        yield OutboxRow(
            run.shard, run.lane, topic, run_id.encode(), value, run.publish_at, headers, run.tenant, run.priority
        )


_NO_INPUTS = RunInputs()
_NO_DEADLINES = NULL + NULL
_NO_ORIGIN = NULL + NULL + NULL + NULL
_NO_SHARES = int2(Gate(0)) + NULL + NULL + NULL + NULL + NULL + NULL
