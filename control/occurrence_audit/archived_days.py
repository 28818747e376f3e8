"""Read days that retention has dropped from the archive, for the statements that read the tables.

The rows are copied into temporary tables of the session. Temporary views with the names of Tidewheel's tables show
both: the database looks a name up among temporary relations first. So no statement differs for an archived day. The
database sorts on its disk, and memory holds one block of the archive.

A row that both have counts once: that of the table. Of a fact that several days have the last one counts.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import LiteralString, TypeAlias, cast

from fastavro import parse_schema
from psycopg import Rollback

from tidewheel.control.archive.containers import SCHEMAS, Record, decode_block, raw_block
from tidewheel.control.archive.days import FACTS, RUNS, ArchiveFile, damaged, list_days, read_manifest
from tidewheel.control.archive.stores import MANIFEST, MissingFile, Store, manifest_text
from tidewheel.control.occurrence_audit.records import Scope, ended_from
from tidewheel.errors import ArchiveDamaged
from tidewheel.postgres.partitions import day_of
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_FIND_ARCHIVED_SINCE = Statements("tidewheel.control.occurrence_audit")["find_archived_since"]

_DAY = timedelta(days=1)
DATABASE, ARCHIVE = "database", "archive"
_Copy: TypeAlias = Callable[[Conn, date, list[Record]], None]

_CREATE: LiteralString = """
CREATE TEMP TABLE audited_runs (
    run_id uuid, job_id uuid, tenant text, cause text, state text, scheduled_at timestamptz, finished_at timestamptz,
    attempt integer, claimed_from text, workflow_run_id uuid
);
CREATE TEMP TABLE audited_attempts (run_id uuid);
CREATE TEMP TABLE audited_versions (
    day date, job_id uuid, version integer, tenant text, key text, effective_at timestamptz, retired_at timestamptz,
    schedule_json text, policy_json text
);
CREATE TEMP TABLE audited_skips (
    skip_id bigint, job_id uuid, tenant text, reason text, first_at timestamptz, last_at timestamptz,
    occurrences bigint, is_exact boolean
);
CREATE TEMP TABLE audited_overrides (
    day date, job_id uuid, scheduled_at timestamptz, tenant text, moved_to timestamptz, done_at timestamptz
);
CREATE TEMP TABLE audited_edges (
    day date, parent_job_id uuid, child_job_id uuid, from_at timestamptz, until_at timestamptz, tenant text
);
CREATE TEMP TABLE audited_workflows (
    day date, root_run_id uuid, tenant text, root_job_id uuid, scheduled_at timestamptz, graph_at timestamptz,
    state text, finished_at timestamptz
);
CREATE TEMP TABLE audited_since (at timestamptz)
"""

# Each of them names a table of Tidewheel, which its own definition still finds: the view is not there yet. No row of a
# tenant counts whose deletion the archive has not followed yet.
_VIEWS: tuple[LiteralString, ...] = (
    """CREATE TEMP VIEW gone_tenants AS SELECT d.tenant FROM tenant_deletions AS d WHERE NOT d.left_archive""",
    """
    CREATE TEMP VIEW finished_runs AS
    SELECT f.run_id, f.job_id, f.tenant, f.cause, f.state, f.scheduled_at, f.finished_at, f.attempt, f.claimed_from,
           f.workflow_run_id
      FROM finished_runs AS f
     WHERE f.finished_at >= (SELECT s.at FROM audited_since AS s)
     UNION ALL
    SELECT a.* FROM audited_runs AS a WHERE a.tenant NOT IN (SELECT g.tenant FROM gone_tenants AS g)
    """,
    """
    CREATE TEMP VIEW attempts AS
    SELECT t.run_id FROM attempts AS t WHERE t.started_at >= (SELECT s.at FROM audited_since AS s)
     UNION ALL
    SELECT t.run_id
      FROM attempts AS t
     WHERE t.started_at < (SELECT s.at FROM audited_since AS s)
       AND NOT EXISTS (SELECT FROM audited_attempts AS a WHERE a.run_id = t.run_id)
     UNION ALL
    SELECT a.run_id FROM audited_attempts AS a
    """,
    """
    CREATE TEMP VIEW jobs AS
    SELECT j.job_id, j.tenant, j.key, j.schedule_kind, j.deleted_at FROM jobs AS j
     UNION ALL
    SELECT v.job_id, v.tenant, coalesce(v.key, ''), NULL, NULL
      FROM (SELECT DISTINCT ON (a.job_id) a.job_id, a.tenant, a.key
              FROM audited_versions AS a ORDER BY a.job_id, a.day DESC, a.version DESC) AS v
     WHERE NOT EXISTS (SELECT FROM jobs AS j WHERE j.job_id = v.job_id)
       AND v.tenant NOT IN (SELECT g.tenant FROM gone_tenants AS g)
    """,
    """
    CREATE TEMP VIEW job_versions AS
    SELECT v.job_id, v.version, v.tenant, v.effective_at, v.retired_at, v.schedule_json, v.policy_json
      FROM job_versions AS v
     UNION ALL
    SELECT a.job_id, a.version, a.tenant, a.effective_at, a.retired_at, a.schedule_json, a.policy_json
      FROM (SELECT DISTINCT ON (e.job_id, e.version, e.effective_at) e.*
              FROM audited_versions AS e ORDER BY e.job_id, e.version, e.effective_at, e.day DESC) AS a
     WHERE NOT EXISTS (SELECT FROM job_versions AS v
                        WHERE v.job_id = a.job_id AND v.version = a.version AND v.effective_at = a.effective_at)
       AND a.tenant NOT IN (SELECT g.tenant FROM gone_tenants AS g)
    """,
    """
    CREATE TEMP VIEW skips AS
    SELECT s.skip_id, s.job_id, s.tenant, s.reason, s.first_at, s.last_at, s.occurrences, s.is_exact FROM skips AS s
     UNION ALL
    SELECT a.*
      FROM audited_skips AS a
     WHERE NOT EXISTS (SELECT FROM skips AS s WHERE s.skip_id = a.skip_id)
       AND a.tenant NOT IN (SELECT g.tenant FROM gone_tenants AS g)
    """,
    """
    CREATE TEMP VIEW overrides AS
    SELECT o.job_id, o.scheduled_at, o.tenant, o.moved_to, o.done_at FROM overrides AS o
     UNION ALL
    SELECT a.job_id, a.scheduled_at, a.tenant, a.moved_to, a.done_at
      FROM (SELECT DISTINCT ON (e.job_id, e.scheduled_at) e.*
              FROM audited_overrides AS e ORDER BY e.job_id, e.scheduled_at, e.day DESC) AS a
     WHERE NOT EXISTS (SELECT FROM overrides AS o WHERE o.job_id = a.job_id AND o.scheduled_at = a.scheduled_at)
       AND a.tenant NOT IN (SELECT g.tenant FROM gone_tenants AS g)
    """,
    """
    CREATE TEMP VIEW job_edges AS
    SELECT e.parent_job_id, e.child_job_id, e.from_at, e.until_at, e.tenant FROM job_edges AS e
     UNION ALL
    SELECT a.parent_job_id, a.child_job_id, a.from_at, a.until_at, a.tenant
      FROM (SELECT DISTINCT ON (d.parent_job_id, d.child_job_id, d.from_at) d.*
              FROM audited_edges AS d ORDER BY d.parent_job_id, d.child_job_id, d.from_at, d.day DESC) AS a
     WHERE NOT EXISTS (SELECT FROM job_edges AS e
                        WHERE e.parent_job_id = a.parent_job_id AND e.child_job_id = a.child_job_id
                          AND e.from_at = a.from_at)
    """,
    """
    CREATE TEMP VIEW workflows AS
    SELECT w.root_run_id, w.tenant, w.root_job_id, w.scheduled_at, w.graph_at, w.state, w.finished_at
      FROM workflows AS w
     UNION ALL
    SELECT a.root_run_id, a.tenant, a.root_job_id, a.scheduled_at, a.graph_at, a.state, a.finished_at
      FROM (SELECT DISTINCT ON (r.root_run_id) r.* FROM audited_workflows AS r ORDER BY r.root_run_id, r.day DESC) AS a
     WHERE NOT EXISTS (SELECT FROM workflows AS w WHERE w.root_run_id = a.root_run_id)
       AND a.tenant NOT IN (SELECT g.tenant FROM gone_tenants AS g)
    """,
)
_ANALYZE: LiteralString = "ANALYZE audited_runs, audited_attempts, audited_versions, audited_skips, audited_overrides"

_VERSION = ("job_id", "version", "tenant", "key", "effective_at", "retired_at", "schedule_json", "policy_json")
_FACTS: Mapping[str, tuple[LiteralString, tuple[str, ...]]] = {
    "job_versions": ("COPY audited_versions FROM STDIN", ("day", *_VERSION)),
    "skips": (
        "COPY audited_skips FROM STDIN",
        ("skip_id", "job_id", "tenant", "reason", "first_at", "last_at", "occurrences", "is_exact"),
    ),
    "overrides": (
        "COPY audited_overrides FROM STDIN",
        ("day", "job_id", "scheduled_at", "tenant", "moved_to", "done_at"),
    ),
    "job_edges": (
        "COPY audited_edges FROM STDIN",
        ("day", "parent_job_id", "child_job_id", "from_at", "until_at", "tenant"),
    ),
    "workflows": (
        "COPY audited_workflows FROM STDIN",
        ("day", "root_run_id", "tenant", "root_job_id", "scheduled_at", "graph_at", "state", "finished_at"),
    ),
}
_RUN = (
    "run_id", "job_id", "tenant", "cause", "state", "scheduled_at", "finished_at", "attempt", "claimed_from",
    "workflow_run_id",
)  # fmt: skip
# Only these fields of a run are decoded, with the attempts.
_OF_RUN = parse_schema(
    {
        **cast("Record", SCHEMAS[RUNS]),
        "fields": [field for field in cast("Record", SCHEMAS[RUNS])["fields"] if field["name"] in {*_RUN, "attempts"}],
    }
)


@dataclass(frozen=True, slots=True)
class AuditedDay:
    """The source of the runs that ended on a day."""

    day: date
    source: str  # `database` or `archive`
    runs: int | None = None  # in the archive; None of a day in the database
    sha256: str | None = None  # of the archived day's manifest, which has those of its files
    problems: tuple[str, ...] = ()


def archived_since(connection: Conn, stored_from: datetime) -> date | None:
    """Return the first day from which all days up to those of the tables are archived; None for none."""
    found = connection.execute(_FIND_ARCHIVED_SINCE, {"before": day_of(stored_from)}, binary=True).fetchone()
    return cast("date | None", found[0] if found else None)


def database_days(first: date, before: datetime) -> list[AuditedDay]:
    """Return the days of a range whose runs the tables have."""
    return [AuditedDay(first + _DAY * n, DATABASE) for n in range((day_of(before) - first).days + 1)]


def read_archived_days(connection: Conn, store: Store, scope: Scope, stored_from: datetime) -> list[AuditedDay]:
    """Copy what an audit needs of the days before an instant; return them with their problems.

    A block that cannot be read is left out: its runs are missing then, too. From now on the connection, which must have
    autocommit, finds both in the tables of Tidewheel.
    """
    connection.execute(_CREATE)
    connection.execute("INSERT INTO audited_since VALUES (%s)", [stored_from])
    recorded = {each.day.isoformat(): each.runs for each in list_days(connection)}
    facts = {
        name: _copied(connection, store, name, FACTS, partial(_copy_facts, scope=scope))
        for name in sorted({*store.days(), *recorded})
    }
    for view in _VIEWS:
        connection.execute(view)
    first, stored = day_of(ended_from(connection, scope)).isoformat(), day_of(stored_from).isoformat()
    runs = {
        name: _copied(connection, store, name, RUNS, lambda found, _, rows: _copy_runs(found, rows, scope))
        for name in recorded
        if first <= name < stored
    }
    connection.execute(_ANALYZE)
    return [
        _source(facts[name], runs.get(name), recorded.get(name))
        for name in facts
        if name in runs or facts[name].problems
    ]


def _source(facts: AuditedDay, runs: AuditedDay | None, recorded: int | None) -> AuditedDay:
    """Return an archived day with the problems of its facts and of its runs."""
    if runs is None:
        return facts
    problems = dict.fromkeys((*facts.problems, *runs.problems))
    if runs.runs not in (None, recorded):
        problems[f"{runs.day} has {runs.runs:,} runs, but the database has recorded {recorded or 0:,}"] = None
    return replace(runs, problems=tuple(problems))


def _copied(connection: Conn, store: Store, name: str, kind: str, copy: _Copy) -> AuditedDay:
    """Copy the records of one kind of a day; repeat it if the day was rewritten meanwhile."""
    while True:
        text = manifest_text(store, name)
        with connection.transaction():
            found = _copied_once(connection, store, name, text, kind=kind, copy=copy)
            if not found.problems or text == manifest_text(store, name):
                return found
            raise Rollback


def _copied_once(
    connection: Conn, store: Store, name: str, text: bytes | None, *, kind: str, copy: _Copy
) -> AuditedDay:
    day = date.fromisoformat(name)
    if text is None:
        return AuditedDay(day, ARCHIVE, problems=(str(damaged(f"{name}/{MANIFEST}", "the file is missing")),))
    problems: list[str] = []
    try:
        manifest = read_manifest(name, text)
    except ArchiveDamaged as error:
        return AuditedDay(day, ARCHIVE, problems=(str(error),))
    for file in manifest.of_kind(kind):
        for records in _checked_records(store, name, file, problems):
            copy(connection, day, records)
    return AuditedDay(day, ARCHIVE, manifest.runs, sha256(text).hexdigest(), tuple(problems))


def _checked_records(store: Store, day: str, file: ArchiveFile, problems: list[str]) -> Iterator[list[Record]]:
    """Yield the records of a file, a block at a time; add what differs from what was written."""
    name, found = f"{day}/{file.name}", len(problems)
    try:
        header = store.read(name, (0, file.header))
    except MissingFile:
        problems.append(str(damaged(name, "the file is missing")))
        return
    digest = sha256(header)
    for block in file.blocks:
        try:
            data = raw_block(store, day, file, block)
            digest.update(data)
            yield decode_block(name, header, data, _OF_RUN if file.kind == RUNS else SCHEMAS[FACTS])
        except ArchiveDamaged as error:
            problems.append(str(error))
    if len(problems) == found and digest.hexdigest() != file.sha256:
        problems.append(str(damaged(name, "its checksum differs")))


def _copy_facts(connection: Conn, day: date, records: list[Record], scope: Scope) -> None:
    by_kind: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        if scope.tenant in (None, record["tenant"]):
            by_kind[record["kind"]].append(record)
    for kind, (statement, columns) in _FACTS.items():
        rows = ({**json.loads(each["row"]), "day": day} for each in by_kind[kind])
        _copy(connection, statement, columns, map(_with_key, rows) if kind == "job_versions" else rows)


def _copy_runs(connection: Conn, records: list[Record], scope: Scope) -> None:
    rows = [
        row
        for row in records
        if scope.tenant in (None, row["tenant"])
        and (scope.job_id is None or row["job_id"] == str(scope.job_id))
        and (scope.first <= row["scheduled_at"] < scope.before or row["workflow_run_id"])
    ]
    _copy(connection, "COPY audited_runs FROM STDIN", _RUN, rows)
    attempts = ({"run_id": row["run_id"]} for row in rows for _ in row["attempts"])
    _copy(connection, "COPY audited_attempts FROM STDIN", ("run_id",), attempts)


def _with_key(version: Record) -> Record:
    return {**version, "key": version["spec"].get("key")}


def _copy(connection: Conn, statement: LiteralString, columns: Sequence[str], rows: Iterable[Record]) -> None:
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row([row.get(name) for name in columns])
