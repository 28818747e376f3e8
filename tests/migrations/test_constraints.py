"""What the database allows in a column is what the code's enums hold."""

import re
from typing import LiteralString

import pytest

from tests.fixtures.database import Database
from tidewheel.ids import BUCKETS
from tidewheel.outbox import SLICES, OutboxLane
from tidewheel.postgres.partitions import TABLES
from tidewheel.runs import DEAD_LETTERED, FINAL, OPEN, AttemptOutcome, Cause, Lane, Overlap, RunState
from tidewheel.schedules.decision import HoldReason, SkipReason
from tidewheel.schemas.generated import records

CHECKS: LiteralString = """
SELECT r.relname::text, pg_get_constraintdef(c.oid) FROM pg_constraint AS c JOIN pg_class AS r ON r.oid = c.conrelid
 WHERE c.contype = 'c' AND c.connamespace = 'public'::regnamespace AND NOT r.relispartition AND c.convalidated
"""
LISTED = re.compile(r"^CHECK \(\((?P<column>\w+) = ANY \(ARRAY\[(?P<values>.*)\]\)\)\)$")
VALUE = re.compile(r"'([^']*)'::text")

# Of the code's own enums; wherever a column of one of these names has a constraint, it is listed here.
OF_ENUMS = {
    ("job_runs", "state"): set(RunState),
    ("open_runs", "state"): OPEN,
    ("failed_runs", "state"): DEAD_LETTERED,
    ("job_runs", "cause"): set(Cause),
    ("open_runs", "cause"): set(Cause),
    ("job_runs", "lane"): set(Lane),
    ("open_runs", "lane"): set(Lane),
    ("open_runs", "overlap"): set(Overlap),
    ("attempts", "outcome"): set(AttemptOutcome),
    ("outbox", "lane"): set(OutboxLane),
    ("skips", "reason"): set(SkipReason),
    ("timers", "hold_reason"): set(HoldReason),
}
# Of words that the code has no enum for.
OF_WORDS = {
    ("overrides", "kind"): {"skip", "move"},
    ("quarantine", "kind"): {"job", "outbox"},
    ("signals", "kind"): {"cancel", "terminate"},
    ("dead_letters", "kind"): {"run", "message"},
    ("members", "role"): {"scheduler", "relay"},
    ("backfills", "state"): {"running", "paused", "finished", "cancelled"},
    ("backfills", "what"): {"missing_only", "all"},
    ("backfills", "versions"): {"as_of", "current"},
}
OTHERS = {
    ("jobs", f"CHECK (((bucket >= 0) AND (bucket <= {BUCKETS - 1})))"),
    ("job_versions", "CHECK ((version > 0))"),
}


def listed(database: Database) -> dict[tuple[str, str], set[str]]:
    """The values that each constrained column may have."""
    found = [(table, LISTED.match(text)) for table, text in database.rows(CHECKS)]
    return {(table, match["column"]): set(VALUE.findall(match["values"])) for table, match in found if match}


def test_every_column_of_an_enum_allows_exactly_what_the_enum_holds(shared_database: Database) -> None:
    constrained = listed(shared_database)
    for place, values in OF_ENUMS.items():
        assert constrained[place] == {value.value for value in values}, place


def test_every_other_list_of_words_is_the_one_written_here(shared_database: Database) -> None:
    constrained = listed(shared_database)
    assert {place: words for place, words in constrained.items() if place not in OF_ENUMS} == OF_WORDS


def test_no_constraint_is_left_out(shared_database: Database) -> None:
    rest = {(table, text) for table, text in shared_database.rows(CHECKS) if not LISTED.match(text)}
    assert rest == OTHERS
    assert len(shared_database.rows(CHECKS)) == len(OF_ENUMS) + len(OF_WORDS) + len(OTHERS)


def test_partitions_allow_what_their_parents_allow(shared_database: Database) -> None:
    differing = shared_database.rows(
        """
        SELECT p.relname FROM pg_inherits AS i
          JOIN pg_class AS p ON p.oid = i.inhrelid AND p.relkind = 'r'
         WHERE (SELECT array_agg(pg_get_constraintdef(oid) ORDER BY pg_get_constraintdef(oid)) FROM pg_constraint
                 WHERE contype = 'c' AND conrelid = i.inhrelid)
            IS DISTINCT FROM
               (SELECT array_agg(pg_get_constraintdef(oid) ORDER BY pg_get_constraintdef(oid)) FROM pg_constraint
                 WHERE contype = 'c' AND conrelid = i.inhparent)
        """
    )
    assert differing == []


def test_every_table_cut_by_day_is_known_to_whoever_makes_the_days(shared_database: Database) -> None:
    found = shared_database.rows("SELECT relname::text FROM pg_class WHERE relkind = 'p'")
    assert {name for (name,) in found} == set(TABLES)


def test_a_run_begins_in_the_state_that_the_code_begins_it_in(shared_database: Database) -> None:
    default = shared_database.value(
        """
        SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef
          JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum
         WHERE adrelid = 'job_runs'::regclass AND attname = 'state'
        """
    )
    assert default == f"'{RunState.QUEUED}'::text"


def test_every_shard_has_a_slice_and_every_slice_a_shard(shared_database: Database) -> None:
    shards = shared_database.value("SELECT value::int FROM settings WHERE name = 'shards'")
    assert shared_database.installation.shards == shards
    assert SLICES <= shards <= BUCKETS


@pytest.mark.parametrize(
    ("rests", "travels"),
    [
        (set(Cause), records.Cause),
        (set(Lane), records.Lane),
        (set(Overlap), records.Overlap),
        (set(FINAL), records.RunStatus),
    ],
    ids=["causes", "lanes", "overlaps", "final states"],
)
def test_what_travels_is_called_as_what_rests(
    rests: set[Cause] | set[Lane] | set[Overlap] | set[RunState],
    travels: type[records.Cause | records.Lane | records.Overlap | records.RunStatus],
) -> None:
    assert {each.value for each in travels} - {"unknown"} == {each.value for each in rests}
