"""`tidewheel admin find`: what an id or a key names."""

from typing import Annotated

import typer

from tidewheel.control.ask import Answer, Kind, NotUnderstood, ask
from tidewheel.control.cli.options import DEFAULT_TENANT, Tenant, reading, tenant_flag
from tidewheel.control.cli.output import Output, OutputOption, print_document, print_table, wrapped

_COMMANDS = {
    Kind.RUN: "tidewheel run show {}",
    Kind.DEAD_LETTER: "tidewheel dlq show {}",
    Kind.JOB: "tidewheel job show {}",
}


def answer(
    question: Annotated[
        list[str],
        typer.Argument(metavar="TEXT", help="A run id, #4711, a key, or the beginning of one; quotes are optional."),
    ],
    *,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Find what a text names: a run, a dead letter or a job."""
    with reading() as connection:
        found = ask(connection, tenant, " ".join(question))
    if found.kind is Kind.NOTHING:
        raise NotUnderstood(found)
    if output is not Output.TEXT:
        print_document(found, output)
    else:
        _print(found, tenant)


def _print(found: Answer, tenant: str) -> None:
    if found.target is not None:
        typer.echo(wrapped(f"{_name(found.kind)} {found.target}: {found.words}", "  "))
        typer.echo(_COMMANDS[found.kind].format(found.target) + tenant_flag(tenant))
    if found.alternatives:
        if found.target is not None:
            typer.echo("")
        rows = [(_name(each.kind), each.target, each.words) for each in found.alternatives]
        print_table(("kind", "name", "about"), rows)


def _name(kind: Kind) -> str:
    return kind.replace("_", " ")
