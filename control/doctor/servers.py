"""Check Kafka, the disk of the local stack, the primary and its standbys."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import LiteralString, NamedTuple, cast

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tidewheel.control.doctor.check import Context
from tidewheel.control.doctor.database import live_queues
from tidewheel.control.reads.findings import Finding, Severity
from tidewheel.errors import SettingsError, Unavailable, UnknownTenant, UnsupportedServer
from tidewheel.kafka.clients import bootstrap_check
from tidewheel.kafka.topics import (
    DEFAULT_QUEUE,
    PartitionCounts,
    Topics,
    missing_topic_remedy,
    queues_with_topics,
    setting_deviations,
    tenants_with_topics,
    topic_statuses,
)
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.postgres.faults import first_line
from tidewheel.postgres.fences import Place, find_primaries
from tidewheel.postgres.replica import Replica
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process.service import Shutdown
from tidewheel.redaction import redact

_SQL = Statements("tidewheel.control.doctor")
_WRITABLE = ("read-write", "primary")
_READ_ONLY = "session is read-only"  # libpq of a server that is a standby
_MEBIBYTE, _GIBIBYTE = 1 << 20, 1 << 30
# Not in `queries.sql`: the view may be in any schema, or missing. One call by people or a migration may take minutes.
_SLOWEST: LiteralString = """
SELECT s.mean_exec_time, s.calls, s.query
  FROM {}.pg_stat_statements AS s
 WHERE s.dbid = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
   AND s.calls >= 100 AND s.query <> '<insufficient privilege>'
 ORDER BY s.mean_exec_time DESC
 LIMIT 3
"""
_CORRECT_REPLICA = (
    "check the replica's log and the network, or correct TIDEWHEEL_READ_DATABASE_URL (docs/deployment.md, Read replica)"
)
_TEXT = 100  # characters of a statement
_UNCOUNTED = (
    "slow statements are not counted: add pg_stat_statements to shared_preload_libraries, restart PostgreSQL, then run "
    "CREATE EXTENSION pg_stat_statements (docs/operations.md)"
)


class _Standby(NamedTuple):
    wanted: str
    pid: int | None
    name: str | None
    sync_state: str | None
    behind: int | None


def check_replication(context: Context) -> Iterator[Finding]:
    """Check that a fail-over loses nothing, and that clients follow it."""
    url = context.url or ""
    yield from _check_servers(url)
    with context.connection() as connection, connection.cursor(row_factory=rows_of(_Standby._make)) as cursor:
        rows = cursor.execute(_SQL["read_replication"], binary=True).fetchall()
    wanted, standbys = rows[0].wanted, [each for each in rows if each.pid is not None]
    names = ", ".join(sorted({each.name or "?" for each in standbys})) or "none attached"
    if standbys and not wanted:
        what = "a fail-over may lose acknowledged work: commits do not wait for a standby"
        remedy = "set synchronous_standby_names on the primary, or accept the loss (docs/recovery.md, Fail-over)"
        evidence = f"synchronous_standby_names is empty; standbys: {names}"
        yield Finding("replication", Severity.WARNING, what, evidence, remedy)
    may_read = all(each.sync_state is not None for each in standbys)
    if wanted and may_read and not any(each.sync_state in ("sync", "quorum") for each in standbys):
        what = "commits wait for a standby that is not connected: nothing starts, fires or ends"
        remedy = (
            "start the standby; or let commits proceed without one: ALTER SYSTEM SET synchronous_standby_names = '', "
            "then SELECT pg_reload_conf()"
        )
        evidence = f"synchronous_standby_names is {wanted!r}; standbys: {names}"
        yield Finding("replication", Severity.ERROR, what, evidence, remedy)
    for each in standbys:
        if each.behind is not None and each.behind > context.limits.standby_bytes:
            what = f"the standby {each.name} is behind its primary"
            remedy = (
                "check the standby's log, its disk and the network: a fail-over waits for the missing WAL or loses it"
            )
            yield Finding("replication", Severity.WARNING, what, f"{each.behind // _MEBIBYTE:,} MiB of WAL", remedy)
    if standbys or wanted:
        # Without the options of Tidewheel's own sessions, which set it.
        with psycopg.connect(url, connect_timeout=5, target_session_attrs="read-write") as plain:
            [mode] = cast("tuple[str]", plain.execute("SELECT current_setting('synchronous_commit')").fetchone())
        if mode in ("off", "local"):
            what = "a fail-over may lose applications' commits, which do not wait for a standby"
            remedy = "ALTER SYSTEM SET synchronous_commit = 'on', and reset it for databases and roles"
            yield Finding("replication", Severity.WARNING, what, f"synchronous_commit is {mode}", remedy)


def check_replica(context: Context) -> Iterator[Finding]:
    """Check that lists and pages can be read from the read replica."""
    if (url := context.settings.read_database()) is None:
        return
    with closing(Replica(context.url or "", url, Shutdown())) as replica:
        found = replica.look()
    if found.problem:
        severity = Severity.ERROR if found.is_foreign else Severity.WARNING
        evidence = found.cause or "reads of the API and the console use the primary"
        yield Finding("replica", severity, f"the read replica {found.problem}", evidence, _CORRECT_REPLICA)


def _check_servers(url: str) -> Iterator[Finding]:
    """Check the servers of a connection string that names several."""
    found = find_primaries(url)
    if len(found) == 1:
        return
    address = {server: _address(server) for server in found}
    if conninfo_to_dict(url).get("target_session_attrs") not in _WRITABLE:
        what = "other programs that use the database's URL may connect to a standby; Tidewheel does not"
        evidence = f"{len(found)} hosts without target_session_attrs"
        remedy = "add target_session_attrs=read-write to TIDEWHEEL_DATABASE_URL"
        yield Finding("replication", Severity.WARNING, what, evidence, remedy)
    primaries = {server: place for server, place in found.items() if isinstance(place, Place)}
    if len(primaries) > 1:
        what = "two servers accept writes: an old primary is still running"
        evidence = ", ".join(f"{address[server]} on timeline {place.timeline}" for server, place in primaries.items())
        remedy = "stop the server on the lower timeline, and make it a standby with pg_rewind or pg_basebackup"
        yield Finding("replication", Severity.ERROR, what, evidence, remedy)
    for server, error in found.items():
        if isinstance(error, psycopg.Error) and _READ_ONLY not in str(error):
            what = f"the server {address[server]} does not answer: a fail-over has no target"
            remedy = "start it, or correct the hosts in TIDEWHEEL_DATABASE_URL"
            yield Finding("replication", Severity.WARNING, what, first_line(error), remedy)


def _address(server: str) -> str:
    parts = conninfo_to_dict(server)
    return f"{parts.get('host') or parts.get('hostaddr')}:{parts.get('port') or 5432}"


def check_statements(context: Context) -> Iterable[Finding]:
    """Note the statements of this database with the longest mean time, or how to count them."""
    slowest = _read_slowest(context)
    if slowest is None:
        note = _UNCOUNTED
    else:
        parts = [f"{mean:,.1f} ms in {calls:,} calls, {_one_line(text)}" for mean, calls, text in slowest]
        note = f"slowest statements (docs/operations.md has causes): {'; '.join(parts) or 'none with 100 calls'}"
    context.notes.append(note)
    return ()


def _read_slowest(context: Context) -> Sequence[tuple[float, int, str]] | None:
    """Return mean time, calls and text of these statements; None if the server does not count statements."""
    with context.connection() as connection:
        schema = cast("tuple[str] | None", connection.execute(_SQL["find_statements"]).fetchone())
        if schema is None:
            return None
        try:
            rows = connection.execute(sql.SQL(_SLOWEST).format(sql.Identifier(*schema))).fetchall()
        except psycopg.errors.ObjectNotInPrerequisiteState:  # it is created, but the server has not loaded it
            return None
        return cast("list[tuple[float, int, str]]", rows)


def _one_line(text: str) -> str:
    line = redact(" ".join(text.split()))
    return line if len(line) <= _TEXT else f"{line[:_TEXT]}…"


def check_broker(context: Context) -> Iterator[Finding]:
    """Check that a Kafka broker answers."""
    try:
        bootstrap_check(context.settings.kafka_config())()
    except Unavailable as error:
        remedy = "start the brokers, or correct TIDEWHEEL_KAFKA_BOOTSTRAP; meanwhile the sweep starts runs"
        yield Finding("broker", Severity.ERROR, "no Kafka broker answers", str(error), remedy)
    except UnsupportedServer as error:
        remedy = "use brokers of a release in docs/compatibility.md"  # older ones lack APIs, newer ones may drop some
        yield Finding("broker", Severity.ERROR, "the Kafka brokers do not suit this release", str(error), remedy)
    except SettingsError as error:
        remedy = "correct the setting that the evidence names, or run `tidewheel up`"
        yield Finding("broker", Severity.ERROR, "the settings of Kafka clients are invalid", str(error), remedy)


def check_topics(context: Context) -> Iterator[Finding]:
    """Check that the topics exist, with their partitions, copies and settings."""
    settings, installation = context.settings, context.installation
    names = installation.topics if installation is not None else Topics(settings.topic_prefix)
    config = settings.kafka_config()
    queues, tenants = {*queues_with_topics(config, names)} - {DEFAULT_QUEUE}, tenants_with_topics(config, names)
    if installation is not None:
        with context.connection() as connection:
            queues |= live_queues(connection) - {DEFAULT_QUEUE}
            yield from _topics_without_tenant(connection, names, tenants)
    statuses = topic_statuses(
        config,
        names,
        queues=[DEFAULT_QUEUE, *sorted(queues)],
        tenants=tenants,
        outputs=settings.outputs_topic,
        counts=PartitionCounts(settings.runs_partitions, settings.events_partitions, settings.tenant_partitions),
    )
    for each in statuses:
        if each.lacks:
            what = f"the topic {each.topic.name} {'has too few partitions' if each.partitions else 'is missing'}"
            evidence = f"{each.partitions} of {each.topic.partitions} partitions"
            severity = Severity.WARNING if each.partitions else Severity.ERROR
            yield Finding("topics", severity, what, evidence, missing_topic_remedy(each.topic.name))
        elif each.copies < settings.replication:
            what = f"partitions of the topic {each.topic.name} have too few replicas"
            evidence = f"{each.copies}, TIDEWHEEL_REPLICATION is {settings.replication}"
            remedy = f"kafka-reassign-partitions.sh with {settings.replication} replicas for {each.topic.name}"
            yield Finding("topics", Severity.WARNING, what, evidence, remedy)
    for deviation in setting_deviations(config, statuses, replication=settings.replication):
        what = f"{deviation.setting} of the topic {deviation.topic} differs from what Tidewheel sets"
        evidence = f"it is {deviation.value}, Tidewheel sets {deviation.wanted}"
        alter = f"--add-config {deviation.setting}={deviation.wanted}"
        remedy = f"kafka-configs.sh --alter --entity-type topics --entity-name {deviation.topic} {alter}"
        yield Finding("topics", Severity.WARNING, what, evidence, remedy)


def _topics_without_tenant(connection: Conn, names: Topics, tenants: Sequence[str]) -> Iterator[Finding]:
    for tenant in tenants:
        try:
            require_tenant(connection, tenant)
        except UnknownTenant:
            what = f"the topic {names.requests_of(tenant)} belongs to no tenant"
            evidence = f"there is no tenant {tenant}: intake reads no request on this topic"
            remedy = f"`tidewheel admin tenant create {tenant}`, or delete it with {names.replies_of(tenant)}"
            yield Finding("topics", Severity.WARNING, what, evidence, remedy)


def check_disk(context: Context) -> Iterator[Finding]:
    """Check the free space of the local stack's disk; that of a server elsewhere cannot be read by SQL."""
    if context.data_dir is None:
        return
    free = shutil.disk_usage(context.data_dir).free
    if free < context.limits.free_bytes:
        what = "the disk of the local stack is nearly full: PostgreSQL and Kafka stop when it is full"
        evidence = f"{free / _GIBIBYTE:.1f} GiB are free in {context.data_dir}"
        remedy = "free space there, or move TIDEWHEEL_HOME to a larger disk"
        yield Finding("disk", Severity.ERROR, what, evidence, remedy)
