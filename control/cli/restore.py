"""`tidewheel admin restore`: continue after a restore from a base backup."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidewheel.control.cli.options import Tz, rfc3339
from tidewheel.control.cli.output import Output, OutputOption, print_document, print_facts, wrapped
from tidewheel.control.instants import read_instant
from tidewheel.errors import refuse
from tidewheel.settings.connections import Connections

if TYPE_CHECKING:
    from tidewheel.control.restore.procedure import Restored


def restore(
    *,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Read Kafka from here; default: 10 minutes before the last heartbeat."),
    ] = None,
    stopped_at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The end of the lost database, at the latest; default: now."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read Kafka and count; write nothing.")] = False,
    accept_gaps: Annotated[
        bool,
        typer.Option("--accept-gaps", help="Go on if messages may be gone, or their key was rotated since."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm it; needed.")] = False,
    timezone: Tz = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Continue after a restore from a base backup: record what Kafka has since, before services start.

    It ends all other sessions of the database. Until its end new ones can only read, and no service starts. A repeat
    continues where a call before it ended. Connect as the owner of the database.
    """
    from tidewheel.control.restore.procedure import restore as run

    if not yes and not dry_run:
        refuse("--yes", "is missing", "stop all services first; --dry-run counts what the restore finds")
    settings = Connections.load()
    report = run(
        settings.database(),
        settings,
        since=None if since is None else read_instant(since, "--since", timezone),
        stopped_at=None if stopped_at is None else read_instant(stopped_at, "--stopped-at", timezone),
        dry_run=dry_run,
        accept_gaps=accept_gaps,
        progress=lambda step: typer.echo(step, err=True),
    )
    facts = asdict(report)
    if output is not Output.TEXT:
        print_document(facts, output)
        return
    print_facts(
        (
            ("Kafka was read from", rfc3339(report.since)),
            ("sessions ended", ", ".join(report.sessions) or "none"),
            ("found", f"{report.completions:,} ends, {report.messages:,} runs, {report.replies:,} replies"),
            ("not readable", f"{report.unreadable:,}" if report.unreadable else None),
            ("without a valid signature", f"{report.forged:,}, left out" if report.forged else None),
            *(() if dry_run else _written(report)),
        )
    )
    if dry_run:
        typer.echo(wrapped("`tidewheel admin restore --yes` records them", "  "))
    else:
        typer.echo(wrapped("the database is current: start the services, then run `tidewheel admin audit`", "  "))


def _written(report: "Restored") -> tuple[tuple[str, str | None], ...]:
    return (
        ("requests applied again", f"{report.requests:,}"),
        ("requests that Kafka lacks", f"{report.expired_requests:,}" if report.expired_requests else None),
        ("runs created again", f"{report.occurrences:,} of timers, {report.runs:,} others"),
        ("runs ended", f"{report.ended:,}"),
        ("runs that may have begun", f"{report.unknown:,} run again, {report.failed:,} failed: at most once"),
        ("runs of unknown jobs", ", ".join(map(str, report.lost[:10])) or None),
    )
