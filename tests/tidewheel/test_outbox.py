"""The outbox: one slice for everything that keeps its order, and rows in the caller's transaction."""

from collections import Counter
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.database import Database
from tidewheel.ids import BUCKETS
from tidewheel.outbox import SLICES, OutboxLane, OutboxRow, append, slice_lane_of, slice_of
from tidewheel.runs import Lane

AT = datetime(2027, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
HEADERS = [("ce_id", b"1"), ("ü", b"")]


def row(shard: int = 0, **fields: object) -> OutboxRow:
    known: dict[str, object] = {"lane": "standard", "topic": "t", "key": b"k", "value": b"v", "publish_at": AT}
    return OutboxRow(shard, **(known | fields))  # type: ignore[arg-type]  # names and types are this file's literals


@given(st.integers(SLICES, BUCKETS))
def test_slices_are_ranges_of_shards_even_to_within_one_shard(shards: int) -> None:
    mapped = [slice_of(shard, shards) for shard in range(shards)]
    assert mapped == sorted(mapped)
    sizes = Counter(mapped)
    assert set(sizes) == set(range(SLICES))
    assert max(sizes.values()) - min(sizes.values()) <= 1


def test_numbers_of_slices_and_lanes_are_those_of_stored_rows() -> None:
    """Rows hold a lane's position: a lane that is moved, or put before another, changes stored rows."""
    lanes = ["critical", "standard", "batch", "events"]
    assert list(OutboxLane) == lanes
    numbers = [slice_lane_of(number, lane) for lane in lanes for number in range(SLICES)]
    assert numbers == list(range(SLICES * len(lanes)))


def test_each_lane_has_its_own_outbox_lane() -> None:
    assert {OutboxLane(lane.value) for lane in Lane} == set(OutboxLane) - {OutboxLane.EVENTS}


def test_row_is_stored_unchanged(database: Database) -> None:
    all_bytes = bytes(range(256))
    rows = [
        row(63, lane="critical", topic="t.ä", key=all_bytes, value=all_bytes, headers=HEADERS),
        row(0, lane="events", key=None, value=None),
        row(7, lane="batch", key=b"", value=b""),
    ]
    database.within(append, rows, shards=64)
    found = database.rows("SELECT slice_lane, publish_at, topic, key, value, headers FROM outbox ORDER BY id")
    assert found == [
        (slice_lane_of(7, "critical"), AT, "t.ä", all_bytes, all_bytes, [b"ce_id", b"1", "ü".encode(), b""]),
        (slice_lane_of(0, "events"), AT, "t", None, None, None),
        (slice_lane_of(0, "batch"), AT, "t", b"", b"", None),
    ]
