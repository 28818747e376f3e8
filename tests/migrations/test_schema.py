"""The migrated schema: its constraints, its columns and the stored schemas."""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import LiteralString

import pytest

from tests.fixtures.acts import EXECUTOR, about
from tests.fixtures.database import Database
from tidewheel.audit import ActorKind, Door
from tidewheel.errors import Unavailable
from tidewheel.ids import BUCKETS
from tidewheel.migrations.runner import migrate
from tidewheel.migrations.stored_schemas import lookup_in, store_schemas
from tidewheel.outbox import SLICES
from tidewheel.postgres.partitions import TABLES
from tidewheel.runs import DEAD_LETTERED, FINAL, OPEN, AttemptOutcome, Cause, Lane, Overlap, SkipReason
from tidewheel.schedules.decision import BackfillState, HoldReason
from tidewheel.schemas.avro import fingerprint
from tidewheel.schemas.codec import all_schemas
from tidewheel.schemas.generated import records
from tidewheel.transitions.claim import Claim, claim_runs

# Facts of the installation, of processes and of messages; everything else belongs to a tenant.
# The roles of a tenant outlive it.
WITHOUT_TENANT = {
    "archive_lock", "archived_days", "claims_lock", "kept_since_lock", "relay_slices", "restore_lock", "retention_lock",
    "tidewheel_migrations", "settings", "members", "executors", "processes", "intake_offsets", "schemas",
    "message_keys", "sign_ins", "task_token_keys", "run_days", "retention_state", "tenant_roles",
}  # fmt: skip


def test_every_table_but_the_listed_ones_has_a_tenant(shared_database: Database) -> None:
    found = shared_database.rows(
        "SELECT c.relname, bool_or(a.attname = 'tenant')"
        " FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid"
        " WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
        " GROUP BY c.relname"
    )
    assert {name for name, has_tenant in found if not has_tenant} == WITHOUT_TENANT


def test_clock_is_stable_within_a_statement_and_advances_within_a_transaction(shared_database: Database) -> None:
    assert shared_database.value("SELECT provolatile FROM pg_proc WHERE proname = 'tidewheel_now'") in {"s", b"s"}
    with shared_database.transaction() as connection:
        first, second = (str(connection.execute("SELECT tidewheel_now()").fetchone()) for _ in range(2))
    assert first < second


def test_no_table_has_a_default_partition(shared_database: Database) -> None:
    assert shared_database.rows("SELECT partrelid::regclass::text FROM pg_partitioned_table WHERE partdefid <> 0") == []


def test_claim_is_a_hot_update(fresh_database: Database) -> None:
    """A claim changes no indexed column: with room in the page it writes no index."""
    fresh_database.submit()
    fresh_database.apply_batch(*(about("job.trigger") for _ in range(500)))
    one_a_page = "SELECT DISTINCT ON ((ctid::text::point)[0]) run_id FROM job_runs ORDER BY (ctid::text::point)[0]"
    runs = [run_id for (run_id,) in fresh_database.rows(one_a_page)]
    session = fresh_database.session()
    with session.transaction() as connection:
        claims = [Claim(run_id, 1, 1, "topic.runs.standard/23/123456789@1700000000000") for run_id in runs]
        claimed = claim_runs(connection, fresh_database.installation, claims, executor_id=EXECUTOR)
    assert len(claimed.started) == len(runs) > 10
    with session.transaction() as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
    counted = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'job_runs'"
    assert fresh_database.rows(counted) == [(len(runs), len(runs))]


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
    ("skips", "reason"): set(SkipReason) - {SkipReason.BOUND, SkipReason.PARENTS, SkipReason.DELETED},  # never recorded
    ("timers", "hold_reason"): set(HoldReason),
    ("redrives", "state"): set(BackfillState),
    ("works", "state"): set(BackfillState),
    ("audit_log", "door"): set(Door),
    ("audit_log", "actor_kind"): set(ActorKind),
}


def listed(database: Database) -> dict[tuple[str, str], set[str]]:
    """Return the allowed values of each constrained column."""
    found = [(table, LISTED.match(text)) for table, text in database.rows(CHECKS)]
    return {(table, match["column"]): set(VALUE.findall(match["values"])) for table, match in found if match}


def test_enum_column_allows_exactly_the_values_of_its_enum(shared_database: Database) -> None:
    constrained = listed(shared_database)
    for place, values in OF_ENUMS.items():
        assert constrained[place] == {value.value for value in values}, place


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


def test_wire_enums_hold_the_values_of_the_tables() -> None:
    columns: list[Iterable[StrEnum]] = [Cause, Lane, Overlap, FINAL]
    wire: list[Iterable[StrEnum]] = [records.Cause, records.Lane, records.Overlap, records.RunStatus]
    for stored, published in zip(columns, wire, strict=True):
        assert {each.value for each in published} - {"unknown"} == {each.value for each in stored}


def test_every_schema_of_this_release_is_stored_and_found(database: Database) -> None:
    lookup, schemas = lookup_in(database.url), all_schemas()
    assert len(schemas) >= 1
    for schema in schemas:
        assert lookup(schema.fingerprint) == schema.text
        assert fingerprint(schema.text) == schema.fingerprint
    for _ in range(2):
        stored = database.rows("SELECT fingerprint, name, version, schema FROM schemas ORDER BY fingerprint")
        assert stored == sorted((s.fingerprint, s.name, s.version, s.text) for s in schemas)
        database.within(store_schemas)  # once more: it changes nothing


def test_release_without_a_new_migration_stores_its_schemas_and_keeps_others(fresh_database: Database) -> None:
    schema, newer = all_schemas()[0], b"\x01" * 8
    fresh_database.execute("DELETE FROM schemas WHERE fingerprint = %s", [schema.fingerprint])
    fresh_database.execute("INSERT INTO schemas VALUES (%s, 'x.New', '9.0.0', '\"string\"')", [newer])
    assert migrate(fresh_database.url) == []
    lookup = lookup_in(fresh_database.url)
    assert (lookup(schema.fingerprint), lookup(newer)) == (schema.text, '"string"')


def test_unknown_fingerprint_is_not_found(database: Database) -> None:
    lookup = lookup_in(database.url)
    assert [lookup(b"\x02" * 8) for _ in range(2)] == [None, None]
    assert lookup(all_schemas()[0].fingerprint) == all_schemas()[0].text


def test_unreachable_database_is_not_an_unknown_schema() -> None:
    with pytest.raises(Unavailable):
        lookup_in("postgresql://127.0.0.1:1/none")(b"\x03" * 8)
