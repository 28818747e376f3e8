"""Text of runs and attempts, and `--wait` and `--follow`: the wait for a run's end.

An interrupt ends the command and leaves the run going.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.options import utc_and_local
from tidewheel.control.cli.output import Output, duration_text, has_colour, moment, print_document
from tidewheel.control.cli.parser import switch
from tidewheel.control.cli.tables import Cell, cell_text, state_text
from tidewheel.jobs.values import format_duration
from tidewheel.nouns.runs.model import PastAttempt, RelatedRun, RunDetail, RunSummary
from tidewheel.runs import RunState

if TYPE_CHECKING:
    from tidewheel.control.client.client import Client
    from tidewheel.nouns.runs.model import Run


Wait = Annotated[bool, switch("Wait for the end; exit code 1 unless it succeeded.", "--wait")]
Follow = Annotated[bool, switch("Wait until the run has ended, then show it.", "--follow", "-f")]

_REASON_SECONDS = 1.0  # most runs end earlier


def run_row(run: RunSummary) -> tuple[Cell, ...]:
    """Return a run as a row of a list."""
    return (
        str(run.run_id),
        run.key,
        run.status,
        run.cause,
        run.scheduled_at,
        str(run.attempt),
        _duration(run.started_at, run.finished_at),
        run.why.words if run.why else ": ".join(dict.fromkeys(part for part in (run.error_type, run.reason) if part)),
    )


def attempt_row(attempt: PastAttempt) -> tuple[Cell, ...]:
    """Return an attempt as a row of a list."""
    return (
        str(attempt.attempt),
        attempt.outcome,
        attempt.started_at,
        _duration(attempt.started_at, attempt.finished_at),
        str(attempt.executor_id or ""),
        ": ".join(part for part in (attempt.error_type, attempt.error_message) if part),
    )


def attempt_rows(run: RunDetail) -> Iterator[tuple[Cell, ...]]:
    """Yield the attempts of a run as rows of a list: those that have ended, and the current one."""
    yield from map(attempt_row, run.attempts)
    summary = run.summary
    if summary.finished_at is None and run.executor_id and summary.started_at:
        yield str(summary.attempt), summary.status, summary.started_at, "", str(run.executor_id), ""


def attempt_facts(attempt: PastAttempt) -> Iterator[tuple[str, str | None]]:
    """Yield the result, trace and output of an attempt, labelled."""
    if attempt.result is not None:
        yield "result", attempt.result.decode(errors="replace")
    if attempt.trace:
        yield "trace", attempt.trace
    if attempt.output:
        yield "output", attempt.output.decode(errors="replace")


def run_facts(run: RunDetail, zone: str | None) -> Iterator[tuple[str, str | None]]:
    """Yield everything about a run, labelled."""
    summary = run.summary

    def at(instant: datetime | None) -> str | None:
        return None if instant is None else moment(instant, zone)

    yield "run", str(summary.run_id)
    yield "key", summary.key
    yield "version", str(summary.job_version)
    yield "status", ", ".join(part for part in (summary.status, summary.reason) if part)
    yield "why", summary.why.words if summary.why else None
    yield "remedy", summary.why.remedy if summary.why else None
    yield "cause", summary.cause
    yield "scheduled", utc_and_local(summary.scheduled_at, zone)  # exactly, as `explain --at` takes it
    yield "late", format_duration(run.late) if run.late else None
    yield "created", at(summary.created_at)
    yield "claimable", at(summary.publish_at)
    yield "started", at(summary.started_at)
    yield "finished", at(summary.finished_at)
    yield "duration", _duration(summary.started_at, summary.finished_at)
    yield "queue", f"{summary.queue}, {summary.lane} lane"
    yield "concurrency key", summary.concurrency_key
    yield "requires", run.handler
    yield "attempt", _attempt_text(run)
    yield "executor", ", ".join(str(part) for part in (run.executor, run.executor_id) if part)
    yield "deadline", at(run.deadline_at)
    yield "schedule-to-close at", at(run.schedule_to_close_at)
    yield "external deadline", at(run.external_deadline_at)
    yield "progress", _text(run.progress)
    yield "last heartbeat", at(run.progress_at)
    yield "checkpoint", f"{_text(run.checkpoint)}, of attempt {run.checkpoint_attempt}" if run.checkpoint else None
    yield "error", ": ".join(part for part in (summary.error_type, run.error_message) if part)
    yield "result", _text(run.result)
    yield "labels", ", ".join(f"{name}={value}" for name, value in run.labels.items())
    yield "request", run.request_id
    yield "trace", run.traceparent
    yield "dead letter", str(run.dead_letter) if run.dead_letter else None
    yield from retry_chain_facts(run)
    yield "copied", "yes: its day was dropped; a copy of the failure remains" if run.copied else None
    yield "archived", "yes: without outputs, results and progress" if run.archived else None
    yield "attempts", "\n".join("  ".join(filter(None, map(cell_text, row))) for row in attempt_rows(run))


def retry_chain_facts(run: RunDetail) -> Iterator[tuple[str, str | None]]:
    """Yield the runs that a run retries, and its retries, labelled."""
    chain = run.retry_chain
    previous = list(map(_related_text, chain.previous)) or ([str(chain.parent_run_id)] if chain.parent_run_id else [])
    yield "retry of", "\n".join(previous)
    yield "retried as", "\n".join(map(_related_text, chain.next))


def _related_text(run: RelatedRun) -> str:
    return f"{run.run_id}  {run.state}"


def _attempt_text(run: RunDetail) -> str:
    """Return the last attempt, and how many attempts count against the limit."""
    number, most = run.summary.attempt, run.max_attempts
    if number <= most and not run.lost_attempts:
        text = f"{number} of {most}" if number else f"none of {most} yet"
        failed = f"{run.failed_attempts} failed" if run.failed_attempts else ""
    else:
        # Attempts that are lost, released or snoozed do not count.
        text, failed = str(number), f"{run.failed_attempts or 0} of {most} failed"
    lost = f"{run.lost_attempts} lost" if run.lost_attempts else ""
    return ", ".join(part for part in (text, failed, lost) if part)


def _duration(since: datetime | None, until: datetime | None) -> str:
    return duration_text(None if since is None or until is None else until - since)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def wait_for_run(client: "Client", run_id: UUID) -> "Run":
    """Wait until a run has ended; print its id on standard error, and each reason for which it waits."""
    typer.echo(f"waiting for run {run_id}; Ctrl-C stops waiting, and the run continues", err=True)
    seen = None
    while True:
        with suppress(TimeoutError):
            return client.runs.wait(run_id, _REASON_SECONDS)
        run = client.runs.detail(run_id).summary
        if run.why is not None and (run.status, run.why.code) != seen:
            seen = run.status, run.why.code
            remedy = f"; remedy: {run.why.remedy}" if run.why.remedy else ""
            typer.echo(f"{run.status}: {run.why.words}{remedy}", err=True)


def print_ended_run(run: "Run", document: dict[str, object], output: Output) -> None:
    """Print the end of a run; exit with code 1 unless it succeeded."""
    error = ": ".join(part for part in (run.error_type, run.error_message) if part)
    why = ", ".join(dict.fromkeys(part for part in (run.reason, error) if part))
    line = f"run {run.run_id}: {state_text(run.state, colour=has_colour())}"
    ended = {
        "status": run.state,
        "reason": run.reason,
        "error_type": run.error_type,
        "error_message": run.error_message,
    }
    if output is Output.TEXT:
        typer.echo(f"{line}: {cell_text(why)}" if why else line, color=True)
    else:
        print_document({**document, **ended, "result": run.result}, output)
    if run.state != RunState.SUCCEEDED:
        raise typer.Exit(ExitCode.FAILED)
