"""The events of new jobs, `job.created`: those that `lifecycle_row` makes, cut where the jobs of one tenant differ."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from uuid import UUID, uuid4

from tidewheel.ids import hashed_text, micros
from tidewheel.intake.fresh import FIRST, NewJob
from tidewheel.outbox import OutboxClass, OutboxRow, pack
from tidewheel.schemas import primitives
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation

_MARK = str(uuid4())  # what nobody's job holds


def created_events(
    installation: Installation, jobs: Iterable[NewJob], shards: Iterable[int], now: datetime
) -> Iterator[OutboxRow]:
    """The event of each job, in their order."""
    cut: dict[str, _Event] = {}
    for job, shard in zip(jobs, shards, strict=True):
        event = cut.get(job.tenant)
        if event is None:
            event = cut[job.tenant] = _Event(installation, job.tenant, now)
        yield event.of(job, shard)


class _Event:
    """The event of a tenant's new jobs."""

    def __init__(self, installation: Installation, tenant: str, now: datetime) -> None:
        self._installation, self._tenant, self._now = installation, tenant, now
        self._told = f"|job.created|{FIRST}|{micros(now)}|None|[]".encode()
        self._avro = installation.content_type == "application/avro"
        row = self._row = self._whole(UUID(_MARK), _MARK, 0)
        event_id = row.headers[0][1] if not isinstance(row.headers, bytes) else b""
        mark = primitives.text(_MARK)
        if self._avro:
            self._head, rest = (row.value or b"").split(primitives.blob(event_id))
            self._middle, self._tail = rest.split(mark + mark)
        packed = pack(row.headers) if not isinstance(row.headers, bytes) else row.headers
        self._first_header, rest = packed.split(event_id)
        self._headers, self._last_headers = rest.split(_MARK.encode())

    def of(self, job: NewJob, shard: int) -> OutboxRow:
        if not self._avro:
            return self._whole(job.job_id, job.key, shard)
        subject = job.job_text.encode()
        event_id = hashed_text(subject + self._told).encode()
        ids = (self._head, primitives.blob(event_id), self._middle, primitives.blob(subject))
        value = b"".join((*ids, primitives.text(job.key), self._tail))
        headers = b"".join((self._first_header, event_id, self._headers, subject, self._last_headers))
        return OutboxRow(shard, OutboxClass.EVENTS, self._row.topic, subject, value, self._now, headers)

    def _whole(self, job_id: UUID, key: str, shard: int) -> OutboxRow:
        return lifecycle_row(
            self._installation,
            kind="job.created",
            tenant=self._tenant,
            job_id=job_id,
            job_key=key,
            job_version=FIRST,
            shard=shard,
            now=self._now,
        )
