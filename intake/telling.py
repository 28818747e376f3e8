"""Telling of changes: the lifecycle event of each job that was changed."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from tidewheel.db import Conn
from tidewheel.outbox import append
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation


class Told(Protocol):
    """The part of a job's row that its event needs."""

    @property
    def job_id(self) -> UUID: ...  # noqa: D102 - the column of that name, as below
    @property
    def tenant(self) -> str: ...  # noqa: D102
    @property
    def key(self) -> str: ...  # noqa: D102
    @property
    def shard(self) -> int: ...  # noqa: D102
    @property
    def version(self) -> int: ...  # noqa: D102


def tell(
    connection: Conn,
    installation: Installation,
    kind: str,
    jobs: Sequence[Told],
    *,
    now: datetime,
    reasons: Mapping[UUID, str | None],
) -> None:
    """Write the lifecycle event of each job that was changed."""
    events = [
        lifecycle_row(
            installation,
            kind=kind,
            tenant=job.tenant,
            job_id=job.job_id,
            job_key=job.key,
            job_version=job.version,
            shard=job.shard,
            now=now,
            reason=reasons.get(job.job_id),
        )
        for job in jobs
    ]
    append(connection, events, shards=installation.shards)
