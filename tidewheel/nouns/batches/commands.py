"""`tidewheel batch …`: flags and texts that their declarations lack."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any

import typer

from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.job_files import read_document
from tidewheel.control.cli.options import FromRun, requesting
from tidewheel.control.cli.output import Output, Shown, Table, changed, count_text, moment, print_result
from tidewheel.control.cli.parser import option
from tidewheel.control.cli.run_output import Wait
from tidewheel.doors.cli import Flag, command
from tidewheel.errors import refuse
from tidewheel.jobs.validation import shown as shown_text
from tidewheel.nouns.batches.operations import Batch, Batches, BatchSummary
from tidewheel.nouns.workflows.commands import print_graph
from tidewheel.nouns.workflows.operations import Parent, WorkflowNode

_Prepare = Callable[[dict[str, Any], Mapping[str, Any]], None]


def _from_file(*fields: str) -> _Prepare:
    """Return what takes arguments from the file that is given as `runs`."""

    def prepare(arguments: dict[str, Any], _: Mapping[str, Any]) -> None:
        remedy = f"write an object with {', '.join(fields)}"
        given = read_document(arguments["runs"], remedy)
        for name in given.keys() - set(fields):
            refuse("--file", f"has no field {shown_text(name)}", remedy)
        arguments |= {"runs": None, **given}

    return prepare


def _show_submitted(shown: Shown) -> None:
    """Print a new batch, or once it has ended; then exit with code 1 unless it succeeded."""
    if not shown.options["wait"]:
        print_result([f"batch {shown.found}: submitted"], {"batch_id": shown.found}, shown.output)
        return
    with requesting(shown.tenant) as client:
        found = client.batches.wait(shown.found)
    _print(found, shown)
    if found.summary.state != "succeeded":
        raise typer.Exit(ExitCode.FAILED)


def _show(shown: Shown) -> None:
    _print(shown.found, shown)


def _print(found: Batch, shown: Shown) -> None:
    nodes = [
        WorkflowNode(
            run.ref, run.state, [Parent(one.ref, one.when) for one in run.parents], run.run_id, run.reason, run.attempt
        )
        for run in found.runs
    ]
    print_graph(_facts(found.summary, shown.zone), nodes, found, shown.output)
    if (more := found.summary.total - len(nodes)) > 0 and shown.output is Output.TEXT:
        typer.echo(f"… and {more:,} more; raise -n to show more")


def _row(batch: BatchSummary) -> tuple[str, ...]:
    return str(batch.batch_id), batch.state, str(batch.total), str(batch.pending), str(batch.failed)


def _facts(batch: BatchSummary, zone: str | None) -> Iterator[tuple[str, str | None]]:
    yield "batch", str(batch.batch_id)
    yield "state", batch.state + (", accepts more runs" if batch.accepts_runs else "")
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


_FILE = Annotated[str, option("FILE", "The batch in JSON or YAML: runs, on, open; - reads stdin.", "--file", "-f")]
_ONE: Mapping[str, Flag | None] = {"batch_id": Flag(help="The id that `batch submit` printed.")}
_IN_FILE: Mapping[str, Flag | None] = {**_ONE, "runs": Flag(kind=_FILE), "on": None, "open": None}
_ENDED = "already, or has ended"

_batch = partial(command, Batches)
submit = _batch(
    "submit", _show_submitted, flags=_IN_FILE, options={"wait": Wait}, prepare=_from_file("runs", "on", "open"),
    local_times=True,
)  # fmt: skip
add = _batch(
    "add", changed("batch", "runs added", "the batch already has these runs"),
    flags={**_IN_FILE, "from_run_id": Flag(kind=FromRun)}, prepare=_from_file("runs"),
)  # fmt: skip
close = _batch("close", changed("batch", "closed", f"the batch is closed {_ENDED}"), flags=_ONE)
resume = _batch("resume", changed("batch", "resumed", "the batch is open"), flags=_ONE)
cancel = _batch("cancel", changed("batch", "cancelled", f"the batch is cancelled {_ENDED}"), flags=_ONE)
list_batches = _batch(
    "list", partial(Table("batch", ("batch", "state", "runs", "pending", "failed"), _row).show, nothing="no batches"),
    flags={"limit": Flag(default=50)},
)  # fmt: skip
show = _batch("get", _show, flags={**_ONE, "limit": Flag(default=100)}, local_times=True)
