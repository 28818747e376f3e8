"""Checks that read PostgreSQL."""

import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from shlex import quote
from typing import cast
from uuid import UUID

import psycopg

from tidewheel.clock import SystemClock
from tidewheel.control.doctor.check import Context
from tidewheel.control.reads.findings import Finding, Severity
from tidewheel.control.reads.fleet import (
    age_text,
    find_unhandled_runs,
    read_outbox,
    read_overdue,
    read_services,
    read_status,
)
from tidewheel.control.reads.workload import read_held_lanes
from tidewheel.errors import MigrationError, SettingsError, Unavailable, UnsupportedServer
from tidewheel.migrations.row_security import REMEDY, ownership_problem, role_problem, unsecured_tables
from tidewheel.migrations.runner import MigrationState, created_names, is_post, migrations, status
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.held_lock import find_lock_holders
from tidewheel.postgres.partitions import TABLES, coming_days, day_of, days_ahead, missing_partitions
from tidewheel.postgres.session import NEEDS_SESSION, POOLED_BY_TRANSACTION, Conn, OnlyReads, shares_sessions
from tidewheel.postgres.statements import Statements
from tidewheel.settings.services import ApiSettings
from tidewheel.transitions.installation import Installation, read_installation

_SQL = Statements("tidewheel.control.doctor")

_CREATED = re.compile(r"^CREATE (?:UNIQUE )?(TABLE|INDEX|VIEW) (\w+)(?: ON (\w+))?", re.MULTILINE)
_DROPPED = re.compile(r"^DROP TABLE (?:IF EXISTS )?(.*);", re.MULTILINE)
_SHOWN = 5  # of many alike
_COUNTED_KEYS = 1000
_MEBIBYTE = 1 << 20
_LATE = timedelta(days=3)  # yesterday may be archived today, by a call that runs once a day and has failed once


def check_database(context: Context) -> Iterator[Finding]:
    """Check that the database answers, can be written to, and is not being restored."""
    try:
        context.url = context.settings.database()
        is_shared = shares_sessions(context.url) and not isinstance(context.settings, ApiSettings)
        with context.connection() as connection:
            restore = _find_restore(connection)
    except SettingsError as error:
        if isinstance(error, UnsupportedServer):
            yield Finding("database", Severity.ERROR, "the database server is too old", str(error), "upgrade it")
            return
        yield Finding(
            "database", Severity.ERROR, "no database is configured", str(error), "tidewheel dev, or tidewheel up"
        )
        return
    except Unavailable as error:
        if isinstance(error, OnlyReads) and (restore := _find_read_only_restore(context)):
            yield restore
            return
        remedy = "start PostgreSQL, or correct TIDEWHEEL_DATABASE_URL; `tidewheel status` shows the local stack"
        yield Finding("database", Severity.ERROR, "the database does not answer", str(error), remedy)
    else:
        if is_shared:
            evidence = "two connections share one session of the server"
            yield Finding("database", Severity.ERROR, POOLED_BY_TRANSACTION, evidence, NEEDS_SESSION)
        if restore:
            yield restore


def check_schema(context: Context) -> Iterator[Finding]:
    """Check that every migration of this release is applied, and that its tables and indexes exist."""
    try:
        pending = [each.name for each in status(context.url or "") if each.state is MigrationState.PENDING]
        later = [name for name in pending if is_post(name)]
    except MigrationError as error:
        remedy = "install the release that migrated this database, or restore the released file"
        yield Finding("schema", Severity.ERROR, "an applied migration differs from its file", str(error), remedy)
        return
    if len(pending) > len(later):
        what = "the database lacks migrations of this release"
        yield Finding("schema", Severity.ERROR, what, ", ".join(pending), "tidewheel migrate")
        return
    if later:
        what = "an upgrade is unfinished: the migrations after the last process of the previous release are pending"
        yield Finding("schema", Severity.WARNING, what, ", ".join(later), "tidewheel migrate --post")
    with context.connection() as connection:
        text = "".join(each.text for each in migrations() if each.name not in later)
        gone = {name for names in _DROPPED.findall(text) for name in names.split(", ")}
        kinds = {name: kind for kind, name, table in _CREATED.findall(text) if gone.isdisjoint((name, table))}
        rows = connection.execute(_SQL["find_missing_relations"], {"names": list(kinds)}).fetchall()
        context.installation = read_installation(connection, context.settings)
    for name, is_invalid in cast("list[tuple[str, bool]]", rows):
        kind = kinds[name].lower()
        if is_invalid:
            remedy = f"tidewheel admin psql -c 'REINDEX INDEX CONCURRENTLY {name}'"
            yield Finding("schema", Severity.WARNING, f"the index {name} is invalid", "pg_index.indisvalid", remedy)
        else:
            severity = Severity.WARNING if kind == "index" else Severity.ERROR
            what = f"the {kind} {name} is missing, although its migration is applied"
            remedy = f"create it again with the statement in tidewheel/migrations: CREATE {kind.upper()} {name} …"
            yield Finding("schema", severity, what, "no relation of this name", remedy)


def check_isolation(context: Context) -> Iterator[Finding]:
    """Check that sessions which act for a tenant are bound by row-level security."""
    role = _installation(context).tenant_role
    what, wanted = "row-level security does not bind the API and Client", context.settings.role_of_tenants
    with context.connection() as connection:
        hidden = ownership_problem(connection)
        unsecured = unsecured_tables(connection, created_names())
        problem = None if role is None else role_problem(connection, role)
        acts = connection.execute(_SQL["may_act"]).fetchone() == (True,)
    if hidden is not None:
        yield Finding("isolation", Severity.ERROR, "services see no row of any tenant", *hidden)
    if unsecured:
        evidence = ", ".join(unsecured)
        yield Finding("isolation", Severity.ERROR, "tables lack their policy", evidence, "tidewheel migrate")
    if problem is not None and not acts:
        raise psycopg.errors.InsufficientPrivilege(problem)
    if problem is not None:
        yield Finding("isolation", Severity.ERROR, f"no session can act as the role {role}", problem, REMEDY)
    elif role is None and wanted:
        yield Finding("isolation", Severity.WARNING, what, f"no role {wanted} is recorded", REMEDY)


def check_locks(context: Context) -> Iterator[Finding]:
    """Check that no session holds up claims, and no stranger holds a lock of services."""
    with context.connection() as connection:
        holders = find_lock_holders(connection)
    for holder in holders:
        yield Finding("locks", Severity.WARNING, "a session holds a lock of services", holder.text, holder.remedy)


def check_server(context: Context) -> Iterator[Finding]:
    """Check that the server has connections left, and that its clock is near this machine's."""
    before = SystemClock().now()
    with context.connection() as connection:
        row = connection.execute(_SQL["read_server"], binary=True).fetchone()
        after = SystemClock().now()
    now, used, allowed = cast("tuple[datetime, int, int]", row)
    if used > allowed * context.limits.connections_share:
        what = "the server has few connections left: starting services may be refused"
        remedy = "raise max_connections, or put a pooler in session mode in front of the server"
        yield Finding("server", Severity.WARNING, what, f"{used} of {allowed} connections are open", remedy)
    limit = context.settings.max_clock_skew
    skew = max(before - now, now - after, timedelta(0))
    if skew > limit:
        what = "the clock of this machine differs from the database's: this machine's logs show a different time"
        remedy = "synchronise both clocks (chrony or systemd-timesyncd)"
        evidence = f"{skew.total_seconds():.3f} s, allowed {age_text(limit)}"
        yield Finding("clock", Severity.WARNING, what, evidence, remedy)


def check_fleet(context: Context) -> Iterator[Finding]:
    """Check that each role lives, nothing is frozen, and clocks, releases and settings agree."""
    with context.connection() as connection:
        found = read_status(connection, _installation(context).shards)
    yield from (each for each in found.problems if each.check != "handlers")  # of the check below
    live = [each for each in found.services if not each.is_silent]
    limit = context.settings.max_clock_skew
    for each in live:
        if abs(each.skew_seconds or 0.0) > limit.total_seconds():
            what = f"the clock of {each.name} differs from the database's"
            evidence = f"{each.skew_seconds:+.3f} s, allowed {age_text(limit)}"
            yield Finding("clock", Severity.WARNING, what, evidence, f"synchronise the clock of {each.host}")
    releases = sorted({each.version for each in live if each.version})
    if len(releases) > 1:
        what = "processes of several releases run"
        yield Finding(
            "releases", Severity.WARNING, what, ", ".join(releases), "finish the deploy: restart the older processes"
        )
    values: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for each in live:
        for name, value in (each.settings or {}).items():
            values[name][value].append(each.name)
    for name, by_value in sorted(values.items()):
        if len(by_value) > 1:
            what = f"TIDEWHEEL_{name.upper()} differs between processes, but must be the same for all"
            evidence = "; ".join(f"{value} on {', '.join(sorted(names))}" for value, names in sorted(by_value.items()))
            remedy = "set one value for all processes, and restart the processes with a different value"
            yield Finding("settings", Severity.WARNING, what, evidence, remedy)
    if accepting := values["message_signatures"]["warn"]:
        what = "executors accept run messages that no relay has signed"
        evidence = f"message_signatures is warn on {', '.join(accepting)}"
        remedy = "unset TIDEWHEEL_MESSAGE_SIGNATURES once all relays sign"
        yield Finding("signatures", Severity.WARNING, what, evidence, remedy)


def check_timers(context: Context) -> Iterator[Finding]:
    """Check that timers fire in time."""
    with context.connection() as connection:
        overdue, age = read_overdue(connection, _installation(context).shards)
    if age > context.limits.timer_age:
        evidence = f"{overdue:,} timers are overdue, the oldest for {age_text(age)}"
        remedy = "start a scheduler: tidewheel service scheduler; if one is running, its log shows the error"
        yield Finding("timers", Severity.ERROR, "due jobs do not fire", evidence, remedy)


def check_outbox(context: Context) -> Iterator[Finding]:
    """Check that messages leave the outbox."""
    with context.connection() as connection:
        lanes = read_outbox(connection)
        held = {each.lane for each in read_held_lanes(connection)}  # by a relay that lives: check_fleet reports them
    for each in lanes:
        if each.oldest > context.limits.message_age and each.lane not in held:
            evidence = f"{each.due:,} messages wait, the oldest for {age_text(each.oldest)}"
            remedy = (
                "start a relay: tidewheel service relay; if one is running, `tidewheel admin topics list` and "
                "its log show the cause"
            )
            yield Finding("outbox", Severity.ERROR, f"messages of lane {each.lane} are not published", evidence, remedy)


def check_handlers(context: Context) -> Iterator[Finding]:
    """Check that each due run has a live executor with its handler or target."""
    with context.connection() as connection:
        yield from find_unhandled_runs(connection)


def check_partitions(context: Context) -> Iterator[Finding]:
    """Check that the partitions of today and of the coming days exist."""
    with context.connection() as connection:
        missing = missing_partitions(connection, coming_days(connection))
        ahead = days_ahead(connection)
    if missing:
        names = ", ".join(f"{table} of {day}" for table, day in missing[:_SHOWN])
        severity = Severity.ERROR if ahead < 0 else Severity.WARNING
        evidence = f"{len(missing)} of {len(TABLES) * 5}: {names}"
        remedy = "start a scheduler, which creates them: tidewheel service scheduler; or run `tidewheel migrate`"
        yield Finding("partitions", severity, "daily partitions are missing", evidence, remedy)


def check_retention(context: Context) -> Iterator[Finding]:
    """Check that what is old is removed."""
    with context.connection() as connection:
        row = connection.execute(_SQL["read_retention"], binary=True).fetchone()
    if row is None:
        return
    age, behind, cause = cast("tuple[timedelta, timedelta | None, str | None]", row)
    if age > context.limits.retention_age:
        what = "no scheduler removes old rows"
        remedy = "read the schedulers' log: the loop `removing what is old` names the cause"
        yield Finding("retention", Severity.WARNING, what, f"the last pass ended {age_text(age)} ago", remedy)
    elif behind is not None and behind > context.limits.retention_behind:
        what = f"rows are kept {age_text(behind)} longer than their period"
        remedy = "end what needs these rows: an open run, occurrence or backfill, or a long transaction"
        yield Finding("retention", Severity.WARNING, what, cause or "", remedy)


def check_vacuum(context: Context) -> Iterator[Finding]:
    """Check that nothing keeps vacuum from removing dead rows, or the server from removing WAL."""
    with context.connection() as connection:
        holders = connection.execute(
            _SQL["find_snapshot_holders"], {"older_than": context.limits.transaction_age}
        ).fetchall()
        slots = connection.execute(_SQL["find_idle_slots"]).fetchall()
    for kind, name, application, age in cast("list[tuple[str, str, str, timedelta]]", holders):
        what = "an old transaction keeps vacuum from removing dead rows: claims and polls become slower"
        if kind == "prepared":
            evidence, end = f"prepared transaction {name!r}, {age_text(age)} old", f"ROLLBACK PREPARED '{name}'"
        else:
            evidence = f"process {name} ({application or 'no application_name'}), {age_text(age)} old"
            end = f"SELECT pg_terminate_backend({name})"
        yield Finding("vacuum", Severity.WARNING, what, evidence, f'tidewheel admin psql -c "{end}"')
    for name, kept in cast("list[tuple[str, int]]", slots):
        if kept >= context.limits.slot_bytes:
            what = f"the replication slot {name} has no reader, and the server keeps WAL for it"
            end = f"SELECT pg_drop_replication_slot('{name}')"
            remedy = f'tidewheel admin psql -c "{end}", or start its reader'
            yield Finding("vacuum", Severity.WARNING, what, f"{kept // _MEBIBYTE:,} MiB of WAL", remedy)


def check_quarantine(context: Context) -> Iterator[Finding]:
    """Check that no job and no message is set aside."""
    with context.connection() as connection:
        rows = connection.execute(_SQL["find_quarantined"]).fetchall()
    jobs = [(str(tenant), str(name), str(error)) for kind, tenant, name, error in rows if kind == "job"]
    if jobs:
        tenant, key, error = jobs[0]
        what = f"{len(jobs)} {'jobs are' if len(jobs) > 1 else 'job is'} quarantined: no occurrence fires"
        remedy = f"correct the cause, then tidewheel job release {key} --tenant {tenant}"
        yield Finding("quarantine", Severity.ERROR, what, f"{key}: {error}", remedy)
    for topic, error in ((str(name), str(error)) for kind, _, name, error in rows if kind == "outbox"):
        what = f"Kafka permanently refused messages of {topic}; see the table quarantine"
        remedy = "read and delete them: tidewheel admin psql -c \"SELECT * FROM quarantine WHERE kind = 'outbox'\""
        yield Finding("quarantine", Severity.WARNING, what, error, remedy)
    stopped = [(str(tenant), str(name), str(error)) for kind, tenant, name, error in rows if kind == "release"]
    if stopped:
        tenant, root, error = stopped[0]
        what = f"{len(stopped)} workflow {'occurrences' if len(stopped) > 1 else 'occurrence'} cannot continue"
        remedy = f"correct the cause, then tidewheel workflow resume {root} --tenant {tenant}"
        yield Finding("quarantine", Severity.ERROR, what, error, remedy)


def check_order(context: Context) -> Iterator[Finding]:
    """Check that no failed run blocks an ordering key."""
    with context.connection() as connection:
        rows = connection.execute(_SQL["find_blocked_keys"], {"limit": _COUNTED_KEYS}, binary=True).fetchall()
    if rows:
        tenant, key, run, age = cast("tuple[str, str, UUID, timedelta]", rows[0])
        more = " or more" if len(rows) == _COUNTED_KEYS else ""
        what = (
            f"{len(rows)}{more} {'ordering keys are' if len(rows) > 1 else 'ordering key is'} blocked by a failed run"
        )
        command = f"tidewheel admin ordering-key unblock {quote(key)} --tenant {tenant}"
        remedy = f"correct the cause, then {command}; with --skip the next run starts without a retry"
        yield Finding("order", Severity.ERROR, what, f"{key}: run {run} failed {age_text(age)} ago", remedy)


def check_signatures(context: Context) -> Iterator[Finding]:
    """Check the keys that sign run messages and task tokens: that they exist, their age, their readers."""
    with context.connection() as connection:
        row = connection.execute(_SQL["read_key_ages"], binary=True).fetchone()
        of_tokens = connection.execute(_SQL["read_task_token_key_facts"], binary=True).fetchone()
    messages, tokens = cast("tuple[int, timedelta | None]", row), cast("tuple[int, timedelta | None, bool]", of_tokens)
    for signed, table, consequence, count, age in (
        ("run messages", "message_keys", "executors leave every run to the sweep", *messages),
        ("task tokens", "task_token_keys", "attempts that need a token fail", *tokens[:2]),
    ):
        remedy = f"tidewheel admin secrets rotate {signed.replace(' ', '-')}"
        if age is None:
            what = f"no key signs {signed}: {consequence}"
            yield Finding("signatures", Severity.ERROR, what, f"{count} rows in {table}", remedy)
        elif age > context.limits.key_age:
            what = f"the key that signs {signed} is old"
            yield Finding("signatures", Severity.WARNING, what, f"created {age.days} days ago", remedy)
    if tokens[2]:
        what = "applications can read a key of task tokens and could end any attempt"
        evidence = "settings.task_token_key, from 0.1.0, is still valid"
        remedy = "tidewheel admin secrets rotate task-tokens"
        yield Finding("signatures", Severity.WARNING, what, evidence, remedy)


def check_keys(context: Context) -> Iterator[Finding]:
    """Check that no API key in use expires soon."""
    with context.connection() as connection:
        columns = {"soon": context.limits.key_expiry, "limit": _COUNTED_KEYS}
        rows = connection.execute(_SQL["find_expiring_keys"], columns, binary=True).fetchall()
    for key_id, name, tenant, left in cast("list[tuple[str, str, str, timedelta]]", rows):
        what = f"the API key {name} is in use and expires in {age_text(left)}"
        remedy = "create another with `tidewheel admin api-key create`, and give it to the key's users"
        yield Finding("keys", Severity.WARNING, what, f"{key_id}, tenant {tenant}", remedy)


def live_queues(connection: Conn) -> set[str]:
    """Return the queues that live executors serve."""
    return {queue for each in read_services(connection) if not each.is_silent for queue in each.queues or ()}


def check_archive(context: Context) -> Iterator[Finding]:
    """Check that days are archived soon, if any is."""
    with context.connection() as connection:
        [(last,)] = cast("list[tuple[date | None]]", connection.execute(_SQL["read_last_archived_day"]).fetchall())
        today = day_of(read_now(connection))
    if last is not None and today - last > _LATE:
        what = "days are waiting for the archive: schedulers keep them until then"
        evidence = f"{last} is the last archived day"
        remedy = "run `tidewheel admin archive run` once a day; its output shows the error"
        yield Finding("archive", Severity.WARNING, what, evidence, remedy)


def _installation(context: Context) -> Installation:
    assert context.installation is not None  # noqa: S101 - the check of the schema has read it
    return context.installation


def _find_read_only_restore(context: Context) -> Finding | None:
    """Return the finding of a restore from a database that accepts no writes; None on a standby."""
    try:
        with context.connection("-c default_transaction_read_only=off") as connection:
            return _find_restore(connection)
    except Unavailable:
        return None


def _find_restore(connection: Conn) -> Finding | None:
    try:
        row = connection.execute(_SQL["read_restore"]).fetchone()
    except psycopg.errors.UndefinedTable:  # the check of the schema reports it
        return None
    if row is None:
        return None
    since, works = cast("tuple[str, bool]", row)
    evidence = f"the restore reads Kafka from {since}; {'a' if works else 'no'} process is working on it"
    what, remedy = "a restore was interrupted: no service starts", "`tidewheel admin restore --yes` continues it"
    if works:
        what, remedy = "a restore is under way: services wait", "wait for the restore to end"
    return Finding("database", Severity.ERROR, what, evidence, remedy)
