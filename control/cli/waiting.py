"""`--wait` and `--follow`: wait for a run that a command has started, or shows.

An interrupt ends the command and leaves the run going.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.output import Output, has_colour, print_document
from tidewheel.control.cli.tables import cell_text, state_text
from tidewheel.runs import RunState

if TYPE_CHECKING:
    from tidewheel.control.client.client import Client
    from tidewheel.nouns.runs.model import Run

Wait = Annotated[bool, typer.Option("--wait", help="Wait until it has ended; exit code 1 unless it succeeded.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Wait until it has ended, then show it.")]


_REASON_SECONDS = 1.0  # most runs end earlier


def wait_for_run(client: "Client", run_id: UUID) -> "Run":
    """Wait until a run has ended; print its id on standard error, and each reason for which it waits."""
    typer.echo(f"waiting for run {run_id}; Ctrl-C ends the waiting and not the run", err=True)
    seen = None
    while True:
        with suppress(TimeoutError):
            return client.runs.wait(run_id, _REASON_SECONDS)
        run = client.runs.detail(run_id).summary
        if run.why is not None and (run.status, run.why.code) != seen:
            seen = run.status, run.why.code
            remedy = f"; remedy: {run.why.remedy}" if run.why.remedy else ""
            typer.echo(f"it is {run.status}: {run.why.words}{remedy}", err=True)


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
