"""`tidewheel redrive list | show | pause | resume | cancel`: redrives of dead letters."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.options import DEFAULT_TENANT, Limit, Reason, Tenant, reading, requesting
from tidewheel.control.cli.output import (
    Output,
    OutputOption,
    moment,
    print_document,
    print_facts,
    print_result,
    print_table,
    progress_bar,
)
from tidewheel.control.cli.tables import Cell
from tidewheel.control.cli.time_options import Tz
from tidewheel.control.reads import redrives as read
from tidewheel.control.reads.dead_letters import COUNTED
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.schedules.decision import BackfillState

if TYPE_CHECKING:
    from tidewheel.control.client.client import Client
    from tidewheel.control.client.redrives import RedriveChange

RedriveId = Annotated[UUID, typer.Argument(metavar="ID", help="The id that `dlq redrive` printed.")]


def list_redrives(*, number: Limit = 50, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT) -> None:
    """List redrives, the newest first."""
    with reading() as connection:
        found = read.redrives(connection, tenant, limit=number)
    if output is not Output.TEXT:
        print_document({"redrives": found}, output)
    elif found:
        print_table(("id", "created", "state", "redriven", "rejected", "rate", "reason"), map(_row, found))
    else:
        typer.echo("no redrives")


def show_redrive(
    redrive_id: RedriveId,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the redrive is finished.")] = False,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a redrive: its filter, progress and rejected dead letters."""
    if follow:
        with requesting(tenant) as client:
            print_redrive(follow_redrive(client, redrive_id), timezone, output)
        return
    with reading() as connection:
        found = read.redrive(connection, tenant, redrive_id)
    _print(found, timezone, output)


def pause_redrive(
    redrive_id: RedriveId, *, reason: Reason = None, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT
) -> None:
    """Redrive no further dead letter until the redrive is resumed."""
    with requesting(tenant) as client:
        done = client.redrives.pause(redrive_id, reason=reason)
    _print_new_state(redrive_id, done, BackfillState.PAUSED, "paused", output)


def resume_redrive(
    redrive_id: RedriveId, *, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT
) -> None:
    """Resume a redrive."""
    with requesting(tenant) as client:
        done = client.redrives.resume(redrive_id)
    _print_new_state(redrive_id, done, BackfillState.RUNNING, "resumed", output)


def cancel_redrive(
    redrive_id: RedriveId, *, reason: Reason = None, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT
) -> None:
    """Stop a redrive; the runs that it has created go on."""
    with requesting(tenant) as client:
        done = client.redrives.cancel(redrive_id, reason=reason)
    _print_new_state(redrive_id, done, BackfillState.CANCELLED, "cancelled", output)


def follow_redrive(client: "Client", redrive_id: UUID) -> read.Redriving:
    """Wait until a redrive has ended, with a progress bar; an interrupt leaves the redrive running."""
    total = client.redrives.get(redrive_id).matched_count
    with progress_bar("redriving", total if total <= COUNTED else None) as show:
        return client.redrives.wait(redrive_id, on_progress=lambda redrive: show(redrive.processed))


def print_redrive(redrive: read.Redriving, zone: str | None, output: Output) -> None:
    """Print a redrive that has ended; exit with code 1 if it rejected a dead letter or was cancelled."""
    _print(redrive, zone, output)
    if redrive.rejected_count or redrive.state != BackfillState.FINISHED:
        raise typer.Exit(ExitCode.FAILED)


def _print(redrive: read.Redriving, zone: str | None, output: Output) -> None:
    if output is Output.TEXT:
        print_facts(_facts(redrive, zone))
    else:
        print_document(redrive, output)


def _row(redrive: read.Redriving) -> tuple[Cell, ...]:
    return (
        str(redrive.redrive_id),
        redrive.created_at,
        redrive.state,
        _redriven(redrive),
        f"{redrive.rejected_count:,}",
        _rate(redrive) or "",
        redrive.reason or "",
    )


def _facts(redrive: read.Redriving, zone: str | None) -> Iterator[tuple[str, str | None]]:
    yield "redrive", str(redrive.redrive_id)
    yield "state", redrive.state
    yield "redriven", f"{_redriven(redrive)} dead letters"
    yield "rejected", f"{redrive.rejected_count:,}" if redrive.rejected_count else None
    yield "rate", _rate(redrive)
    yield "kind", redrive.kind
    yield "ids", ", ".join(map(str, redrive.ids or ()))
    yield "job", redrive.key
    yield "status", redrive.status
    yield "error type", redrive.error_type
    yield "queue", redrive.queue
    yield "lane", redrive.lane
    yield "until", moment(redrive.until_at, zone)
    yield "reason", redrive.reason
    yield "created", moment(redrive.created_at, zone)
    yield "ended", moment(redrive.finished_at, zone) if redrive.finished_at else None
    yield "rejections", "\n".join(f"{each['id']}: {_problems(each['errors'])}" for each in redrive.rejections)


def _redriven(redrive: read.Redriving) -> str:
    matched = redrive.matched_count
    total = f"{matched:,}" if matched <= COUNTED else "more than were counted"
    return f"{redrive.redriven_count:,} of {total}"


def _rate(redrive: read.Redriving) -> str | None:
    return f"{redrive.rate:g}/s" if redrive.rate else None


def _problems(errors: object) -> str:
    found = filter(None, map(as_object, as_list(errors) or ()))
    return "; ".join(f"{each['path']}: {each['problem']}; {each['remedy']}" for each in found)


def _print_new_state(
    redrive_id: UUID, done: "RedriveChange", requested: BackfillState, what: str, output: Output
) -> None:
    """Print a redrive's new state; exit with code 5 if its old state does not allow the change."""
    reached = not done.unchanged or done.status == requested
    text = f"unchanged: the redrive is {'already ' if reached else ''}{done.status}" if done.unchanged else what
    document = {"redrive_id": redrive_id, "unchanged": done.unchanged, "status": done.status}
    print_result([f"redrive {redrive_id}: {text}"], document, output)
    if not reached:
        raise typer.Exit(ExitCode.REFUSED)
