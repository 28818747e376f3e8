"""Messages for the outbox: a run's, built again from its rows, and requests by Tidewheel itself.

`job_versions` and `run_inputs` together hold everything that a message needs. Definitions are immutable, so a process
reads each version once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.jobs.strict_json import compact
from tidewheel.outbox import OutboxLane, OutboxRow, append
from tidewheel.postgres.pg_binary import NULL, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause
from tidewheel.schemas.codec import decode, encode_fields
from tidewheel.schemas.generated import records
from tidewheel.schemas.generated.wire import run_request
from tidewheel.transitions.installation import Installation
from tidewheel.weighed_cache import WeighedCache

_SQL = Statements("tidewheel.transitions")
_READ_DEFINITIONS = _SQL["read_definitions"]
_READ_INPUTS = _SQL["read_inputs"]
_READ_ANCESTORS = _SQL["read_ancestors"]

_NO_ANCESTORS = (None, None)

_CACHED_BYTES = 16 * 1024 * 1024  # of definitions as stored, payloads included; decoded they take about twice that
_PART_RUNS = 16  # read at once while their size is unknown


class RunFields(Protocol):
    """The columns of an open run that its message needs."""

    @property
    def run_id(self) -> UUID: ...  # noqa: D102 - the column of that name, as below
    @property
    def job_id(self) -> UUID: ...  # noqa: D102
    @property
    def shard(self) -> int: ...  # noqa: D102
    @property
    def queue(self) -> str: ...  # noqa: D102
    @property
    def lane(self) -> str: ...  # noqa: D102
    @property
    def cause(self) -> str: ...  # noqa: D102
    @property
    def job_version(self) -> int: ...  # noqa: D102
    @property
    def attempt(self) -> int: ...  # noqa: D102
    @property
    def scheduled_at(self) -> datetime: ...  # noqa: D102
    @property
    def publish_at(self) -> datetime: ...  # noqa: D102
    @property
    def created_at(self) -> datetime: ...  # noqa: D102
    @property
    def concurrency_key(self) -> str | None: ...  # noqa: D102


class QueuedRun(RunFields, Protocol):
    """The columns of an open run that its outbox row needs."""

    @property
    def tenant(self) -> str: ...  # noqa: D102
    @property
    def priority(self) -> int | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class _Definition:
    job_id: UUID
    version: int
    definition: bytes


class _Inputs(NamedTuple):
    """The inputs of a run beyond its version."""

    payload: bytes | None = None
    payload_content_type: str | None = None
    labels: dict[str, str] | None = None
    traceparent: str | None = None
    checkpoint: bytes | None = None
    late_ms: int | None = None


_NO_INPUTS = _Inputs()

Versions = Mapping[tuple[UUID, int], bytes]
"""Definitions as they are stored, by job and version."""


def _decode(definition: bytes) -> records.JobDefinition:
    return decode(definition, records.JobDefinition)


DEFINITIONS = WeighedCache(_decode, len, _CACHED_BYTES)
"""Decoded definitions by their bytes: most messages are of a job that the process has seen before."""


def read_definitions(connection: Conn, versions: Sequence[tuple[UUID, int]]) -> dict[tuple[UUID, int], bytes]:
    """Return the stored definitions of these (job_id, version)."""
    unique = sorted(set(versions))
    columns = {"job_ids": [job for job, _ in unique], "versions": [version for _, version in unique]}
    with connection.cursor(row_factory=class_row(_Definition), binary=True) as cursor:
        return {(row.job_id, row.version): row.definition for row in cursor.execute(_READ_DEFINITIONS, columns)}


def build_requests(connection: Conn, runs: Sequence[RunFields]) -> dict[UUID, records.RunRequest]:
    """Build the messages that request the next attempt of these runs; return them by run_id."""
    built = zip(runs, _build(connection, runs), strict=True)
    return {run.run_id: decode(value, records.RunRequest) for run, (value, _) in built}


def _build(
    connection: Conn, runs: Sequence[RunFields], known: Versions | None = None
) -> list[tuple[bytes, str | None]]:
    if not runs:
        return []
    versions = dict(known or {})
    if missing := {(run.job_id, run.job_version) for run in runs} - versions.keys():
        versions |= read_definitions(connection, list(missing))
    ancestors = _read_ancestors(connection, [run.run_id for run in runs if run.cause == Cause.RETRY])
    return [
        (
            _message(run, versions[run.job_id, run.job_version], given, ancestors.get(run.run_id, _NO_ANCESTORS)),
            given.traceparent,
        )
        for run, given in zip(runs, _read_inputs(connection, runs), strict=True)
    ]


def _read_inputs(connection: Conn, runs: Sequence[RunFields]) -> list[_Inputs]:
    columns = {
        "run_ids": uuids(run.run_id for run in runs),
        "first": min(run.created_at for run in runs),
        "last": max(run.created_at for run in runs),
    }
    found = connection.execute(_READ_INPUTS, columns, binary=True).fetchall()
    by_run = {cast("UUID", run_id): _Inputs._make(inputs) for run_id, *inputs in found}
    return [by_run.get(run.run_id, _NO_INPUTS) for run in runs]


def build_requests_within(
    connection: Conn, runs: Sequence[RunFields], most_bytes: int
) -> dict[UUID, records.RunRequest]:
    """Build the messages of the first of these runs, up to a size; return them by run_id.

    The first sixteen are read whatever their size, which predicts the number of the next. A run left out stays due.
    """
    found: dict[UUID, records.RunRequest] = {}
    part = _PART_RUNS
    while most_bytes > 0 and (left := runs[len(found) : len(found) + part]):
        read = build_requests(connection, left)
        found |= read
        size = sum(len(each.definition) + len(each.payload or b"") for each in read.values())
        most_bytes -= size
        part = most_bytes * len(read) // size + 1
    return found


def append_requests(
    connection: Conn, installation: Installation, runs: Sequence[QueuedRun], *, known: Versions | None = None
) -> list[bytes]:
    """Append the messages of queued runs, built from their rows and definitions; return the messages."""
    if not runs:
        return []
    built = _build(connection, runs, known)
    # By position: this many keyword arguments cost half a microsecond.
    rows = (
        OutboxRow(
            run.shard, run.lane, installation.topics.runs(run.queue, run.lane), str(run.run_id).encode(), value,
            run.publish_at, [("traceparent", traceparent.encode())] if traceparent else NULL, run.tenant, run.priority,
        )
        for run, (value, traceparent) in zip(runs, built, strict=True)
    )  # fmt: skip
    append(connection, rows, shards=installation.shards)
    return [value for value, _ in built]


def _read_ancestors(connection: Conn, run_ids: Sequence[UUID]) -> dict[UUID, tuple[UUID | None, UUID | None]]:
    if not run_ids:
        return {}
    rows = connection.execute(_READ_ANCESTORS, {"run_ids": list(run_ids)}, binary=True).fetchall()
    return {run: (parent, root) for run, parent, root in cast("list[tuple[UUID, UUID | None, UUID | None]]", rows)}


def _message(run: RunFields, definition: bytes, inputs: _Inputs, parents: tuple[UUID | None, UUID | None]) -> bytes:
    parent, root = parents
    payload, content_type, labels, traceparent, checkpoint, late_ms = inputs
    # By position, in the schema's order.
    return run_request(
        str(run.run_id), str(run.job_id), run.job_version, run.attempt + 1, run.cause, run.shard,
        run.scheduled_at, run.publish_at, payload, content_type, labels, traceparent, late_ms, checkpoint,
        str(parent) if parent else None, str(root) if root else None, definition, run.concurrency_key,
    )  # fmt: skip


def request_row(
    installation: Installation, kind: str, facts: Mapping[str, object], *, key: str, shard: int, at: datetime
) -> OutboxRow:
    """Return the outbox row of a request such as `job.pause`, encoded as events; its reply likewise.

    Args:
        facts: Its fields as in JSON, with the `request_id`: a repeated one is applied once.
    """
    given = {name: value for name, value in facts.items() if value is not None}
    if installation.content_type == "application/json":
        value = compact({"type": kind, **given})
    else:
        payload = {"payload": compact(given["payload"])} if "payload" in given else {}
        value = encode_fields("Request", {**given, **payload, "type": kind.replace(".", "_")})
    return OutboxRow(shard, OutboxLane.EVENTS, installation.topics.requests, key.encode(), value, at)
