"""`tidewheel batch submit | add | close | resume | cancel | list | show`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, TypeAlias, cast
from uuid import UUID

import typer

from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.job_files import read_document
from tidewheel.control.cli.options import DEFAULT_TENANT, Limit, Reason, RequestId, Tenant, Tz, reading, requesting
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
from tidewheel.control.cli.run_ids import FromRun
from tidewheel.control.cli.waiting import Wait
from tidewheel.control.cli.workflows import drawing
from tidewheel.control.reads import batches as read
from tidewheel.control.reads.workflows import Parent, WorkflowNode
from tidewheel.errors import refuse
from tidewheel.jobs.validation import shown

Runs: TypeAlias = Sequence[Mapping[str, object]]

BatchId = Annotated[UUID, typer.Argument(metavar="ID", help="The id that `batch submit` printed.")]
File = Annotated[
    str, typer.Option("--file", "-f", metavar="FILE", help="The batch in JSON or YAML: runs, on, open; - reads stdin.")
]


def submit_batch(
    *,
    file: File,
    wait: Wait = False,
    request_id: RequestId = None,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Run the jobs of a batch once each; print the batch's id."""
    given = _read(file, ("runs", "on", "open"))
    with requesting(tenant) as client:
        batch_id = client.batches.submit(
            cast("Runs", given.get("runs")),
            on=cast("Mapping[str, object] | None", given.get("on")),
            open=cast("bool", given.get("open", False)),
            request_id=request_id,
        )
        if not wait:
            print_result([f"batch {batch_id}: submitted"], {"batch_id": batch_id}, output)
            return
        found = client.batches.wait(batch_id)
    _print(found, timezone, output)
    if found.summary.state != "succeeded":
        raise typer.Exit(ExitCode.FAILED)


def add_runs(
    batch_id: BatchId,
    *,
    file: File,
    from_run: FromRun = None,
    request_id: RequestId = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Add the runs of a file to a batch that is open, or that a run of it extends."""
    given = _read(file, ("runs",))
    with requesting(tenant) as client:
        added = client.batches.add(
            batch_id, cast("Runs", given.get("runs")), from_run_id=from_run, request_id=request_id
        )
    print_result(
        [f"batch {batch_id}: {'runs added' if added else 'unchanged: it has these runs'}"],
        {"batch_id": batch_id, "unchanged": not added},
        output,
    )


def close_batch(batch_id: BatchId, *, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT) -> None:
    """Let an open batch end with its last run."""
    with requesting(tenant) as client:
        _print_change(client.batches.close(batch_id), "closed", batch_id, output)


def resume_batch(
    batch_id: BatchId,
    *,
    request_id: RequestId = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Go on with a paused batch, or run the failed part of an ended one again."""
    with requesting(tenant) as client:
        changed = client.batches.resume(batch_id, request_id=request_id)
    text = "resumed" if changed else "unchanged: it is open"
    print_result([f"batch {batch_id}: {text}"], {"batch_id": batch_id, "unchanged": not changed}, output)


def cancel_batch(
    batch_id: BatchId,
    *,
    reason: Reason = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Cancel the runs of a batch, and close it."""
    with requesting(tenant) as client:
        _print_change(client.batches.cancel(batch_id, reason=reason), "cancelled", batch_id, output)


def list_batches(
    *,
    after: Annotated[
        UUID | None, typer.Option(metavar="ID", help="Begin after this batch; the last line of a page names it.")
    ] = None,
    number: Limit = 50,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List batches, the newest first."""
    with reading() as connection:
        found = read.batches(connection, tenant, after=after, limit=number + 1)
    page, more = found[:number], len(found) > number
    if output is not Output.TEXT:
        print_document({"batches": page, "next_cursor": page[-1].batch_id if more else None}, output)
    elif page:
        print_table(("batch", "state", "runs", "pending", "failed"), map(_row, page))
        if more:
            typer.echo(f"more: add --after {page[-1].batch_id}")
    else:
        typer.echo("no batches")


def show_batch(
    batch_id: BatchId,
    *,
    number: Limit = 100,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a batch: its counts, and its runs beneath the runs that they come after."""
    with reading() as connection:
        found = read.batch(connection, tenant, batch_id, limit=number)
    _print(found, timezone, output)


def _read(file: str, fields: Sequence[str]) -> dict[str, object]:
    remedy = f"write an object with {', '.join(fields)}"
    given = read_document(file, remedy)
    for name in given.keys() - set(fields):
        refuse("--file", f"there is no field {shown(name)}", remedy)
    return given


def _print(found: read.Batch, timezone: str | None, output: Output) -> None:
    if output is not Output.TEXT:
        print_document(found, output)
        return
    print_facts(_facts(found.summary, timezone))
    typer.echo()
    nodes = [
        WorkflowNode(
            run.ref, run.state, [Parent(one.ref, one.when) for one in run.parents], run.run_id, run.reason, run.attempt
        )
        for run in found.runs
    ]
    for line in drawing(nodes):
        typer.echo(line)
    if (more := found.summary.total - len(nodes)) > 0:
        typer.echo(f"… and {more:,} more: -n shows more of them")


def _row(batch: read.BatchSummary) -> tuple[str, ...]:
    return str(batch.batch_id), batch.state, str(batch.total), str(batch.pending), str(batch.failed)


def _facts(batch: read.BatchSummary, zone: str | None) -> Iterator[tuple[str, str | None]]:
    yield "batch", str(batch.batch_id)
    yield "state", batch.state + (", takes further runs" if batch.accepts_runs else "")
    yield "resumed", count_text(batch.generation, "time") if batch.generation else None
    yield "runs", f"{batch.total:,}"
    yield "pending", f"{batch.pending:,}" if batch.pending else None
    yield "succeeded", f"{batch.succeeded:,}"
    yield "failed", f"{batch.failed:,}" if batch.failed else None
    yield "first failed", str(batch.first_failed_run_id) if batch.first_failed_run_id else None
    yield "cancelled", f"{batch.cancelled:,}" if batch.cancelled else None
    yield "skipped", f"{batch.skipped:,}" if batch.skipped else None
    yield "reason", batch.reason
    yield "created", moment(batch.created_at, zone)
    yield "finished", moment(batch.finished_at, zone) if batch.finished_at else None


def _print_change(changed: bool, what: str, batch_id: UUID, output: Output) -> None:  # noqa: FBT001 - the result
    text = what if changed else f"unchanged: it is {what} already, or has ended"
    print_result([f"batch {batch_id}: {text}"], {"batch_id": batch_id, "unchanged": not changed}, output)
