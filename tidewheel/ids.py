"""Ids that carry their own routing.

A job_id is derived from (tenant, key), so that registering twice is idempotent and needs no look-up. A run_id sorts by
time (index locality) and contains its job's bucket, which determines its shard. Both are derived: the same thing gets
the same id again, which makes firing idempotent.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha1, sha256
from typing import TYPE_CHECKING, NewType
from uuid import UUID, SafeUUID, uuid5

from tidewheel.runs import Cause

if TYPE_CHECKING:
    from hashlib import _Hash as Hashing  # pyright: ignore[reportPrivateUsage] - what sha1 returns has no other name

JobId = NewType("JobId", UUID)
RunId = NewType("RunId", UUID)

NAMESPACE = UUID("6f1d0f3e-5b0e-5c7a-9a51-7d1e3a1f6c11")
BUCKETS = 4096  # the first 12 bits of a job_id

FIRST_KEY_ID = -(1 << 63)

_TEXT = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")  # a third of the time of IGNORECASE
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_VERSION_5 = 5 << 76
_VERSION_8 = 8 << 76
_VARIANT = 0b10 << 62
_FIXED_BITS = (0xF << 76) | (0b11 << 62)
_VARIANT_DIGIT = {f"{digit:x}": "89ab"[digit & 3] for digit in range(16)}
_LOW_62_BITS = (1 << 62) - 1
_LATEST_MS = (1 << 48) - 1
_UNKNOWN = SafeUUID.unknown
_blank, _set = object.__new__, object.__setattr__  # bypass the checks of UUID's constructor


def job_id(tenant: str, key: str) -> JobId:
    """Return the id of the job `key` of `tenant`: the same in every installation, for ever."""
    hashed = _named(tenant).copy()
    hashed.update(key.encode())
    number = int.from_bytes(hashed.digest()[:16])
    return JobId(uuid_of((number & ~_FIXED_BITS) | _VERSION_5 | _VARIANT))


@lru_cache(maxsize=1024)
def _named(tenant: str) -> "Hashing":
    """Return the hash state of a tenant's name space; adding a key gives `uuid5` in a quarter of its time."""
    return sha1(uuid5(NAMESPACE, tenant).bytes, usedforsecurity=False)


def bucket_of(job: UUID) -> int:
    """The job's bucket, 0 to 4095: the first 12 bits of its id."""
    return job.int >> 116


def shard_of(bucket: int, shards: int) -> int:
    """The shard that a bucket belongs to, 0 to shards - 1; contiguous and even to within one bucket.

    >>> shard_of(0, 64), shard_of(4095, 64)
    (0, 63)
    """
    return bucket * shards // BUCKETS


def job_range(shard: int, shards: int) -> tuple[UUID, UUID]:
    """The first and the last job_id there can be in a shard.

    >>> [str(bound)[:4] for bound in job_range(63, 64)]
    ['fc00', 'ffff']
    """
    first = -(-shard * BUCKETS // shards)
    after = -(-(shard + 1) * BUCKETS // shards)
    return UUID(int=first << 116), UUID(int=(after << 116) - 1)


def first_ids(ids: Sequence[UUID]) -> str:
    """Return the first ten ids for a log line, with an ellipsis if there are more."""
    return ", ".join([*map(str, ids[:10]), *(["…"] if len(ids) > 10 else [])])


def micros(instant: datetime) -> int:
    """Whole microseconds since 1970, without the rounding of a float."""
    since = instant - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def run_id(
    job: UUID, scheduled_at: datetime, cause: Cause, origin: bytes = b"", *, at: datetime | None = None
) -> RunId:
    """The id of the run that (job, instant, cause, origin) becomes.

    Args:
        scheduled_at: The nominal instant, to the microsecond.
        origin: What distinguishes runs of one job, instant and cause: empty for a timer, the request_id for a trigger.
        at: The instant in the 48 bits of milliseconds; `scheduled_at` unless given (backfill and retry differ).

    Source: RFC 9562 section 5.8 (UUID version 8).
    """
    scheduled = micros(scheduled_at)
    stamp = (scheduled if at is None else micros(at)) // 1000
    if not 0 <= stamp <= _LATEST_MS:
        stamp = min(max(stamp, 0), _LATEST_MS)
    digest = sha256(b"%b%d|%b|%b" % (job.bytes, scheduled, cause.encode(), origin)).digest()
    low = int.from_bytes(digest[:8]) & _LOW_62_BITS
    return RunId(uuid_of((stamp << 80) | _VERSION_8 | (bucket_of(job) << 64) | _VARIANT | low))


def child_run_id(job: UUID, scheduled_at: datetime, root: UUID, generation: int) -> RunId:
    """The id of a job's run in an occurrence of a workflow; it sorts beside the root's run.

    Args:
        generation: 0, and one more for each resume.
    """
    origin = root.bytes + generation.to_bytes(2)
    return run_id(job, scheduled_at, Cause.WORKFLOW, origin, at=instant_of(root))


def instant_of(run: UUID) -> datetime:
    """Return the instant in the 48 bits of milliseconds of a run's or a batch's id."""
    return _EPOCH + (run.int >> 80) * _MILLISECOND


def uuid_of(number: int) -> UUID:
    """Return the UUID of a 128-bit number, in a quarter of the time of UUID's constructor."""
    new = _blank(UUID)
    _set(new, "int", number)
    _set(new, "is_safe", _UNKNOWN)
    return new


def read_uuid(text: str) -> UUID:
    """Return the UUID of a text of 36 characters.

    Python's UUID also reads blanks, signs, underscores, braces and the digits of any script. It then returns another id
    than the one that was meant.

    >>> read_uuid("6f1d0f3e-5b0e-5c7a-9a51-7d1e3a1f6c11") == NAMESPACE
    True
    """
    if _TEXT.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a UUID")
    return uuid_of(int(text.replace("-", ""), 16))


@lru_cache(maxsize=16_384)
def key_id(tenant: str, key: str) -> int:
    """Return the id of a tenant's concurrency key: 64 bits of a hash, signed as a bigint is.

    Two keys with one id would share their places: two of a million keys do in one of 37 million installations.
    """
    return int.from_bytes(sha256(b"%b\0%b" % (tenant.encode(), key.encode())).digest()[:8], signed=True)


@lru_cache(maxsize=4096)  # a run's creation needs it three times
def order_id(tenant: str, key: str) -> int:
    """Return the id of a tenant's ordering key, which is not that of a concurrency key of this name."""
    return key_id(tenant, f"order\0{key}")


def dedupe_id(job: UUID, key: str) -> int:
    """Return the id of a key that a job's triggers share: 64 bits of a hash, as of `key_id`."""
    return int.from_bytes(sha256(b"%b%b" % (job.bytes, key.encode())).digest()[:8], signed=True)


def tenant_key_id(tenant: str) -> int:
    """Return the id of a tenant's empty key, which no job has: its row counts the runs in flight."""
    return key_id(tenant, "")


def rate_key_id(tenant: str) -> int:
    """Return what the held runs of a tenant wait for: the id of a key that no job can have."""
    return key_id(tenant, "\0rate")


def run_bucket(run: UUID) -> int:
    """The bucket of the job that a run belongs to."""
    return (run.int >> 64) & 0xFFF


def run_range(job: UUID, at: datetime) -> tuple[UUID, UUID]:
    """Return the first and the last possible run_id of this job's bucket and this millisecond."""
    first = (max(0, (at - _EPOCH) // _MILLISECOND) << 80) | _VERSION_8 | (bucket_of(job) << 64) | _VARIANT
    return UUID(int=first), UUID(int=first | _LOW_62_BITS)


def first_run_id(instant: datetime) -> UUID:
    """The smallest value of type uuid that a run of this millisecond can have."""
    return UUID(int=((instant - _EPOCH) // _MILLISECOND) << 80)


def event_id(run: UUID, kind: str, sequence: int) -> UUID:
    """Return the id of an event: the same event always has the same id."""
    return hashed_id(b"%b%b%d" % (run.bytes, kind.encode(), sequence))


def event_text(run: bytes, kind: bytes, sequence: int) -> str:
    """Return `event_id` as text, from bytes, without the UUID in between.

    >>> event_text(UUID(int=7).bytes, b"succeeded", 2) == str(event_id(UUID(int=7), "succeeded", 2))
    True
    """
    return hashed_text(b"%b%b%d" % (run, kind, sequence))


def hashed_id(name: bytes) -> UUID:
    """Return a UUID that is the hash of a name. Source: RFC 9562 section 5.8 (UUID version 8)."""
    number = int.from_bytes(sha256(name).digest()[:16])
    return UUID(int=(number & ~_FIXED_BITS) | _VERSION_8 | _VARIANT)


def hashed_text(name: bytes) -> str:
    """Return `hashed_id` as text, without the UUID in between.

    >>> hashed_text(b"name") == str(hashed_id(b"name"))
    True
    """
    digits = sha256(name).hexdigest()
    variant = _VARIANT_DIGIT[digits[16]]
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"
