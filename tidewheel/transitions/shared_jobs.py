"""Jobs whose key is locked for share, while runs of their current version are written."""

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from tidewheel.errors import InvalidInput
from tidewheel.jobs.concurrency import fill_key, is_template
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.payload import Payload
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Gate, order_gates
from tidewheel.transitions.run_messages import DEFINITIONS

_NO_GATES = Gate(0)

_SQL = Statements("tidewheel.transitions")
_LOCK_JOBS_FOR_SHARE = _SQL["lock_jobs_for_share"]
_READ_SHARED_VERSIONS = _SQL["read_shared_versions"]
_READ_SHARED_JOBS = _SQL["read_shared_jobs"]


class SharedJob(NamedTuple):
    """The columns that a run needs of a job whose key is locked for share."""

    job_id: UUID
    shard: int
    version: int
    deleted_at: datetime | None
    handler: str
    queue: str
    lane: str
    overlap: str
    definition: bytes
    key: str | None
    priority: int
    ordering_key: str | None
    passes: bool
    dedupe: str | None

    def key_of(self, payload: Payload | None, requested: str | None = None) -> str | None:
        """Return the concurrency key of a new run, filled with fields of its payload, else of the job's."""
        key = requested or self.key
        return None if key is None else self.fill(key, payload, "concurrency key")

    def order_of(self, payload: Payload | None) -> tuple[str | None, Gate]:
        """Return the ordering key of a new run by its job, filled in likewise, and the run's gates."""
        if self.ordering_key is None:
            return None, _NO_GATES
        return self.fill(self.ordering_key, payload, "ordering key"), order_gates(passes=self.passes)

    def fill(self, key: str, payload: Payload | None, what: str) -> str:
        """Return a key filled with fields of a payload, or raise InvalidInput; `what` is the key's name."""
        if not is_template(key):
            return key
        try:
            return fill_key(key, payload or payload_of(self.definition), what)
        except InvalidValue as error:
            raise InvalidInput(error.errors) from error


def payload_of(definition: bytes) -> Payload:
    """Return the payload of a version by its stored definition; it has no bytes if the job has none."""
    decoded = DEFINITIONS.of(definition)
    return Payload(decoded.payload, decoded.payload_content_type)


def lock_jobs_for_share(connection: Conn, job_ids: Collection[UUID]) -> dict[UUID, SharedJob]:
    """Lock jobs against deletion until their runs are written; return those that exist."""
    columns = {"job_ids": uuids(job_ids)}
    connection.execute(_LOCK_JOBS_FOR_SHARE, columns)
    with connection.cursor(row_factory=rows_of(SharedJob._make), binary=True) as cursor:
        found = cursor.execute(_READ_SHARED_JOBS, columns)
        return {job.job_id: job for job in found if job.deleted_at is None}


def read_versions(connection: Conn, versions: Collection[tuple[UUID, int]]) -> dict[tuple[UUID, int], SharedJob]:
    """Return locked jobs as they were in these versions."""
    columns = {"job_ids": uuids(job for job, _ in versions), "versions": [version for _, version in versions]}
    with connection.cursor(row_factory=rows_of(SharedJob._make), binary=True) as cursor:
        return {(job.job_id, job.version): job for job in cursor.execute(_READ_SHARED_VERSIONS, columns)}
