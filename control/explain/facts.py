"""Read all rows that explain one instant of a job, without a decision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

from psycopg.rows import class_row, dict_row

from tidewheel.control.explain.explanation import AttemptFacts, RunFacts, SkipSpan
from tidewheel.control.explain.version_timeline import VersionSpan, VersionTimeline, read_version_timeline
from tidewheel.control.reads.job_position import JobPosition, read_job_position
from tidewheel.nouns.freezes.model import Freeze
from tidewheel.nouns.freezes.reads import freezes_of
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause
from tidewheel.schedules.decision import Override
from tidewheel.schedules.schedule import Once

_SQL = Statements("tidewheel.control")
_READ_RUNS_AT = _SQL["read_runs_at"]
_READ_ATTEMPTS_OF = _SQL["read_attempts_of"]
_READ_SKIPS_AT = _SQL["read_skips_at"]
_READ_OVERRIDES_AROUND = _SQL["read_overrides_around"]
_READ_JOB_ERROR = _SQL["read_job_error"]
_FIND_ACTIVE_RUN_AT = _SQL["find_active_run_at"]
_FIND_ACTIVE_RUN = _SQL["find_active_run"]
_FIND_CHAIN = _SQL["find_chain"]
_OLDEST_DAY_OF_RUNS = _SQL["oldest_day_of_runs"]

_FOREVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class OverrideFacts:
    """A skip or a move of one occurrence."""

    scheduled_at: datetime
    moved_to: datetime | None
    created_at: datetime
    created_by: str | None
    reason: str | None
    done_at: datetime | None


@dataclass(frozen=True, slots=True)
class InstantFacts:
    """All rows that concern one instant.

    Args:
        runs: The runs of the instant, the timer's first.
        spans: The ledger rows of the instant, the shortest first.
    """

    connection: Conn
    at: datetime
    job: JobPosition
    timeline: VersionTimeline
    runs: tuple[RunFacts, ...]
    spans: tuple[SkipSpan, ...]
    override: tuple[OverrideFacts, ...]
    misfire_after: timedelta

    @property
    def run(self) -> RunFacts | None:
        """The occurrence's run."""
        return self.runs[0] if self.runs and self.runs[0].cause == Cause.TIMER else None

    @property
    def version_span(self) -> VersionSpan | None:
        """The version in force; for a `once` submitted after its time, that version."""
        found = self.timeline.in_force(self.at)
        if found is not None and found.has_occurrence(self.at):
            return found
        late = (
            each
            for each in self.timeline.version_spans
            if isinstance(each.schedule, Once) and each.schedule.at == self.at
        )
        return next(late, found)

    @property
    def own_override(self) -> OverrideFacts | None:
        """The skip or move of this occurrence."""
        return next((each for each in self.override if each.scheduled_at == self.at), None)

    @property
    def moved_here(self) -> OverrideFacts | None:
        """The occurrence that was moved to this instant."""
        return next((each for each in self.override if each.moved_to == self.at), None)

    @property
    def overrides(self) -> list[Override]:
        """The skips and moves that the timer's decisions depend on."""
        cursor = self.job.cursor_at or _FOREVER
        return [
            Override(each.scheduled_at, each.moved_to, each.done_at is not None)
            for each in self.override
            if each.scheduled_at >= cursor or (each.moved_to is not None and each.done_at is None)
        ]

    def error(self) -> tuple[str, datetime] | None:
        """Return the error that quarantined the job, and its time."""
        return read_job_error(self.connection, self.job.job_id)

    def freezes(self, queue: str | None = None) -> tuple[Freeze, ...]:
        """Return the standing freezes that name the job's runs, of this queue or of its current one."""
        return freezes_of(self.connection, self.job.tenant, self.job.job_id, queue)

    def holder(self, then: datetime, run_id: UUID) -> UUID | None:
        """Return the run that was active while another one was refused, if the records still show it."""
        columns = {"job_id": self.job.job_id, "at": then, "run_id": run_id}
        found = self.connection.execute(_FIND_ACTIVE_RUN_AT, columns, binary=True).fetchone()
        return cast("UUID", found[0]) if found else None

    def active_run(self) -> UUID | None:
        """Return the job's active run."""
        found = self.connection.execute(_FIND_ACTIVE_RUN, {"job_id": self.job.job_id}, binary=True).fetchone()
        return cast("UUID", found[0]) if found else None

    def chain(self, *causes: Cause) -> tuple[datetime | None, datetime | None]:
        """Return the nearest earlier and later instants with runs of these causes."""
        columns = {"job_id": self.job.job_id, "at": self.at, "causes": list(causes)}
        found = self.connection.execute(_FIND_CHAIN, columns, binary=True).fetchone()
        return cast("tuple[datetime | None, datetime | None]", found or (None, None))

    def oldest_day(self) -> datetime | None:
        """The oldest day with stored runs; None if there is none."""
        found = self.connection.execute(_OLDEST_DAY_OF_RUNS).fetchone()
        text = found[0] if found else None
        return datetime.strptime(str(text), "%Y%m%d").replace(tzinfo=UTC) if text else None


def read_instant_facts(connection: Conn, tenant: str, key: str, at: datetime, misfire_after: timedelta) -> InstantFacts:
    """Read all rows that concern an instant."""
    job = read_job_position(connection, tenant, key)
    override = read_overrides_around(connection, job.job_id, job.cursor_at or _FOREVER, at)
    with connection.cursor(row_factory=class_row(SkipSpan), binary=True) as cursor:
        spans = tuple(cursor.execute(_READ_SKIPS_AT, {"job_id": job.job_id, "at": at}))
    own_override = next((each for each in override if each.scheduled_at == at), None)
    due = own_override.moved_to if own_override is not None and own_override.moved_to is not None else at
    return InstantFacts(
        connection=connection,
        at=at,
        job=job,
        timeline=read_version_timeline(
            connection, job.job_id, tenant, at, cursor=job.cursor_at, catch_up_end=job.catch_up_end
        ),
        runs=_read_runs(connection, job.job_id, at, due),
        spans=spans,
        override=override,
        misfire_after=misfire_after,
    )


def read_overrides_around(connection: Conn, job: UUID, cursor_at: datetime, at: datetime) -> tuple[OverrideFacts, ...]:
    """Read skips and moves from `cursor_at` on, of pending moved occurrences, and of or to `at`."""
    with connection.cursor(row_factory=class_row(OverrideFacts), binary=True) as cursor:
        return tuple(cursor.execute(_READ_OVERRIDES_AROUND, {"job_id": job, "at": at, "cursor_at": cursor_at}))


def read_job_error(connection: Conn, job: UUID) -> tuple[str, datetime] | None:
    """Read the error that quarantined a job, and its time."""
    found = connection.execute(_READ_JOB_ERROR, {"job_id": job}, binary=True).fetchone()
    return cast("tuple[str, datetime] | None", found)


def _read_runs(connection: Conn, job: UUID, at: datetime, due: datetime) -> tuple[RunFacts, ...]:
    with connection.cursor(row_factory=dict_row, binary=True) as cursor:
        rows = cursor.execute(_READ_RUNS_AT, {"job_id": job, "at": at}).fetchall()
    return tuple(_facts(row, _read_attempts(connection, row), due) for row in rows)


def _read_attempts(connection: Conn, row: Mapping[str, Any]) -> Sequence[AttemptFacts]:
    with connection.cursor(row_factory=class_row(AttemptFacts), binary=True) as cursor:
        over = cursor.execute(_READ_ATTEMPTS_OF, {"run_id": row["run_id"]}).fetchall()
    if row["executor_id"] is None:
        return over
    return [*over, AttemptFacts(row["attempt"], None, row["executor_id"], row["started_at"], None, None, None)]


def _facts(row: Mapping[str, Any], attempts: Sequence[AttemptFacts], due: datetime) -> RunFacts:
    stored = {name: value for name, value in row.items() if name not in {"executor_id", "late_ms"}}
    is_late = row["cause"] == Cause.TIMER and row["created_at"] > due
    return RunFacts(
        **stored,
        late=row["created_at"] - due if is_late else None,
        caught_up=row["late_ms"] is not None,
        attempts=tuple(attempts),
    )
