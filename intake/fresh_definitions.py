"""The definitions of new jobs, put together from what jobs of one pattern share."""

from datetime import timedelta
from functools import lru_cache
from typing import NamedTuple
from uuid import uuid4

from tidewheel.binary_rows import bytea, text
from tidewheel.intake.fresh import FIRST, NewJob
from tidewheel.jobs.pattern import Pattern, Timing
from tidewheel.jobs.schedule import FixedDelay, Interval, Manual
from tidewheel.jobs.spec import policy_document
from tidewheel.jobs.strict_json import canonical
from tidewheel.schemas import primitives
from tidewheel.schemas.codec import encode
from tidewheel.schemas.definitions import definition_record, needs

# By pattern and tenant; each keeps its pattern, some 15 KiB, also where `jobs.pattern` has forgotten it.
_REMEMBERED = 512
_TRUE, _FALSE = b"\0\0\0\1\1", b"\0\0\0\1\0"  # boolean columns


class Definition(NamedTuple):
    """The message that carries a JobDefinition, cut where jobs of one pattern differ; with the columns beside it.

    Args:
        head: Up to the job's id.
        middle: From behind its version up to the payload.
        tail: From behind the payload.
        columns: Of the version: from its policy on.
        labels: A column of the job.
    """

    head: bytes
    middle: bytes
    tail: bytes
    columns: bytes
    labels: bytes

    def of(self, job: NewJob) -> bytes:
        """The definition of a new job."""
        key = job.key.encode()
        return b"".join(
            (
                self.head,
                primitives.text(job.job_text),
                primitives.blob(key),
                _VERSION_NUMBER,
                self.middle,
                primitives.blob(job.payload or b""),
                self.tail,
            )
        )


_VERSION_NUMBER = primitives.int32(FIRST)
_MARK = str(uuid4())  # what nobody's job holds

_SCHEDULES = {
    (False, False): Timing(Manual()),
    (True, False): Timing(Interval(interval=timedelta(hours=1))),
    (True, True): Timing(FixedDelay(fixed_delay=timedelta(hours=1))),
}


@lru_cache(maxsize=_REMEMBERED)
def definition_of(pattern: Pattern, recurring: bool, chains: bool, tenant: str) -> Definition:  # noqa: FBT001 - a key
    """The definition of such jobs: of the schedule it says whether it recurs, and whether by chaining."""
    spec = pattern.job(_SCHEDULES[recurring, chains], _MARK, _MARK.encode())
    record = definition_record(spec, tenant=tenant, job_id=_MARK, job_version=FIRST, job_key=_MARK)
    mark = primitives.text(_MARK)
    head, rest = encode(record).split(mark + mark + _VERSION_NUMBER)
    middle, tail = rest.split(mark)
    policy = canonical(policy_document(spec)).decode()
    words = (policy, needs(record.target), record.queue, record.lane, record.overlap)
    limited = _FALSE if spec.schedule_to_start is None and spec.schedule_to_close is None else _TRUE
    labels = bytea(b"\1" + canonical(spec.labels))
    return Definition(head, middle, tail, b"".join((*map(text, words), limited)), labels)
