"""Requests about batches of runs: `batch.submit`, `batch.add` and `batch.close`.

A batch of requests locks the jobs that it names, then the occurrences of its batches in the order of their ids, as a
drain does.
"""

from collections.abc import Sequence
from typing import cast
from uuid import UUID

from tidewheel.errors import Refused
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.workflows import lock_occurrences
from tidewheel.jobs.requests import BatchAdd, BatchClose, BatchSubmit
from tidewheel.postgres.session import Conn
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.batch_writer import Origin
from tidewheel.transitions.batches import add_to_batch, close_batch, lock_batch, named_jobs, submit_batch
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.shared_jobs import lock_jobs_for_share


def apply_batch_submits(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Write batches in the caller's transaction; return a reply for each request."""
    requests = [cast("BatchSubmit", received.request) for received in batch]
    named = (named_jobs(received.tenant, request) for received, request in zip(batch, requests, strict=True))
    jobs = lock_jobs_for_share(connection, set[UUID]().union(*named))
    replies: list[Reply] = []
    for received, request in zip(batch, requests, strict=True):
        origin, seed = _origin(received), received.seed()
        try:
            batch_id = submit_batch(
                connection, installation, received.tenant, request, origin=origin, seed=seed, jobs=jobs
            )
        except Refused as refused:
            replies.append(rejected(received, refused))
        else:
            replies.append(accepted(received, batch_id=str(batch_id)))
    return replies


def apply_batch_adds(
    connection: Conn,
    installation: Installation,
    batch: Sequence[ReceivedRequest],
    *,
    together: Sequence[ReceivedRequest],
) -> list[Reply]:
    """Add runs to batches in the caller's transaction; return a reply for each request.

    Args:
        together: All requests of the transaction: their occurrences are locked at once.
    """
    requests = [cast("BatchAdd", received.request) for received in batch]
    named = (named_jobs(received.tenant, request) for received, request in zip(batch, requests, strict=True))
    jobs = lock_jobs_for_share(connection, set[UUID]().union(*named))
    lock_occurrences(connection, together)
    replies: list[Reply] = []
    for received, request in zip(batch, requests, strict=True):
        try:
            added = add_to_batch(
                connection, installation, received.tenant, request, origin=_origin(received), jobs=jobs
            )
        except Refused as refused:
            replies.append(rejected(received, refused))
        else:
            replies.append(accepted(received, batch_id=request.batch_id, unchanged=not added))
    return replies


def apply_batch_closes(
    connection: Conn,
    installation: Installation,
    batch: Sequence[ReceivedRequest],
    *,
    together: Sequence[ReceivedRequest],
) -> list[Reply]:
    """Close batches as `apply_batch_adds` adds to them; return a reply for each request."""
    lock_occurrences(connection, together)
    replies: list[Reply] = []
    for received in batch:
        batch_id = cast("BatchClose", received.request).batch_id
        try:
            closed = close_batch(connection, installation, lock_batch(connection, received.tenant, UUID(batch_id)))
        except Refused as refused:
            replies.append(rejected(received, refused))
        else:
            replies.append(accepted(received, batch_id=batch_id, unchanged=not closed))
    return replies


def _origin(received: ReceivedRequest) -> Origin:
    return Origin(received.request.request_id, received.requested_from, received.traceparent)
