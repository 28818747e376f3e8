"""`tidewheel migrate` and `schemas`: what an operator runs around a deploy."""

import json
from typing import Annotated

import typer

from tidewheel.control.cli.output import Answer, Output
from tidewheel.migrations import runner
from tidewheel.schemas.compatibility import check as check_schemas
from tidewheel.settings import Connections

schemas = typer.Typer(help="The Avro schemas.", no_args_is_help=True)


def migrate(
    status: Annotated[bool, typer.Option("--status", help="Only show where each migration stands.")] = False,  # noqa: FBT002
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Run what is pending, then roll back.")] = False,  # noqa: FBT002
    output: Answer = Output.TEXT,
) -> None:
    """Bring the database to this release's schema."""
    url = Connections.load().database()
    if status:
        standing = [(row.name, row.standing.value, row.applied_at) for row in runner.status(url)]
        _say([f"{standing:<8} {name}" for name, standing, _ in standing], {"migrations": standing}, output)
        return
    applied = runner.migrate(url, dry_run=dry_run)
    verb = "would apply" if dry_run else "applied"
    _say([f"{verb} {name}" for name in applied] or ["nothing to do"], {verb.replace(" ", "_"): applied}, output)


@schemas.command("check")
def check(output: Answer = Output.TEXT) -> None:
    """See that every schema is fully compatible with every released version; exit code 1 when one is not."""
    found = check_schemas()
    _say(found or ["all schemas are compatible with every released version"], {"problems": found}, output)
    if found:
        raise typer.Exit(1)


def _say(lines: list[str], document: dict[str, object], output: Output) -> None:
    typer.echo(json.dumps(document, default=str) if output is Output.JSON else "\n".join(lines))
