"""Run an audit, compare ends of runs with those on Kafka, write the report and return its totals.

The report is one JSON document, written as the audit goes on, with a line for each job. Its last line has the SHA-256
of all lines before, so `head -n -1 FILE | sha256sum` checks it.

A fail-over to a server that lacks the last transactions leaves Kafka ahead. A run has a completion: the database has
it open, ended at another time, or not at all.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import NamedTuple, TextIO, cast
from uuid import UUID

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from psycopg import IsolationLevel

from tidewheel.clock import monotonic_seconds
from tidewheel.control.occurrence_audit.audit import AuditFacts, audit, ensure_kept, read_facts
from tidewheel.control.occurrence_audit.records import Finding, JobAudit, Scope
from tidewheel.control.reads.job_position import read_job_position
from tidewheel.control.reads.json_form import as_json
from tidewheel.errors import Unavailable
from tidewheel.jobs.values import format_timestamp
from tidewheel.kafka.clients import poll_batch
from tidewheel.kafka.offsets import (
    end_of_batch,
    is_unreadable,
    offsets_client,
    read_end_offsets,
    read_offsets_since,
    read_partitions,
)
from tidewheel.nouns.tenants.reads import show_tenant
from tidewheel.postgres.held_lock import held_lock
from tidewheel.postgres.session import Conn, Session, read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import read_installation
from tidewheel.transitions.tenant_refusals import deletions_of

_LOG = logging.getLogger(__name__)
_GROUP = "tidewheel.audit"
_MARGIN = timedelta(minutes=1)  # the longest transaction: an end may be younger than the snapshot
_SILENT_SECONDS = 30.0  # without a message
_BATCH = 1000

_SQL = Statements("tidewheel.control.occurrence_audit")

MAX_LISTED = 1_000
"""Findings that a result lists; the report lists up to a hundred of each job."""

FORMAT = "tidewheel.audit/1"

# Whole results are sorted, on disk where they do not fit. A process that is stopped holds lock and snapshot for 10
# minutes: between two statements by the idle limit, and while the server sends rows by that of TCP.
_SESSION = (
    "-c cursor_tuple_fraction=1 -c work_mem=128MB -c statement_timeout=0 "
    "-c idle_in_transaction_session_timeout=600s -c tcp_user_timeout=600s"
)
_LEASE = timedelta(minutes=10)
_LONGEST = "6h"  # of the snapshot, which holds back vacuum and retention


@dataclass(frozen=True, slots=True)
class JobFinding:
    """A finding with its job; tenant and key are empty if the database lacks it."""

    tenant: str
    key: str
    job_id: UUID
    finding: Finding


class _End(NamedTuple):
    run_id: UUID
    job_id: UUID
    finished_at: datetime


class _Unrecorded(NamedTuple):
    """A row of `find_unrecorded_ends`, its columns in this order."""

    run_id: UUID
    job_id: UUID
    finished_at: datetime
    tenant: str | None
    key: str | None
    state: str | None
    ended_at: datetime | None


def unrecorded_ends(
    connection: Conn, kafka: Mapping[str, str], topic: str, scope: Scope, taken_at: datetime
) -> Iterator[JobFinding]:
    """Yield the completions of a range of ends that the snapshot of the connection lacks."""
    before = min(scope.before, taken_at - _MARGIN)
    with offsets_client({**kafka, "enable.partition.eof": "true"}, _GROUP) as client:
        for ends in _read_ends(client, kafka, topic, scope.first, before):
            wanted = [each for each in ends if scope.job_id in (None, each.job_id)]
            columns = {
                "run_ids": [each.run_id for each in wanted],
                "job_ids": [each.job_id for each in wanted],
                "instants": [each.finished_at for each in wanted],
                "tenant": scope.tenant,
            }
            yield from map(
                _finding, read_rows(connection, rows_of(_Unrecorded._make), _SQL["find_unrecorded_ends"], columns)
            )


def _finding(row: _Unrecorded) -> JobFinding:
    if row.ended_at is not None:
        words = f"the database has another end, at {format_timestamp(row.ended_at)}: the run was executed twice"
    elif row.state is not None:
        words = f"in the database the run is {row.state}: it is executed again"
    else:
        words = "the database has no such run"
    words = f"run {row.run_id} has a completion on Kafka, but {words}"
    finding = Finding("unrecorded", row.finished_at, row.finished_at, 1, words)
    return JobFinding(row.tenant or "", row.key or "", row.job_id, finding)


def _read_ends(
    client: Consumer, kafka: Mapping[str, str], topic: str, first: datetime, before: datetime
) -> Iterator[Sequence[_End]]:
    """Yield the ends of a range, by their headers, as the topic has them now.

    A partition is read once its position is at the end of now, where no readable message may lie.
    """
    places = read_partitions(client, topic).get(topic, [])
    ends = {part: end for (_, part), (_, end) in read_end_offsets(client, places).items()}
    found = read_offsets_since(client, places, first - _MARGIN, what=f"offsets of {topic}")
    left = {part: offset for (_, part), offset in found.items() if 0 <= offset < ends[part]}
    client.assign([TopicPartition(topic, part, offset) for part, offset in left.items()])
    deadline = monotonic_seconds() + _SILENT_SECONDS
    while left:
        batch = list[_End]()
        for received in poll_batch(client, _BATCH, 0.2):
            part, offset = received.partition(), received.offset()
            if part is None or offset is None or part not in left or offset < left[part]:
                continue  # read already, or of a later time
            position = _position_after(client, kafka, received, offset)
            if position is None:
                continue
            deadline = monotonic_seconds() + _SILENT_SECONDS
            if (end := _end_of(received)) is not None and first <= end.finished_at < before:
                batch.append(end)
            left[part] = position
            if position >= ends[part]:
                del left[part]
        yield batch
        if left and monotonic_seconds() > deadline:
            raise Unavailable(
                f"nothing arrived from {topic} for {_SILENT_SECONDS:.0f} s; repeat the audit when the brokers answer"
            )


def _position_after(client: Consumer, kafka: Mapping[str, str], received: Message, offset: int) -> int | None:
    """Return the position behind a message, a batch that cannot be unpacked, or a partition."""
    error = received.error()
    if error is None:
        return offset + 1
    if error.code() == KafkaError._PARTITION_EOF:
        return offset
    if not is_unreadable(error):
        return None
    at = TopicPartition(received.topic() or "", received.partition() or 0, offset)
    behind = end_of_batch(kafka, _GROUP, at)
    _LOG.warning(
        "%s/%d: completions from offset %d to %d are not compared: %s",
        at.topic, at.partition, offset, behind - 1, error.str(),
    )  # fmt: skip
    client.seek(TopicPartition(at.topic, at.partition, behind))
    return behind


def _end_of(received: Message) -> _End | None:
    """Return the end that a message tells; None if it tells none."""
    key, headers = received.key(), dict(cast("list[tuple[str, bytes]]", received.headers() or []))
    if received.error() is not None or not isinstance(key, bytes) or not {"ce_time", "ce_subject"} <= headers.keys():
        return None
    at = datetime.fromisoformat(headers["ce_time"].decode())
    return _End(UUID(headers["ce_subject"].decode()), UUID(key.decode()), at)


@dataclass(slots=True)
class AuditTotals:
    """The sums over all jobs, as the fields of `JobAudit`."""

    jobs: int = 0
    computed: int = 0
    fired: int = 0
    skipped: Counter[str] = field(default_factory=Counter[str])
    undecided: Counter[str] = field(default_factory=Counter[str])
    missing: int = 0
    runs: Counter[str] = field(default_factory=Counter[str])
    attempts: int = 0
    by_message: int = 0
    by_sweep: int = 0
    unrecorded: int = 0
    findings: int = 0

    def add(self, job: JobAudit) -> None:
        """Add a job."""
        self.jobs += 1
        self.computed += job.computed
        self.fired += job.fired
        self.skipped.update(job.skipped)
        self.undecided.update(job.undecided)
        self.missing += job.missing
        self.runs.update(+job.runs)
        self.attempts += job.attempts
        self.by_message += job.by_message
        self.by_sweep += job.by_sweep
        self.findings += job.finding_count


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of an audit."""

    facts: AuditFacts
    first: datetime
    before: datetime
    tenant: str | None  # None for all
    key: str | None  # None for all jobs
    totals: AuditTotals
    findings: tuple[JobFinding, ...]
    sha256: str | None = None  # of the report; None if none was written

    @property
    def passed(self) -> bool:
        """True if each occurrence has its record or is not decided yet."""
        return not self.totals.findings


def run_audit(
    url: str,
    first: datetime,
    before: datetime | None = None,
    *,
    tenant: str | None = None,
    key: str | None = None,
    report: TextIO | None = None,
    kafka: Mapping[str, str] | None = None,
) -> AuditResult:
    """Audit a range of an installation in one transaction that only reads.

    Args:
        before: The end of the range, exclusive; now by default.
        kafka: The settings of a client, to compare the ends of runs with the completions on Kafka too.
    """
    with (
        held_lock(url, "tidewheel-audit-lock", _SQL["hold_retention"], lease=_LEASE) as lock,
        closing(Session(url, "tidewheel-audit", options=_SESSION)) as session,
    ):
        if not lock.is_alone:
            raise Unavailable("retention is running; repeat the audit when its pass has ended")
        with session.transaction() as connection:
            connection.execute(_SQL["set_time_limit"], {"limit": _LONGEST})
            connection.execute(_SQL["hold_old_retention"])
            facts = read_facts(connection, tenant)
            for refusal in deletions_of(connection, [] if tenant is None else [tenant]).values():
                raise refusal
            if tenant is not None:
                show_tenant(connection, tenant)
            job_id = None if key is None else read_job_position(connection, tenant or "default", key).job_id
            ensure_kept(connection, facts, Scope(first, before or facts.taken_at, tenant, job_id))
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        with session.transaction() as connection:
            facts = read_facts(connection, tenant)
            scope = Scope(first, before or facts.taken_at, tenant, job_id)
            totals, findings = AuditTotals(), list[JobFinding]()
            result = AuditResult(facts, scope.first, scope.before, tenant, key, totals, ())
            writer = None if report is None else _Report(report, result)
            for job in audit(connection, scope):
                totals.add(job)
                room = MAX_LISTED - len(findings)
                findings += [JobFinding(job.tenant, job.key, job.job_id, each) for each in job.findings[:room]]
                if writer is not None:
                    writer.add(job)
            if kafka is not None:
                topic = read_installation(connection, Connections.load()).topics.completions
                for ended in unrecorded_ends(connection, kafka, topic, scope, facts.taken_at):
                    totals.findings += 1
                    totals.unrecorded += 1
                    if len(findings) < MAX_LISTED:
                        findings.append(ended)
            lock.check()  # else retention may have removed what was read last
    result = replace(result, findings=tuple(findings))
    return result if writer is None else replace(result, sha256=writer.close(result))


class _Report:
    """A report that is written line by line."""

    def __init__(self, file: TextIO, result: AuditResult) -> None:
        self._file, self._hash, self._any = file, sha256(), False
        head: dict[str, object] = {
            "format": FORMAT, **asdict(result.facts), "from": result.first, "before": result.before,
            "tenant": result.tenant, "job": result.key,
        }  # fmt: skip
        self._line(f'{json.dumps(as_json(head), ensure_ascii=False)[:-1]}, "jobs": [')

    def add(self, job: JobAudit) -> None:
        """Write a job."""
        text = json.dumps(as_json(job), ensure_ascii=False)
        self._line(f",{text}" if self._any else text)
        self._any = True

    def close(self, result: AuditResult) -> str:
        """Write the totals and the hash; return the hash."""
        text = json.dumps(as_json(result.totals), ensure_ascii=False)
        self._line(f'], "totals": {text}, "passed": {"true" if result.passed else "false"},')
        digest = self._hash.hexdigest()
        self._file.write(f'"sha256": "{digest}"}}\n')
        return digest

    def _line(self, text: str) -> None:
        self._hash.update(f"{text}\n".encode())
        self._file.write(f"{text}\n")
