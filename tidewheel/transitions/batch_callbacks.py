"""Count the ends of runs of batches, and trigger the jobs that wait for a failure or for the end.

A trigger is a request in the outbox, written by the drain that has counted the end: once, whatever dies. Its id names
the batch, the callback and, after a resume, the generation.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from tidewheel.jobs.batches import BatchCallbacks
from tidewheel.jobs.strict_json import as_object, compact, read_value
from tidewheel.outbox import OutboxRow, append
from tidewheel.postgres.pg_binary import integers, uuids
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.runs import DEAD_LETTERED, RunState
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.own_requests import request_row
from tidewheel.transitions.releases import Release

_COUNT_BATCH_ENDS = Statements("tidewheel.transitions")["count_batch_ends"]


class BatchCounts(NamedTuple):
    """The occurrence of a batch after a drain."""

    tenant: str
    shard: int
    generation: int
    state: str
    failed: int


class _Batch(NamedTuple):
    batch_id: UUID
    total: int
    succeeded: int
    first_failed_run_id: UUID | None
    callbacks: bytes


def callbacks_text(on: BatchCallbacks | None) -> bytes:
    """Return callbacks as the JSON text that `batches` holds."""
    given: dict[str, object] = {}
    for name in ("failed", "succeeded", "finished"):
        if on is not None and (callback := getattr(on, name)) is not None:
            payload = callback.carried
            given[name] = {"key": callback.key, "payload": read_value(payload.content) if payload else {}}
    return compact(given)


def count_batch_ends(
    connection: Conn,
    installation: Installation,
    batches: Mapping[UUID, BatchCounts],
    drained: Sequence[Release],
    *,
    ended: Collection[UUID],
    now: datetime,
) -> None:
    """Count drained releases in batches whose occurrences are locked; append the triggers that are due."""
    succeeded = Counter(one.root_run_id for one in drained if one.state == RunState.SUCCEEDED)
    failures: dict[UUID, UUID] = {}
    for one in drained:
        if one.state in DEAD_LETTERED:
            failures.setdefault(one.root_run_id, one.run_id)
    columns: dict[str, object] = {
        "batch_ids": uuids(batches),
        "succeeded": integers(succeeded[batch] for batch in batches),
        "failed_run_ids": uuids(failures.get(batch) for batch in batches),
    }
    with connection.cursor(row_factory=rows_of(_Batch._make), binary=True) as cursor:
        found = cursor.execute(_COUNT_BATCH_ENDS, columns).fetchall()
    rows: list[OutboxRow] = []
    for batch in found:
        counts = batches[batch.batch_id]
        first = failures.get(batch.batch_id)
        due = ["failed"] if first is not None and first == batch.first_failed_run_id else []
        if batch.batch_id in ended:
            due += ["succeeded", "finished"] if counts.state == "succeeded" else ["finished"]
        rows += _triggers(installation, batch, counts, due, now)
    append(connection, rows, shards=installation.shards)


def _triggers(
    installation: Installation, batch: _Batch, counts: BatchCounts, due: Sequence[str], now: datetime
) -> list[OutboxRow]:
    callbacks = as_object(read_value(batch.callbacks)) or {}
    facts = {
        "batch_id": str(batch.batch_id),
        "total": batch.total,
        "succeeded": batch.succeeded,
        "failed": counts.failed,
        "first_failed_run_id": None if batch.first_failed_run_id is None else str(batch.first_failed_run_id),
    }
    again = f"/{counts.generation}" if counts.generation else ""
    return [
        request_row(
            installation,
            "job.trigger",
            {
                "request_id": f"batch/{batch.batch_id}/{name}{again}",
                "tenant": counts.tenant,
                "key": str(callback["key"]),
                "payload": {**(as_object(callback["payload"]) or {}), **facts},
            },
            key=str(callback["key"]),
            shard=counts.shard,
            at=now,
        )
        for name in due
        if (callback := as_object(callbacks.get(name))) is not None
    ]
