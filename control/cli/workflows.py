"""`tidewheel workflow list | show | pause | resume | cancel`."""

from collections.abc import Iterator, Sequence
from typing import Annotated
from uuid import UUID

import typer

from tidewheel.control.cli.options import DEFAULT_TENANT, Limit, Reason, Tenant, Tz, reading, requesting, utc_and_local
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
from tidewheel.control.cli.run_ids import RunId
from tidewheel.control.cli.tables import Cell
from tidewheel.control.reads import workflows as read

_SIGNS = {"succeeded": "+", "failed": "x", "timed_out": "x", "running": ">", "cancelled": "-", "skipped": "-"}
_OTHER_SIGN = "."


def list_workflows(
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="Only occurrences of this root.")] = None,
    *,
    number: Limit = 50,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List occurrences of workflows, the newest first."""
    with reading() as connection:
        found = read.workflows(connection, tenant, key, limit=number)
    if output is not Output.TEXT:
        print_document({"workflows": found}, output)
    elif found:
        headings = ("root run", "key", "state", "scheduled", "pending", "failed")
        print_table(headings, map(_row, found), spare=("pending", "failed", "scheduled"))
    else:
        typer.echo("no workflows")


def show_workflow(
    root_run_id: RunId,
    *,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show an occurrence: its graph, with the state of each job's run."""
    with reading() as connection:
        found = read.workflow(connection, tenant, root_run_id)
    if output is not Output.TEXT:
        print_document(found, output)
        return
    print_facts(_facts(found.summary, timezone))
    typer.echo()
    for line in drawing(found.nodes):
        typer.echo(line)


def pause_workflow(
    root_run_id: RunId,
    *,
    reason: Reason = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Release no further run of an occurrence until it is resumed; queued runs go on."""
    with requesting(tenant) as client:
        _print_change(client.workflows.pause(root_run_id, reason=reason), "paused", root_run_id, output)


def resume_workflow(root_run_id: RunId, *, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT) -> None:
    """Go on with a paused occurrence, or run the failed part of an ended one again."""
    with requesting(tenant) as client:
        _print_change(client.workflows.resume(root_run_id), "resumed", root_run_id, output)


def cancel_workflow(
    root_run_id: RunId,
    *,
    reason: Reason = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Cancel the runs of an occurrence, and release no further one."""
    with requesting(tenant) as client:
        _print_change(client.workflows.cancel(root_run_id, reason=reason), "cancelled", root_run_id, output)


def drawing(nodes: Sequence[read.WorkflowNode]) -> Iterator[str]:
    """Yield the lines of graphs: each node beneath its first parent, the other parents beside it."""
    beneath: dict[str, list[read.WorkflowNode]] = {}
    for node in nodes:
        if node.parents:
            beneath.setdefault(node.parents[0].key, []).append(node)
    waiting = [(node, "", "") for node in reversed(nodes) if not node.parents]
    while waiting:
        node, lead, follow = waiting.pop()
        yield f"{lead}{_SIGNS.get(node.state, _OTHER_SIGN)} {node.key}  {node.state}{_beside(node)}"
        children = beneath.get(node.key, [])
        for number, child in reversed(list(enumerate(children, start=1))):
            last = number == len(children)
            waiting.append((child, follow + ("└─ " if last else "├─ "), follow + ("   " if last else "│  ")))


def _beside(node: read.WorkflowNode) -> str:
    """Return the notes behind a state: conditions, other parents, reason, attempts."""
    notes = [f"on {node.parents[0].when}"] if node.parents and node.parents[0].when != "success" else []
    notes += [f"and {one.key}" + (f" on {one.when}" if one.when != "success" else "") for one in node.parents[1:]]
    notes += [node.reason] if node.reason else []
    notes += [f"{node.attempt} attempts"] if node.attempt > 1 else []
    return f"  ({', '.join(notes)})" if notes else ""


def _row(workflow: read.WorkflowSummary) -> tuple[Cell, ...]:
    return (
        str(workflow.root_run_id),
        workflow.key,
        workflow.state,
        workflow.scheduled_at,
        str(workflow.pending or ""),
        str(workflow.failed or ""),
    )


def _facts(workflow: read.WorkflowSummary, zone: str | None) -> Iterator[tuple[str, str | None]]:
    yield "root", workflow.key
    yield "root run", str(workflow.root_run_id)
    yield "state", workflow.state
    yield "scheduled", utc_and_local(workflow.scheduled_at, zone)
    yield "resumed", count_text(workflow.generation, "time") if workflow.generation else None
    yield "pending", str(workflow.pending) if workflow.pending else None
    yield "failed", str(workflow.failed) if workflow.failed else None
    yield "reason", workflow.reason
    yield "finished", moment(workflow.finished_at, zone) if workflow.finished_at else None


def _print_change(changed: bool, what: str, root_run_id: UUID, output: Output) -> None:  # noqa: FBT001 - the result
    text = what if changed else f"unchanged: it is already {'open' if what == 'resumed' else what}, or has ended"
    document = {"root_run_id": root_run_id, "unchanged": not changed}
    print_result([f"workflow {root_run_id}: {text}"], document, output)
