"""`tidewheel workflow …`: flags and texts that their declarations lack."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated

import typer

from tidewheel.control.cli.options import RunId, utc_and_local
from tidewheel.control.cli.output import Output, Shown, Table, changed, count_text, moment, print_record
from tidewheel.control.cli.parser import argument
from tidewheel.control.cli.tables import Cell
from tidewheel.doors.cli import Flag, command
from tidewheel.nouns.workflows.operations import Workflow, WorkflowNode, Workflows, WorkflowSummary

_SIGNS = {"succeeded": "+", "failed": "x", "timed_out": "x", "running": ">", "cancelled": "-", "skipped": "-"}
_OTHER_SIGN = "."


def _show(shown: Shown) -> None:
    found: Workflow = shown.found
    print_graph(_facts(found.summary, shown.zone), found.nodes, found, shown.output)


def print_graph(
    facts: Iterable[tuple[str, str | None]], nodes: Sequence[WorkflowNode], document: object, output: Output
) -> None:
    """Print facts with the graphs below, or the same as one document."""
    print_record(facts, document, output)
    if output is Output.TEXT:
        typer.echo()
        for line in _drawing(nodes):
            typer.echo(line)


def _drawing(nodes: Sequence[WorkflowNode]) -> Iterator[str]:
    """Yield the lines of graphs: each node beneath its first parent, the other parents beside it."""
    beneath: dict[str, list[WorkflowNode]] = {}
    for node in nodes:
        if node.parents:
            beneath.setdefault(node.parents[0].key, []).append(node)
    waiting = [(node, "", "") for node in reversed(nodes) if not node.parents]
    while waiting:
        node, lead, follow = waiting.pop()
        yield f"{lead}{_SIGNS.get(node.state, _OTHER_SIGN)} {node.key}  {node.state}{_beside(node)}"
        children = beneath.pop(node.key, [])  # once, also if damaged keys make a circle
        for number, child in reversed(list(enumerate(children, start=1))):
            last = number == len(children)
            waiting.append((child, follow + ("└─ " if last else "├─ "), follow + ("   " if last else "│  ")))


def _beside(node: WorkflowNode) -> str:
    """Return the notes behind a state: conditions, other parents, reason, attempts."""
    notes = [f"on {node.parents[0].when}"] if node.parents and node.parents[0].when != "success" else []
    notes += [f"and {one.key}" + (f" on {one.when}" if one.when != "success" else "") for one in node.parents[1:]]
    notes += [node.reason] if node.reason else []
    notes += [f"{node.attempt} attempts"] if node.attempt > 1 else []
    return f"  ({', '.join(notes)})" if notes else ""


def _row(workflow: WorkflowSummary) -> tuple[Cell, ...]:
    return (
        str(workflow.root_run_id),
        workflow.key,
        workflow.state,
        workflow.scheduled_at,
        str(workflow.pending or ""),
        str(workflow.failed or ""),
    )


def _facts(workflow: WorkflowSummary, zone: str | None) -> Iterator[tuple[str, str | None]]:
    yield "root", workflow.key
    yield "root run", str(workflow.root_run_id)
    yield "state", workflow.state
    yield "scheduled", utc_and_local(workflow.scheduled_at, zone)
    yield "resumed", count_text(workflow.generation, "time") if workflow.generation else None
    yield "pending", str(workflow.pending) if workflow.pending else None
    yield "failed", str(workflow.failed) if workflow.failed else None
    yield "reason", workflow.reason
    yield "finished", moment(workflow.finished_at, zone) if workflow.finished_at else None


_ROOT = Annotated[str | None, argument("KEY", "Only occurrences of this root.")]
_ONE: Mapping[str, Flag | None] = {"root_run_id": Flag(kind=RunId)}
_WORKFLOWS = Table("workflow", ("root run", "key", "state", "scheduled", "pending", "failed"), _row)

_workflow = partial(command, Workflows, flags=_ONE)
list_workflows = _workflow(
    "list", partial(_WORKFLOWS.show, nothing="no workflows", spare=("pending", "failed", "scheduled")),
    flags={"key": Flag(kind=_ROOT), "limit": Flag(default=50)},
)  # fmt: skip
show = _workflow("get", _show, local_times=True)
pause = _workflow("pause", changed("workflow", "paused", "the occurrence is already paused, or has ended"))
resume = _workflow("resume", changed("workflow", "resumed", "the occurrence is already open, or has ended"))
cancel = _workflow("cancel", changed("workflow", "cancelled", "the occurrence is already cancelled, or has ended"))
