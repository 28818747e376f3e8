"""Ids: deterministic, in the order of time, and carrying the bucket that routes them."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.bounds import MISTYPED
from tests.fixtures.examples import examples
from tests.fixtures.run_ids import run_instant
from tidewheel.ids import (
    BUCKETS,
    bucket_of,
    event_id,
    first_run_id,
    hashed_id,
    job_id,
    job_range,
    micros,
    read_uuid,
    run_bucket,
    run_id,
    shard_of,
)
from tidewheel.outbox import SLICES
from tidewheel.runs import Cause

MICROSECOND = timedelta(microseconds=1)
MILLISECOND = timedelta(milliseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOON = datetime(2027, 3, 28, 12, tzinfo=UTC)

jobs = st.uuids()
instants = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001 - see timezones
causes = st.sampled_from(Cause)
origins = st.binary(max_size=40)
shard_counts = st.integers(SLICES, BUCKETS)
many = examples(200)


def is_version_8(number: UUID) -> bool:
    """Source: RFC 9562 section 5.8."""
    return number.version == 8 and number.int >> 62 & 0b11 == 0b10


@many
@given(st.text(max_size=60), st.text(max_size=60))
def test_job_id_is_stable_and_contains_its_bucket(tenant: str, key: str) -> None:
    job = job_id(tenant, key)
    assert job == job_id(tenant, key)
    assert job.version == 5
    assert bucket_of(job) == int(job.hex[:3], 16)
    assert 0 <= bucket_of(job) < BUCKETS


def test_ids_equal_those_of_earlier_releases() -> None:
    """Written down, for a release that derives others would fire again what has been fired."""
    job = job_id("default", "daily-report")
    assert str(job) == "f9f13ca7-073d-50ed-8756-56fcc1ff8afe"
    assert str(run_id(job, NOON, Cause.TIMER)) == "01a48c01-ea00-8f9f-a0f0-bc92ae568e11"
    assert str(event_id(run_id(job, NOON, Cause.TIMER), "run.completed", 2)) == "a9451f65-cc4d-8d81-9257-2bcaf5d485dd"


def test_tenant_and_key_are_separated_in_job_ids() -> None:
    assert len({job_id("a", "bc"), job_id("ab", "c"), job_id("", "abc"), job_id("abc", "")}) == 4


@many
@given(jobs, instants, causes, origins)
def test_run_id_is_deterministic_with_version_bucket_and_millisecond(
    job: UUID, at: datetime, cause: Cause, origin: bytes
) -> None:
    run = run_id(job, at, cause, origin)
    assert run == run_id(UUID(bytes=job.bytes), at, cause, bytes(origin))
    assert is_version_8(run)
    assert run_bucket(run) == bucket_of(job)
    assert timedelta(0) <= at - run_instant(run) < MILLISECOND
    assert first_run_id(at) <= run < first_run_id(at + MILLISECOND)


@many
@given(st.tuples(jobs, jobs), instants, instants, causes, origins)
def test_run_ids_sort_by_time_across_jobs(
    pair: tuple[UUID, UUID], at: datetime, later: datetime, cause: Cause, origin: bytes
) -> None:
    ids = [run_id(pair[0], at, cause, origin), run_id(pair[1], later, cause)]
    if (at - EPOCH) // MILLISECOND != (later - EPOCH) // MILLISECOND:
        assert (ids[0] < ids[1]) == (at < later)


@many
@given(jobs, instants, causes, origins)
def test_cause_origin_and_microsecond_distinguish_run_ids(job: UUID, at: datetime, cause: Cause, origin: bytes) -> None:
    ids = [run_id(job, at, each, origin) for each in Cause]
    ids += [run_id(job, at, cause, origin + b"."), run_id(job, at + MICROSECOND, cause, origin)]
    assert len(set(ids)) == len(ids)


@many
@given(jobs, instants, instants)
def test_run_id_may_have_another_instant_than_the_nominal_one(job: UUID, nominal: datetime, at: datetime) -> None:
    moved = run_id(job, nominal, Cause.BACKFILL, at=at)
    assert timedelta(0) <= at - run_instant(moved) < MILLISECOND
    assert moved == run_id(job, nominal, Cause.BACKFILL, at=at)
    # Its low bits are still those of the nominal instant.
    assert moved.int & (1 << 62) - 1 == run_id(job, nominal, Cause.BACKFILL).int & (1 << 62) - 1


def test_run_id_of_an_instant_before_1970_uses_1970() -> None:
    early = run_id(job_id("default", "old"), EPOCH - timedelta(days=1), Cause.BACKFILL)
    assert run_instant(early) == EPOCH
    assert early != run_id(job_id("default", "old"), EPOCH, Cause.BACKFILL)
    assert is_version_8(early)


def test_time_zone_of_an_instant_changes_no_id() -> None:
    job, abroad = job_id("default", "zones"), NOON.astimezone(tz=None)
    assert run_id(job, NOON, Cause.TIMER) == run_id(job, abroad, Cause.TIMER)
    assert micros(NOON) == micros(abroad)


@many
@given(instants)
def test_microseconds_are_exact(at: datetime) -> None:
    assert EPOCH + micros(at) * MICROSECOND == at


@examples(60)
@given(shard_counts)
def test_shards_are_even_to_within_one_bucket_and_in_the_order_of_buckets(shards: int) -> None:
    mapped = [shard_of(bucket, shards) for bucket in range(BUCKETS)]
    assert mapped == sorted(mapped)
    sizes = Counter(mapped)
    assert set(sizes) == set(range(shards))
    assert max(sizes.values()) - min(sizes.values()) <= 1


@examples(60)
@given(shard_counts)
def test_job_ranges_cover_each_shards_buckets_without_gap_or_overlap(shards: int) -> None:
    ranges = [job_range(shard, shards) for shard in range(shards)]
    assert ranges[0][0] == UUID(int=0)
    assert ranges[-1][1] == UUID(int=(1 << 128) - 1)
    assert all(after.int == last.int + 1 for (_, last), (after, _) in pairwise(ranges))
    for shard, (first, last) in enumerate(ranges):
        assert {shard_of(bucket_of(bound), shards) for bound in (first, last)} == {shard}


@many
@given(jobs, shard_counts)
def test_job_id_lies_in_the_range_of_its_shard(job: UUID, shards: int) -> None:
    first, last = job_range(shard_of(bucket_of(job), shards), shards)
    assert first <= job <= last


@many
@given(jobs, st.sampled_from(["run.started", "run.completed"]), st.integers(0, 1000))
def test_repeated_event_has_the_same_id(run: UUID, kind: str, sequence: int) -> None:
    event = event_id(run, kind, sequence)
    assert event == event_id(run, kind, sequence)
    assert is_version_8(event)
    others = {event_id(run, kind, sequence + 1), event_id(run, f"{kind}ed", sequence), event_id(event, kind, sequence)}
    assert event not in others
    assert len(others) == 3


@pytest.mark.parametrize("told", [b"", b"a", b"a" * 1000])
def test_hashed_id_has_the_bits_of_a_uuid(told: bytes) -> None:
    assert is_version_8(hashed_id(told))
    assert hashed_id(told) != hashed_id(told + b"a")


@pytest.mark.parametrize("text", [*MISTYPED, "", "0" * 32, f"urn:uuid:{UUID(int=1)}", f"{UUID(int=1)}\n"])
def test_mistyped_id_is_no_id(text: str) -> None:
    with pytest.raises(ValueError, match="is not a UUID"):
        read_uuid(text)


@many
@given(jobs, st.integers(0, 35), st.characters() | st.sampled_from("0123456789abcdefABCDEF-_+ "))
def test_id_with_another_character_is_that_id_or_none(job: UUID, at: int, character: str) -> None:
    text = f"{str(job)[:at]}{character}{str(job)[at + 1 :]}"
    try:
        assert str(read_uuid(text)) == text.lower()
    except ValueError:
        assert character not in "0123456789abcdefABCDEF" or str(job)[at] == "-"
