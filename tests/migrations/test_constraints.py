"""The CHECK constraints of columns allow exactly the values of the code's enums."""

import re
from typing import LiteralString

import pytest

from tests.fixtures.database import Database
from tidewheel.audit import ActorKind, Door
from tidewheel.ids import BUCKETS
from tidewheel.outbox import SLICES
from tidewheel.postgres.partitions import TABLES
from tidewheel.runs import DEAD_LETTERED, FINAL, OPEN, AttemptOutcome, Cause, Lane, Overlap, RunState
from tidewheel.schedules.decision import BackfillState, HoldReason, SkipReason
from tidewheel.schemas.generated import records

CHECKS: LiteralString = """
SELECT r.relname::text, pg_get_constraintdef(c.oid) FROM pg_constraint AS c JOIN pg_class AS r ON r.oid = c.conrelid
 WHERE c.contype = 'c' AND c.connamespace = 'public'::regnamespace AND NOT r.relispartition AND c.convalidated
"""
LISTED = re.compile(r"^CHECK \(\((?P<column>\w+) = ANY \(ARRAY\[(?P<values>.*)\]\)\)\)$")
VALUE = re.compile(r"'([^']*)'::text")

# Columns whose values are an enum of the code.
OF_ENUMS = {
    ("job_runs", "state"): OPEN,
    ("finished_runs", "state"): FINAL,
    ("failed_runs", "state"): DEAD_LETTERED,
    ("job_runs", "cause"): set(Cause),
    ("job_runs", "lane"): set(Lane),
    ("job_runs", "overlap"): set(Overlap),
    ("attempts", "outcome"): set(AttemptOutcome),
    ("skips", "reason"): set(SkipReason) - {SkipReason.BOUND},  # an answer of `job explain`, never recorded
    ("timers", "hold_reason"): set(HoldReason),
}
# Columns whose values have no enum.
OF_WORDS = {
    ("overrides", "kind"): {"skip", "move"},
    ("quarantine", "kind"): {"job", "outbox"},
    ("tenant_periods", "state"): {"any", *FINAL},
    ("tenant_deletions", "state"): {"stopping", "removing", "removed"},
    ("job_edges", "condition"): {"success", "failure", "always"},
    ("run_edges", "condition"): {"success", "failure", "always"},
    ("workflows", "state"): {
        "open",
        "paused",
        "cancelling",
        "timing_out",
        "succeeded",
        "failed",
        "cancelled",
        "timed_out",
    },
    ("signals", "kind"): {"cancel", "terminate"},
    ("dead_letters", "kind"): {"run", "message"},
    ("members", "role"): {"scheduler", "relay"},
    ("processes", "role"): {"intake", "scheduler", "relay", "executor", "api"},
    ("backfills", "state"): {"running", "paused", "finished", "cancelled"},
    ("redrives", "state"): set(BackfillState),
    ("works", "state"): set(BackfillState),
    ("redrives", "kind"): {"run", "message"},
    ("backfills", "what"): {"missing_only", "all"},
    ("backfills", "versions"): {"as_of", "current"},
    ("audit_log", "door"): set(Door),
    ("audit_log", "actor_kind"): set(ActorKind),
}
OTHERS = {
    ("retention_state", "CHECK (one)"),
    ("standby", "CHECK (one)"),
    ("jobs", f"CHECK (((bucket >= 0) AND (bucket <= {BUCKETS - 1})))"),
    ("job_versions", "CHECK ((version > 0))"),
    ("tenants", "CHECK (((weight >= 1) AND (weight <= 100)))"),
    ("tenants", "CHECK ((triggers_per_second > (0)::double precision))"),
    ("tenants", "CHECK ((in_flight > 0))"),
    ("tenants", "CHECK ((max_jobs > 0))"),
    ("tenants", "CHECK ((max_payload_bytes > 0))"),
    ("tenants", "CHECK ((max_keys > 0))"),
    ("tenants", "CHECK ((max_key_rate > (0)::double precision))"),
    ("message_keys", "CHECK ((octet_length(secret) = 32))"),
    ("task_token_keys", "CHECK ((octet_length(secret) = 32))"),
    ("sign_ins", "CHECK ((octet_length(digest) = 32))"),
    ("api_keys", "CHECK ((octet_length(secret_hash) = 32))"),
    ("api_keys", "CHECK ((rate > (0)::double precision))"),
}


def listed(database: Database) -> dict[tuple[str, str], set[str]]:
    """Return the allowed values of each constrained column."""
    found = [(table, LISTED.match(text)) for table, text in database.rows(CHECKS)]
    return {(table, match["column"]): set(VALUE.findall(match["values"])) for table, match in found if match}


def test_enum_column_allows_exactly_the_values_of_its_enum(shared_database: Database) -> None:
    constrained = listed(shared_database)
    for place, values in OF_ENUMS.items():
        assert constrained[place] == {value.value for value in values}, place


def test_other_listed_values_are_the_expected_ones(shared_database: Database) -> None:
    constrained = listed(shared_database)
    assert {place: words for place, words in constrained.items() if place not in OF_ENUMS} == OF_WORDS


def test_every_constraint_is_checked_here(shared_database: Database) -> None:
    rest = {(table, text) for table, text in shared_database.rows(CHECKS) if not LISTED.match(text)}
    assert rest == OTHERS
    assert len(shared_database.rows(CHECKS)) == len(OF_ENUMS) + len(OF_WORDS) + len(OTHERS)


def test_partitions_have_the_constraints_of_their_parents(shared_database: Database) -> None:
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


def test_every_partitioned_table_is_known_to_the_partitions_module(shared_database: Database) -> None:
    found = shared_database.rows("SELECT relname::text FROM pg_class WHERE relkind = 'p'")
    assert {name for (name,) in found} == set(TABLES)


@pytest.mark.parametrize("table", ["job_runs", "finished_runs"])
def test_state_of_a_run_is_never_left_out(shared_database: Database, table: str) -> None:
    [column] = shared_database.rows(
        "SELECT attnotnull, atthasdef FROM pg_attribute WHERE attrelid = %s::text::regclass AND attname = 'state'",
        [table],
    )
    assert column == (True, False)


def test_number_of_shards_lies_between_slices_and_buckets(shared_database: Database) -> None:
    shards = shared_database.value("SELECT value::int FROM settings WHERE name = 'shards'")
    assert shared_database.installation.shards == shards
    assert SLICES <= shards <= BUCKETS


@pytest.mark.parametrize(
    ("stored", "wire"),
    [
        (set(Cause), records.Cause),
        (set(Lane), records.Lane),
        (set(Overlap), records.Overlap),
        (set(FINAL), records.RunStatus),
    ],
    ids=["causes", "lanes", "overlaps", "final states"],
)
def test_wire_enums_hold_the_values_of_the_tables(
    stored: set[Cause] | set[Lane] | set[Overlap] | set[RunState],
    wire: type[records.Cause | records.Lane | records.Overlap | records.RunStatus],
) -> None:
    assert {each.value for each in wire} - {"unknown"} == {each.value for each in stored}
