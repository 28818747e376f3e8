"""`tidewheel ask`: one question for an id, a key, or an instant of a job."""

from typing import Annotated

import typer

from tidewheel.control.ask.answer import Answer, Kind, Meaning, NotUnderstood, ask
from tidewheel.control.cli.options import DEFAULT_TENANT, Tenant, reading, tenant_flag
from tidewheel.control.cli.output import Output, OutputOption, print_document, print_table, wrapped
from tidewheel.control.cli.time_options import Tz, utc_and_local
from tidewheel.settings.connections import Connections

_COMMANDS = {
    Kind.RUN: "tidewheel run show {}",
    Kind.DEAD_LETTER: "tidewheel dlq show {}",
    Kind.JOB: "tidewheel job show {}",
    Kind.EXECUTOR: "tidewheel executor list",
}


def answer(
    question: Annotated[
        list[str],
        typer.Argument(metavar="QUESTION", help="A run id, #4711, a key, or KEY at TIME; quotes are optional."),
    ],
    *,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Find what a text names: a run, a dead letter, a job, or why a job did or did not fire at a time."""
    late = Connections.load().misfire_after
    with reading() as connection:
        found = ask(connection, tenant, " ".join(question), timezone, all_tenants=True, misfire_after=late)
    if found.kind is Kind.NOTHING:
        raise NotUnderstood(found)
    if output is not Output.TEXT:
        print_document(found, output)
    else:
        _print(found, tenant)


def _print(found: Answer, tenant: str) -> None:
    if found.at is not None:
        typer.echo(wrapped(f"{found.target} at {utc_and_local(found.at, found.zone)}", "  "))
        typer.echo(wrapped(found.words))
        for note in found.explanation.notes if found.explanation else ():
            typer.echo(wrapped(f"! {note}", "  "))
    elif found.target is not None:
        typer.echo(wrapped(f"{_name(found.kind)} {found.target}: {found.words}", "  "))
        if command := _COMMANDS.get(found.kind):
            typer.echo(command.format(found.target) + tenant_flag(tenant))
    if found.alternatives:
        if found.kind is not Kind.MATCHES:
            typer.echo("")
        print_table(("kind", "name", "about"), (_row(each, found.zone) for each in found.alternatives))


def _row(each: Meaning, zone: str | None) -> tuple[str, str, str]:
    about = each.words if each.at is None else f"{utc_and_local(each.at, zone)}, {each.words}"
    return (_name(each.kind), each.target, about)


def _name(kind: Kind) -> str:
    return kind.replace("_", " ")
