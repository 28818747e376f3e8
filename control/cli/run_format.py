"""Runs in words, for lists and for `tidewheel run show`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from tidewheel.control.cli.time_options import rfc3339, utc_and_local
from tidewheel.control.reads.retry_chain import Kin
from tidewheel.control.reads.run_detail import PastAttempt, RunDetail
from tidewheel.control.reads.runs import RunSummary
from tidewheel.jobs.values import format_duration

_CLAIMED_FROM = re.compile(r"(?P<topic>.+)/(?P<partition>\d+)/(?P<offset>\d+)@(?P<timestamp>-?\d+)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CameBy:
    """The message that an attempt came by.

    Args:
        attempt: The attempt.
        topic: Where the message lies; None where it came by none.
        partition: In which partition.
        offset: At which offset.
        timestamp: What Kafka stamped it with.
        way: As it was noted.
    """

    attempt: int
    topic: str | None
    partition: int | None
    offset: int | None
    timestamp: datetime | None
    way: str


def claimed_from(attempt: int, text: str) -> CameBy:
    """What was noted of the message that an attempt came by.

    >>> claimed_from(1, "tidewheel.runs.standard/3/41@1700000000000").timestamp
    datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.timezone.utc)
    >>> claimed_from(2, "sweep").topic
    """
    found = _CLAIMED_FROM.fullmatch(text)
    if found is None:
        return CameBy(attempt, None, None, None, None, text)
    stamp = int(found["timestamp"])
    at = None if stamp < 0 else _EPOCH + timedelta(milliseconds=stamp)
    return CameBy(attempt, found["topic"], int(found["partition"]), int(found["offset"]), at, text)


def run_row(run: RunSummary) -> tuple[str, ...]:
    """A run as one line of a list."""
    why = ": ".join(part for part in (run.error_type, run.reason) if part)
    return (
        str(run.run_id),
        run.key,
        run.status,
        run.cause,
        rfc3339(run.scheduled_at),
        str(run.attempt),
        span_words(run.started_at, run.finished_at),
        why,
    )


def span_words(since: datetime | None, until: datetime | None) -> str:
    """How long something took, as far as anybody cares."""
    if since is None or until is None:
        return ""
    seconds = (until - since).total_seconds()
    return f"{seconds:.3g} s" if seconds < 60 else format_duration(timedelta(seconds=round(seconds)))


def attempt_row(attempt: PastAttempt) -> tuple[str, ...]:
    """An attempt as one line of a list."""
    return (
        str(attempt.attempt),
        attempt.outcome,
        rfc3339(attempt.started_at) if attempt.started_at else "",
        span_words(attempt.started_at, attempt.finished_at),
        str(attempt.executor_id or ""),
        ": ".join(part for part in (attempt.error_type, attempt.error_message) if part),
    )


def attempt_facts(attempt: PastAttempt) -> Iterator[tuple[str, str | None]]:
    """What an attempt left behind."""
    if attempt.result is not None:
        yield "result", attempt.result.decode(errors="replace")
    if attempt.trace:
        yield "trace", attempt.trace
    if attempt.output:
        yield "output", attempt.output.decode(errors="replace")


def run_facts(run: RunDetail, zone: str | None) -> Iterator[tuple[str, str | None]]:
    """Names and values of everything about a run."""
    summary = run.summary

    def at(instant: datetime | None) -> str | None:
        return None if instant is None else utc_and_local(instant, zone)

    yield "run", str(summary.run_id)
    yield "key", summary.key
    yield "version", str(summary.job_version)
    yield "status", ", ".join(part for part in (summary.status, summary.reason) if part)
    yield "cause", summary.cause
    yield "scheduled", at(summary.scheduled_at)
    yield "late", format_duration(run.late) if run.late else None
    yield "made", at(summary.created_at)
    yield "claimable", at(summary.publish_at)
    yield "started", at(summary.started_at)
    yield "finished", at(summary.finished_at)
    yield "duration", span_words(summary.started_at, summary.finished_at)
    yield "queue", f"{summary.queue}, {summary.lane} lane"
    yield "needs", run.handler
    yield "attempt", _attempt_words(run)
    yield "executor", ", ".join(str(part) for part in (run.executor, run.executor_id) if part)
    yield "deadline", at(run.deadline_at)
    yield "closes", at(run.schedule_to_close_at)
    yield "waits until", at(run.external_deadline_at)
    yield "progress", _text(run.progress)
    yield "told", at(run.progress_at)
    yield "checkpoint", f"{_text(run.checkpoint)}, of attempt {run.checkpoint_attempt}" if run.checkpoint else None
    yield "error", ": ".join(part for part in (summary.error_type, run.error_message) if part)
    yield "result", _text(run.result)
    yield "labels", ", ".join(f"{name}={value}" for name, value in run.labels.items())
    yield "request", run.request_id
    yield "trace", run.traceparent
    yield "dead letter", str(run.dead_letter) if run.dead_letter else None
    yield from lineage_facts(run)
    yield "attempts", "\n".join("  ".join(filter(None, attempt_row(one))) for one in run.attempts)


def lineage_facts(run: RunDetail) -> Iterator[tuple[str, str | None]]:
    """What a run is a retry of, and its own retries."""
    lineage = run.lineage
    older = [_kin(one) for one in lineage.older] or ([str(lineage.parent_run_id)] if lineage.parent_run_id else [])
    yield "came from", "\n".join(older)
    yield "retried as", "\n".join(map(_kin, lineage.newer))


def _kin(run: Kin) -> str:
    return f"{run.run_id}  {run.state}"


def _attempt_words(run: RunDetail) -> str:
    counted = [
        f"{run.failed_attempts} charged" if run.failed_attempts else "",
        f"{run.lost_attempts} lost" if run.lost_attempts else "",
    ]
    return ", ".join(part for part in (str(run.summary.attempt), *counted) if part)


def _text(value: bytes | UUID | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else None
