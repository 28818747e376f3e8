"""`tidewheel job backfill` and `tidewheel backfill list | show | pause | resume | cancel`."""

from collections.abc import Iterator
from typing import Annotated
from uuid import UUID

import typer

from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.options import (
    DEFAULT_TENANT,
    Key,
    Limit,
    Reason,
    RequestId,
    Tenant,
    Tz,
    reading,
    requesting,
    utc_and_local,
)
from tidewheel.control.cli.output import (
    Output,
    OutputOption,
    count_text,
    moment,
    print_document,
    print_facts,
    print_result,
    print_table,
)
from tidewheel.control.cli.waiting import Follow, Wait, wait_for_backfill
from tidewheel.control.client.results import BackfillResult
from tidewheel.control.instants import read_instant
from tidewheel.control.reads import backfills as read
from tidewheel.control.reads.json_form import as_json
from tidewheel.jobs.strict_json import as_object
from tidewheel.schedules.decision import BackfillState

BackfillId = Annotated[UUID, typer.Argument(metavar="ID", help="The id that `job backfill` printed.")]


def backfill_job(
    key: Key,
    *,
    from_at: Annotated[str, typer.Option("--from", metavar="TIME", help="The first instant of the range.")],
    to_at: Annotated[str, typer.Option("--to", metavar="TIME", help="The last instant of the range.")],
    what: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT", help="Occurrences to run: missing_only (no run, or a skipped or cancelled one) or all."
        ),
    ] = None,
    versions: Annotated[
        str | None, typer.Option(metavar="WHICH", help="Version of the job: as_of (the one in force then) or current.")
    ] = None,
    overlap: Annotated[str | None, typer.Option(metavar="POLICY", help="Overlap policy instead of the job's.")] = None,
    max_concurrent: Annotated[
        int | None, typer.Option(metavar="N", help="Have at most this many open runs; 10 by default.")
    ] = None,
    order: Annotated[
        str | None, typer.Option(metavar="ORDER", help="Order of the runs: oldest_first or newest_first.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the number of occurrences; run none.")] = False,
    wait: Wait = False,
    reason: Reason = None,
    request_id: RequestId = None,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Run the occurrences of a past range; print the backfill's id."""
    first, last = read_instant(from_at, "--from", timezone), read_instant(to_at, "--to", timezone)
    with requesting(tenant) as client:
        done = client.backfill(
            key,
            first,
            last,
            what=what,
            versions=versions,
            overlap=overlap,
            max_concurrent=max_concurrent,
            order=order,
            dry_run=dry_run,
            reason=reason,
            request_id=request_id,
        )
        if wait and done.backfill_id is not None:
            _print_progress(wait_for_backfill(client, done.backfill_id), timezone, output, ended=True)
            return
    if done.backfill_id is None:
        lines = [f"{count_text(done.occurrences or 0, 'occurrence')} would be run"]
    else:
        lines = [f"backfill {done.backfill_id}", count_text(done.occurrences or 0, "occurrence")]
    print_result(lines, {"key": key, **(as_object(as_json(done)) or {})}, output)


def list_backfills(
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="Only backfills of this job.")] = None,
    *,
    number: Limit = 50,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List backfills, the newest first."""
    with reading() as connection:
        found = read.backfills(connection, tenant, key, limit=number)
    if output is not Output.TEXT:
        print_document({"backfills": found}, output)
    elif found:
        print_table(("id", "key", "state", "processed", "runs"), map(_row, found))
    else:
        typer.echo("no backfills")


def show_backfill(
    backfill_id: BackfillId,
    *,
    follow: Follow = False,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a backfill: its range, progress and runs."""
    if follow:
        with requesting(tenant) as client:
            _print_progress(wait_for_backfill(client, backfill_id), timezone, output, ended=True)
        return
    with reading() as connection:
        found = read.backfill(connection, tenant, backfill_id)
    _print_progress(found, timezone, output, ended=False)


def _print_progress(found: read.BackfillProgress, timezone: str | None, output: Output, *, ended: bool) -> None:
    """Print a backfill; exit with code 1 if it has ended, and not all of its runs succeeded."""
    if output is not Output.TEXT:
        summary = as_object(as_json(found.summary)) or {}
        print_document({**summary, "processed": found.processed, "runs": found.runs}, output)
    else:
        print_facts(_facts(found, timezone))
    if ended and (found.failed or found.undone or found.summary.state != BackfillState.FINISHED):
        raise typer.Exit(ExitCode.FAILED)


def pause_backfill(
    backfill_id: BackfillId,
    *,
    reason: Reason = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create no further run of a backfill until it is resumed."""
    with requesting(tenant) as client:
        _print_new_state(
            client.backfills.pause(backfill_id, reason=reason), BackfillState.PAUSED, "paused", backfill_id, output
        )


def resume_backfill(
    backfill_id: BackfillId, *, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT
) -> None:
    """Resume a backfill."""
    with requesting(tenant) as client:
        _print_new_state(client.backfills.resume(backfill_id), BackfillState.RUNNING, "resumed", backfill_id, output)


def cancel_backfill(
    backfill_id: BackfillId,
    *,
    reason: Reason = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Stop a backfill and cancel its runs that have not started."""
    with requesting(tenant) as client:
        _print_new_state(
            client.backfills.cancel(backfill_id, reason=reason),
            BackfillState.CANCELLED,
            "cancelled",
            backfill_id,
            output,
        )


def _row(backfill: read.BackfillSummary) -> tuple[str, ...]:
    processed = f"{backfill.created_count + backfill.existing_count} of {backfill.occurrences}"
    return str(backfill.backfill_id), backfill.key, _state(backfill), processed, str(backfill.created_count)


def _state(backfill: read.BackfillSummary) -> str:
    return f"{backfill.state}, {read.ENDS}" if backfill.ending else backfill.state


def _facts(progress: read.BackfillProgress, zone: str | None) -> Iterator[tuple[str, str | None]]:
    backfill = progress.summary
    yield "backfill", str(backfill.backfill_id)
    yield "key", backfill.key
    yield "state", _state(backfill)
    yield "from", utc_and_local(backfill.first_at, zone)
    yield "to", utc_and_local(backfill.last_at, zone)
    yield "processed", f"{progress.processed:,} of {count_text(backfill.occurrences, 'occurrence')}"
    yield "runs created", str(backfill.created_count)
    yield "their states", ", ".join(f"{count} {state}" for state, count in sorted(progress.runs.items()))
    yield "next at", utc_and_local(backfill.cursor_at, zone) if backfill.cursor_at else None
    yield "what", backfill.what
    yield "versions", backfill.versions if backfill.versions == "as_of" else f"current: {backfill.job_version}"
    yield "overlap", backfill.overlap
    yield "order", "newest first" if backfill.newest_first else "oldest first"
    yield "open runs", f"at most {backfill.max_concurrent}"
    yield "reason", backfill.reason
    yield "created", moment(backfill.created_at, zone)
    yield "finished", moment(backfill.finished_at, zone) if backfill.finished_at else None


def _print_new_state(
    done: BackfillResult, requested: BackfillState, what: str, backfill_id: UUID, output: Output
) -> None:
    """Print a backfill's new state; exit with code 5 if its old state does not allow the change."""
    reached = not done.unchanged or done.status == requested
    text = f"unchanged: the backfill is {'already ' if reached else ''}{done.status}" if done.unchanged else what
    document = {"backfill_id": backfill_id, "unchanged": done.unchanged, "status": done.status}
    print_result([f"backfill {backfill_id}: {text}"], document, output)
    if not reached:
        raise typer.Exit(ExitCode.REFUSED)
