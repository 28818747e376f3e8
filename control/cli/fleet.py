"""`tidewheel admin executors` and `shard list`: the lists of the whole installation."""

from typing import Annotated
from uuid import UUID

import typer

from tidewheel.control.cli.options import Limit, reading
from tidewheel.control.cli.output import Output, OutputOption, print_document, print_table
from tidewheel.control.cli.tables import Cell
from tidewheel.control.reads import fleet as read
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import read_installation


def list_executors(
    *,
    after: Annotated[
        UUID | None, typer.Option(metavar="ID", help="Begin after this executor; the last line of a page names it.")
    ] = None,
    number: Limit = 50,
    output: OutputOption = Output.TEXT,
) -> None:
    """List executors, each with its slots, queues, handlers and last heartbeat."""
    with reading() as connection:
        found = read.list_executors(connection, after=after, limit=number + 1)
    page, more = found[:number], len(found) > number
    if output is not Output.TEXT:
        print_document({"executors": page, "next_cursor": page[-1].executor_id if more else None}, output)
    elif page:
        print_table(("executor", "name", "state", "heartbeat", "slots", "queues", "handlers"), map(_row, page))
        if more:
            typer.echo(f"more: add --after {page[-1].executor_id}")
    else:
        typer.echo("no executors")


def list_shards(*, output: OutputOption = Output.TEXT) -> None:
    """List shards, each with the scheduler that fires its jobs."""
    with reading() as connection:
        shards = read.list_shards(connection, read_installation(connection, Connections.load()).shards)
    if output is not Output.TEXT:
        print_document({"shards": shards}, output)
    else:
        rows = [
            (str(each.shard), each.owner.name, each.owner.last_heartbeat_at) if each.owner
            else (str(each.shard), "no scheduler", None)
            for each in shards
        ]  # fmt: skip
        print_table(("shard", "scheduler", "heartbeat"), rows)


def _row(each: read.ExecutorSummary) -> tuple[Cell, ...]:
    return (
        str(each.executor_id),
        each.name,
        "dead" if each.is_silent else "stopping" if each.stopping else "alive",
        each.last_heartbeat_at,
        str(each.slots),
        ", ".join(each.queues),
        ", ".join(each.handlers),
    )
