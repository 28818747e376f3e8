"""Each finding of `tidewheel doctor`, where it is true on a real installation."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from threading import Event
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AlterConfigOpType,  # type: ignore[attr-defined]
    ConfigEntry,  # type: ignore[attr-defined]
    ConfigResource,  # type: ignore[attr-defined]
    ResourceType,  # type: ignore[attr-defined]
)
from psycopg import sql
from psycopg.types.json import Jsonb
from pydantic import SecretStr

from tests.control.cli.command import NO_DATABASE, tidewheel
from tests.fixtures.acts import ending
from tests.fixtures.database import Database
from tests.fixtures.services import Fleet, admin_of, delete_topics, until
from tests.relay.topics import make_topics
from tidewheel.control.doctor.check import Check, Context, Limits, Report, run_checks
from tidewheel.control.doctor.doctor import CHECKS, Broker, BrokerAnswer, diagnose
from tidewheel.control.reads.findings import Finding, Severity
from tidewheel.jobs.values import format_duration
from tidewheel.kafka.topics import Topics, apply_topics
from tidewheel.local.postgres import server_account
from tidewheel.local.stack import StackInfo
from tidewheel.postgres.partitions import coming_days
from tidewheel.presence import Presence
from tidewheel.runs import RunState
from tidewheel.settings.connections import Connections
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.settings.services import shared_settings

_OF_KAFKA = {"broker", "topics"}
DEBIANS_SERVERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def examine(database: Database, limits: Limits | None = None) -> list[Finding]:
    """Return the findings of all checks but those that ask Kafka."""
    settings = Connections.load(database_url=SecretStr(database.url))
    checks = [check for check in CHECKS if check.name not in _OF_KAFKA]
    return list(run_checks(checks, Context(settings, limits or Limits())).findings)


def about(findings: list[Finding], check: str) -> Finding:
    found = next(each for each in findings if each.check == check)
    assert found.remedy
    assert found.evidence
    return found


def overdue_timer(database: Database) -> None:
    database.submit(schedule="@every 1h")
    database.execute("UPDATE timers SET due_at = tidewheel_now() - interval '1 h'")


def old_message(database: Database) -> None:
    database.submit()
    database.trigger()
    database.execute("UPDATE outbox SET publish_at = tidewheel_now() - interval '1 h'")


def unhandled_run(database: Database) -> None:
    database.submit()
    database.trigger()
    database.execute("UPDATE job_runs SET publish_at = tidewheel_now() - interval '1 min'")


def old_transaction(database: Database) -> None:
    database.connection().execute("SELECT txid_current()")


def quarantined_job(database: Database) -> None:
    database.submit(schedule="@every 1h")
    set_aside(database)


def set_aside(database: Database, error: str = "no such zone") -> None:
    """Quarantine every job."""
    database.execute("UPDATE timers SET due_at = 'infinity', hold_reason = 'quarantine'")
    database.execute(
        "INSERT INTO quarantine (kind, tenant, job_id, error, created_at)"
        " SELECT 'job', tenant, job_id, %s, tidewheel_now() FROM jobs",
        [error],
    )


def blocked_key(database: Database) -> None:
    database.submit(ordering_key="a b")
    database.end(ending(database.begin(database.trigger()), RunState.FAILED))
    database.trigger()


def refused_message(database: Database) -> None:
    database.execute(
        "INSERT INTO quarantine (kind, topic, error, created_at) VALUES ('outbox', 'a.b', 'too large', tidewheel_now())"
    )


def many_connections(database: Database) -> None:
    """Open one: the limit of this test is below it."""
    database.connection()


def lenient_executor(database: Database) -> None:
    settings = ExecutorSettings.load(message_signatures="warn")
    at = {"settings": Jsonb(shared_settings(settings))}
    database.execute(
        "INSERT INTO processes SELECT gen_random_uuid(), 'executor', 'here', 7, '0.1.0', %(settings)s, now, now, now"
        "  FROM tidewheel_now() AS now",
        at,
    )


def old_archive(database: Database) -> None:
    database.execute("INSERT INTO archived_days (day, runs, bytes, id_days) VALUES ('2026-01-01', 1, 1, '{}')")


def late_retention(database: Database) -> None:
    database.execute(
        "INSERT INTO retention_state (passed_at, behind, held_by) VALUES (tidewheel_now(), '3 d', 'attempts: a run')"
    )


def no_retention(database: Database) -> None:
    database.execute("INSERT INTO retention_state (passed_at) VALUES (tidewheel_now() - interval '1 d')")


FAULTS: dict[str, tuple[Callable[[Database], None], Severity, str]] = {
    "timers": (overdue_timer, Severity.ERROR, "tidewheel service scheduler"),
    "outbox": (old_message, Severity.ERROR, "tidewheel service relay"),
    "handlers": (unhandled_run, Severity.ERROR, "tidewheel service executor --queues default"),
    "vacuum": (old_transaction, Severity.WARNING, "SELECT pg_terminate_backend("),
    "order": (blocked_key, Severity.ERROR, "tidewheel admin ordering-key unblock 'a b' --tenant default"),
    "quarantine": (quarantined_job, Severity.ERROR, "tidewheel job release job"),
}


OTHER_FAULTS: dict[str, tuple[str, Callable[[Database], None], Limits, str, str]] = {
    "a lenient executor": (
        "signatures", lenient_executor, Limits(), "message_signatures is warn on executor here pid 7",
        "unset TIDEWHEEL_MESSAGE_SIGNATURES",
    ),
    "a message that Kafka has refused": (
        "quarantine", refused_message, Limits(), "too large", "SELECT * FROM quarantine WHERE kind = 'outbox'",
    ),
    "an archive that is left behind": (
        "archive", old_archive, Limits(), "2026-01-01 is the last archived day", "tidewheel admin archive run",
    ),
    "rows that stay": ("retention", late_retention, Limits(), "attempts: a run", "end what needs these rows"),
    "no retention": ("retention", no_retention, Limits(), "the last pass ended", "read the schedulers' log"),
    "few connections left": (
        "server", many_connections, Limits(connections_share=0.0), "connections are open", "raise max_connections",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", OTHER_FAULTS)
def test_each_warning_about_the_database_has_evidence_and_a_remedy(database: Database, fault: str) -> None:
    check, make, limits, evidence, remedy = OTHER_FAULTS[fault]
    assert [each for each in examine(database) if each.check == check] == []
    make(database)
    found = about(examine(database, limits), check)
    assert found.severity is Severity.WARNING
    assert evidence in found.evidence
    assert remedy in found.remedy


@pytest.mark.parametrize("check", FAULTS)
def test_each_fault_of_the_database_is_found(database: Database, check: str) -> None:
    limits = Limits(transaction_age=timedelta(0) if check == "vacuum" else Limits().transaction_age)
    assert [each for each in examine(database, limits) if each.check == check] == []
    make, severity, remedy = FAULTS[check]
    make(database)
    found = about(examine(database, limits), check)
    assert found.severity is severity
    assert remedy in found.remedy


def test_queue_that_is_held_back_is_found_and_its_messages_are_no_fault(database: Database) -> None:
    old_message(database)
    lane = {"queue": "default", "lane": "standard", "complete": True, "tenants": 2}
    held = [
        [lane | {"since": "2026-11-01T10:00:00Z", "runs": 1200, "largest": {"acme": 1200}}],
        [lane | {"since": "2026-11-01T09:00:00Z", "runs": 4, "largest": {"acme": 3, "b": 1}}],
    ]
    for each in held:
        database.execute(
            "INSERT INTO members (member_id, role, name, last_heartbeat_at, started_at, held)"
            " VALUES (gen_random_uuid(), 'relay', 'r', tidewheel_now(), tidewheel_now(), %s)",
            [Jsonb(each)],
        )
    findings = examine(database)
    found = about(findings, "fairness")
    words = "1,204 runs since 2026-11-01T09:00:00Z (acme 1,203, b 1)"
    assert (found.severity, found.evidence) == (Severity.WARNING, words)
    assert "tidewheel admin tenant limits acme --in-flight N" in found.remedy
    assert not [each for each in findings if each.what == "messages of lane standard are not published"]
    out = tidewheel(database, "status").out.replace("\n  ", " ")
    assert f"held back: queue default, lane standard: {words}" in out


def test_roles_that_do_not_live_are_found(database: Database) -> None:
    database.submit()
    whats = [each.what for each in examine(database) if each.check == "services"]
    assert [what.split(":")[0] for what in whats] == [
        "no scheduler is running", "no relay is running", "no executor is running", "no intake is running",
    ]  # fmt: skip


def test_drift_of_the_schema_is_found(fresh_database: Database) -> None:
    fresh_database.execute("DROP INDEX job_runs_by_job")
    found = about(examine(fresh_database), "schema")
    assert (found.severity, found.what) == (
        Severity.WARNING, "the index job_runs_by_job is missing, although its migration is applied",
    )  # fmt: skip
    fresh_database.execute("DROP TABLE cancelled_jobs")
    assert any("the table cancelled_jobs is missing" in each.what for each in examine(fresh_database))
    fresh_database.execute("DELETE FROM tidewheel_migrations WHERE name = (SELECT max(name) FROM tidewheel_migrations)")
    found = about(examine(fresh_database), "schema")
    assert (found.severity, found.remedy) == (Severity.ERROR, "tidewheel migrate")


def test_old_and_missing_key_of_run_messages_are_found(fresh_database: Database) -> None:
    assert [each for each in examine(fresh_database) if each.check == "signatures"] == []
    fresh_database.execute("UPDATE message_keys SET created_at = created_at - interval '366 days'")
    old = about(examine(fresh_database), "signatures")
    assert (old.severity, old.evidence) == (Severity.WARNING, "created 366 days ago")
    fresh_database.execute("DELETE FROM message_keys")
    missing = about(examine(fresh_database), "signatures")
    assert (missing.severity, missing.remedy) == (Severity.ERROR, "tidewheel admin secrets rotate run-messages")


def test_key_of_task_tokens_that_applications_read_is_found(fresh_database: Database) -> None:
    fresh_database.execute("UPDATE settings SET value = (SELECT to_jsonb(encode(secret, 'hex')) FROM task_token_keys)"
                           " WHERE name = 'task_token_key'")  # fmt: skip
    found = about(examine(fresh_database), "signatures")
    assert (found.severity, found.remedy) == (Severity.WARNING, "tidewheel admin secrets rotate task-tokens")
    fresh_database.execute("DELETE FROM task_token_keys")
    assert about(examine(fresh_database), "signatures").severity is Severity.ERROR


def test_api_key_in_use_that_expires_soon_is_found(fresh_database: Database) -> None:
    fresh_database.client.api_keys.create("ci", ["read"], lifetime=timedelta(days=13))
    assert [each for each in examine(fresh_database) if each.check == "keys"] == []
    fresh_database.execute("UPDATE api_keys SET last_used_at = tidewheel_now()")
    found = about(examine(fresh_database), "keys")
    assert found.severity is Severity.WARNING
    assert found.what.startswith("the API key ci is in use and expires in 1")  # 13 days, or a moment less


def test_invalid_index_is_found(fresh_database: Database) -> None:
    """A CREATE INDEX CONCURRENTLY that fails leaves one."""
    for key in ("a", "b"):
        fresh_database.submit(key)
    fresh_database.execute("DROP INDEX job_runs_by_job")
    with pytest.raises(psycopg.errors.UniqueViolation):
        fresh_database.execute("CREATE UNIQUE INDEX CONCURRENTLY job_runs_by_job ON jobs (tenant)")
    found = about(examine(fresh_database), "schema")
    assert (found.severity, found.what) == (Severity.WARNING, "the index job_runs_by_job is invalid")
    assert "REINDEX INDEX CONCURRENTLY job_runs_by_job" in found.remedy


def test_replication_slot_without_a_reader_is_found(database: Database) -> None:
    name = f"t{uuid4().hex[:10]}"
    limits = Limits(slot_bytes=0)

    def is_found() -> list[Finding]:
        return [each for each in examine(database, limits) if f"slot {name} " in each.what]

    assert is_found() == []
    database.rows("SELECT pg_create_physical_replication_slot(%s, true)", [name])
    try:
        [found] = is_found()
    finally:
        database.rows("SELECT pg_drop_replication_slot(%s)", [name])
    assert (found.severity, found.evidence.endswith(" MiB of WAL")) == (Severity.WARNING, True)
    assert f"pg_drop_replication_slot('{name}')" in found.remedy


def test_missing_partitions_are_found(fresh_database: Database) -> None:
    last = fresh_database.within(coming_days)[-1]
    fresh_database.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(f"attempts_{last:%Y%m%d}")))
    found = about(examine(fresh_database), "partitions")
    assert (found.severity, found.evidence) == (Severity.WARNING, f"1 of 20: attempts of {last}")


def test_differing_settings_clocks_and_releases_are_found(database: Database) -> None:
    settings = (Connections.load(), Connections.load(misfire_after=timedelta(seconds=90)))
    rows = [Presence(database.url, each, role="relay", process_id=uuid4()) for each in settings]
    for each in rows:
        each.start()
    try:
        until(lambda: database.count("processes") == 2, "both have rows")
        found = about(examine(database), "settings")
        assert found.what == "TIDEWHEEL_MISFIRE_AFTER differs between processes, but must be the same for all"
        for each in settings:
            assert f"{format_duration(each.misfire_after)} on relay " in found.evidence
    finally:
        for each in rows:
            each.leave()
    database.execute(
        "INSERT INTO processes SELECT gen_random_uuid(), 'api', 'host-' || v, 7, v, '{}', at + interval '1 h', at, at"
        "  FROM unnest(ARRAY['0.1.0', '0.2.0']) AS v, (SELECT tidewheel_now() AS at) AS seen"
    )
    findings = examine(database)
    assert about(findings, "releases").evidence == "0.1.0, 0.2.0"
    assert [each.what for each in findings if each.check == "clock"] == [
        "the clock of api host-0.1.0 pid 7 differs from the database's",
        "the clock of api host-0.2.0 pid 7 differs from the database's",
    ]


def note_of_statements(url: str) -> str:
    [check] = [check for check in CHECKS if check.name == "statements"]
    report = run_checks([check], Context(Connections.load(database_url=SecretStr(url))))
    assert (report.findings, report.passed) == ((), ("statements",))
    [note] = report.notes
    return note


def test_doctor_notes_that_statements_are_not_counted(database: Database) -> None:
    assert "run CREATE EXTENSION pg_stat_statements" in note_of_statements(database.url)
    assert json.loads(tidewheel(database, "doctor", "-o", "json").out)["notes"] == [note_of_statements(database.url)]


@pytest.mark.process
@pytest.mark.skipif(not DEBIANS_SERVERS, reason="the wheel's PostgreSQL has no pg_stat_statements: install Debian's")
def test_doctor_notes_the_slowest_statements() -> None:
    account, folder = server_account(), Path(mkdtemp())
    if account is not None:
        os.chown(folder, account.uid, account.gid)
    user, group = (None, None) if account is None else (account.uid, account.gid)
    others: list[int] | None = None if account is None else []

    def run(program: str, *arguments: str) -> None:
        command = [DEBIANS_SERVERS[-1] / program, "-D", folder / "data", *arguments]
        subprocess.run(
            command, check=True, cwd=folder, stdout=subprocess.DEVNULL, user=user, group=group, extra_groups=others
        )

    run("initdb", "--username=tidewheel", "--auth=trust", "--no-sync")
    url, options = f"postgresql://tidewheel@/postgres?host={folder}", f"-k {folder} -c listen_addresses="
    try:
        run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        with psycopg.connect(url) as connection:
            connection.execute("CREATE SCHEMA counts")
            connection.execute("CREATE EXTENSION pg_stat_statements SCHEMA counts")
        assert "run CREATE EXTENSION pg_stat_statements" in note_of_statements(url), "the server has not loaded it"
        options += " -c shared_preload_libraries=pg_stat_statements"
        run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "restart")
        with psycopg.connect(url) as connection:
            for _ in range(100):
                connection.execute("SELECT pg_sleep(0.001)")
        assert "ms in 100 calls, SELECT pg_sleep($1)" in note_of_statements(url)
    finally:
        run("pg_ctl", "-m", "immediate", "stop")
        rmtree(folder)


@pytest.mark.parametrize("writable", [False, True], ids=["read-only", "accepting writes again"])
def test_restore_that_has_not_ended_is_found_by_its_name(fresh_database: Database, *, writable: bool) -> None:
    """A killed restore leaves its row in `settings`, and a database that others can only read."""
    state = Jsonb({"since": "2026-11-20T08:00:00+00:00", "stopped_at": "2026-11-20T09:00:00+00:00"})
    fresh_database.execute("INSERT INTO settings (name, value) VALUES ('restore', %s)", [state])
    holder = fresh_database.connection(autocommit=True)
    if not writable:
        name = sql.Identifier(holder.info.dbname)
        holder.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
    found = about(examine(fresh_database), "database")
    assert (found.severity, found.what) == (Severity.ERROR, "a restore was interrupted: no service starts")
    assert found.evidence == "the restore reads Kafka from 2026-11-20T08:00:00+00:00; no process is working on it"
    assert found.remedy.startswith("`tidewheel admin restore --yes`")
    holder.execute("BEGIN")
    holder.execute("LOCK TABLE restore_lock IN SHARE ROW EXCLUSIVE MODE")
    found = about(examine(fresh_database), "database")
    assert (found.what, found.remedy) == ("a restore is under way: services wait", "wait for the restore to end")
    done = tidewheel(fresh_database, "doctor")
    assert (done.code, "a restore is under way" in done.out, "does not answer" in done.out) == (2, True, False)


def test_database_that_can_only_be_read_is_no_restore(fresh_database: Database) -> None:
    holder = fresh_database.connection(autocommit=True)
    name = sql.Identifier(holder.info.dbname)
    holder.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
    found = about(examine(fresh_database), "database")
    assert found.what == "the database does not answer"
    assert "name the primary" in found.evidence


def test_full_disk_of_the_local_stack_is_found(tmp_path: Path) -> None:
    [disk] = [check for check in CHECKS if check.name == "disk"]
    for limit, count in ((0, 0), (1 << 62, 1)):
        context = Context(Connections.load(), Limits(free_bytes=limit), data_dir=tmp_path)
        assert len(run_checks([disk], context).findings) == count


def test_check_that_fails_or_hangs_ends_no_other() -> None:
    def fail(context: Context) -> Iterator[Finding]:
        del context
        message = "postgresql://anna:secret@db/x"
        raise OSError(message)
        yield

    def hang(context: Context) -> Iterator[Finding]:
        del context
        Event().wait()
        yield from ()

    def well(context: Context) -> Iterator[Finding]:
        del context
        yield from ()

    checks = [Check("fails", fail), Check("hangs", hang), Check("well", well), Check("after", well, needs="hangs")]
    report = run_checks(checks, Context(Connections.load(), Limits(check_seconds=2.0)))
    assert [each.what for each in report.findings] == ["the check fails failed", "the check hangs did not end"]
    assert "secret" not in report.findings[0].evidence
    assert (report.passed, report.skipped) == (("well",), ("after",))


@pytest.fixture
def topics(info: StackInfo) -> Iterator[Topics]:
    """Topics of this test's own, deleted at the end."""
    made = Topics(f"t{uuid4().hex[:10]}")
    yield made
    delete_topics(info.kafka, made.prefix)


@pytest.mark.kafka
def test_lag_of_requests_is_read_beside_the_pages_and_kept_without_a_broker(topics: Topics, info: StackInfo) -> None:
    settings = Connections.load(
        topic_prefix=topics.prefix, kafka_properties=info.kafka_properties, kafka_bootstrap=info.bootstrap
    )
    apply_topics(info.kafka, topics)
    producer = Producer({**info.kafka})
    for _ in range(3):
        producer.produce(topics.requests, value=b"v")
    assert producer.flush(30) == 0
    broker, seconds = Broker(settings, topics), iter(range(0, 100_000, 10))

    def asked() -> BrokerAnswer:
        return broker.last(datetime(2026, 11, 21, tzinfo=UTC) + timedelta(seconds=next(seconds)))

    assert asked() == BrokerAnswer(), "no page waits"
    until(lambda: asked().requests == 3, "Kafka has answered")
    assert asked().behind == [(f"{topics.requests}.intake", topics.requests, 3)]


@pytest.mark.landing
@pytest.mark.kafka
def test_missing_topics_and_changed_settings_are_found(topics: Topics, info: StackInfo, database: Database) -> None:
    settings = Connections.load(
        topic_prefix=topics.prefix, kafka_properties=info.kafka_properties, kafka_bootstrap=info.bootstrap
    )
    checks = [check for check in CHECKS if check.name in _OF_KAFKA]

    def findings() -> list[Finding]:
        return list(run_checks(checks, Context(settings)).findings)

    missing = findings()
    assert {each.severity for each in missing} == {Severity.ERROR}
    assert f"the topic {topics.requests} is missing" in {each.what for each in missing}
    apply_topics(info.kafka, topics)
    until(lambda: not findings(), "nothing is wrong")
    strict = settings.model_copy(update={"replication": 3})
    thin = {each.what: each for each in run_checks(checks, Context(strict)).findings}
    few = thin[f"partitions of the topic {topics.requests} have too few replicas"]
    assert (few.severity, few.evidence) == (Severity.WARNING, "1, TIDEWHEEL_REPLICATION is 3")
    assert "kafka-reassign-partitions.sh" in few.remedy
    entry = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topics.completions, incremental_configs=[entry])
    admin = admin_of(info.kafka)  # kept until the result: its end would abort the request
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
    until(findings, "the broker has the change")
    [found] = findings()
    assert (found.severity, found.what) == (
        Severity.WARNING, f"retention.ms of the topic {topics.completions} differs from what Tidewheel sets",
    )  # fmt: skip
    assert found.evidence == "it is 1000, Tidewheel sets 604800000"
    make_topics(info.kafka, [topics.requests_of("nobody")])
    installation = replace(database.installation, topics=topics)
    report = run_checks(checks, Context(settings, url=database.url, installation=installation))
    lacking = {each.what: each.remedy for each in report.findings}
    assert f"the topic {topics.replies_of('nobody')} is missing" in lacking
    remedy = lacking[f"the topic {topics.requests_of('nobody')} belongs to no tenant"]
    assert remedy.startswith("`tidewheel admin tenant create nobody`, or delete")


@pytest.mark.slow  # a Kafka client tries for ten seconds
def test_doctor_works_while_database_and_broker_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Connections.load(database_url=SecretStr(NO_DATABASE), kafka_bootstrap="127.0.0.1:1")
    report: Report = diagnose(settings)
    assert [(each.check, each.severity) for each in report.findings] == [
        ("database", Severity.ERROR), ("broker", Severity.ERROR),
    ]  # fmt: skip
    assert (report.passed, report.skipped[-1]) == (("disk",), "topics")
    monkeypatch.setenv("TIDEWHEEL_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    done = tidewheel(NO_DATABASE, "doctor")
    assert done.code == 2
    assert done.out.startswith("error: the database does not answer\n  evidence: ")


@pytest.mark.slow
@pytest.mark.kafka
def test_healthy_installation_has_no_finding(fleet: Fleet, info: StackInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.start_all()
    fleet.wait_started()
    monkeypatch.setenv("TIDEWHEEL_TOPIC_PREFIX", fleet.topics.prefix)
    monkeypatch.setenv("TIDEWHEEL_KAFKA_PROPERTIES", str(info.kafka_properties))
    monkeypatch.setenv("TIDEWHEEL_KAFKA_BOOTSTRAP", info.bootstrap)
    fleet.until(lambda: fleet.database.count("processes") >= 4, "each process has a row")
    settings = Connections.load(database_url=SecretStr(fleet.database.url))
    # The fleet's topics have fewer partitions than an installation's.
    findings: list[Finding] = []

    def is_healthy() -> bool:
        """Look again: a group that has not joined, or a process that is stalled, is a finding."""
        findings[:] = [each for each in diagnose(settings).findings if each.check != "topics"]
        return not findings

    fleet.until(is_healthy, "no check finds anything")
