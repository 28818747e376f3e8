"""The promises of the tables beyond their columns."""

from tests.fixtures.acts import EXECUTOR, about
from tests.fixtures.database import Database
from tidewheel.transitions.claim import Claim, claim_runs

# Facts of the installation, of processes and of messages; everything else belongs to a tenant.
WITHOUT_TENANT = {
    "archive_lock",
    "archived_days",
    "claims_lock",
    "kept_since_lock",
    "relay_slices",
    "restore_lock",
    "retention_lock",
    "tidewheel_migrations",
    "settings",
    "members",
    "executors",
    "processes",
    "intake_offsets",
    "schemas",
    "message_keys",
    "sign_ins",
    "task_token_keys",
    "run_days",
    "retention_state",
    "standby",
    "standby_changes",
    "standby_records",
    "standby_rows",
    "tenant_roles",  # which outlive their tenant
}


def test_every_table_but_the_listed_ones_has_a_tenant(shared_database: Database) -> None:
    found = shared_database.rows(
        "SELECT c.relname, bool_or(a.attname = 'tenant')"
        " FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid"
        " WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
        " GROUP BY c.relname"
    )
    assert {name for name, has_tenant in found if not has_tenant} == WITHOUT_TENANT


def test_columns_that_each_release_needs_exist(shared_database: Database) -> None:
    wanted = {
        ("jobs", "bucket"), ("jobs", "shard"), ("finished_runs", "cause"), ("finished_runs", "queue"),
        ("finished_runs", "lane"), ("job_runs", "overlap"), ("job_runs", "failed_attempts"),
        ("job_runs", "lost_attempts"), ("job_runs", "deadline_at"), ("job_runs", "external_deadline_at"),
        ("run_inputs", "checkpoint"), ("timers", "catch_up_end"),
    }  # fmt: skip
    found = shared_database.rows(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
    )
    assert wanted <= set(found)


def test_first_migration_writes_the_settings(shared_database: Database) -> None:
    settings = dict(shared_database.rows("SELECT name, value FROM settings"))
    assert settings.keys() == {"service_roles", "shards", "task_token_key", "tenant_role", "tzdata"}
    assert settings["shards"] == 64


def test_clock_is_stable_within_a_statement_and_advances_within_a_transaction(shared_database: Database) -> None:
    assert shared_database.value("SELECT provolatile FROM pg_proc WHERE proname = 'tidewheel_now'") in {"s", b"s"}
    with shared_database.transaction() as connection:
        first = connection.execute("SELECT tidewheel_now()").fetchone()
        second = connection.execute("SELECT tidewheel_now()").fetchone()
    assert first is not None
    assert second is not None
    assert str(first[0]) < str(second[0])


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
    updated, hot = fresh_database.rows(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'job_runs'"
    )[0]
    assert updated == hot == len(runs)
