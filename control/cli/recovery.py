"""`tidewheel admin restore | audit`: continue after a lost database, and find what it lost."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from errno import EISDIR
from os import strerror
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO, cast

import typer

from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.options import DEFAULT_TENANT, Tz, checked_url, rfc3339
from tidewheel.control.cli.output import Output, OutputOption, count_text, print_document, print_facts, wrapped
from tidewheel.control.cli.parser import option, switch
from tidewheel.control.instants import read_instant
from tidewheel.control.occurrence_audit.result import AuditResult, JobFinding, run_audit
from tidewheel.control.reads.json_form import as_json
from tidewheel.errors import refuse
from tidewheel.jobs.strict_json import as_object
from tidewheel.settings.connections import Connections

if TYPE_CHECKING:
    from tidewheel.control.restore.procedure import Restored

_SHOWN_FINDINGS = 50  # findings in text


def restore(
    *,
    since: Annotated[
        str | None, option("TIME", "Read Kafka from this time on; default: 10 minutes before the last heartbeat.")
    ] = None,
    stopped_at: Annotated[
        str | None, option("TIME", "The latest time at which the lost database may have run; default: now.")
    ] = None,
    dry_run: Annotated[bool, switch("Read Kafka and count; write nothing.", "--dry-run")] = False,
    accept_gaps: Annotated[
        bool, switch("Continue even if messages may be gone, or their key has been rotated since.", "--accept-gaps")
    ] = False,
    yes: Annotated[bool, switch("Confirm; required.", "--yes")] = False,
    timezone: Tz = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Catch up after a restore from a base backup: record what Kafka has since, before services start.

    The command ends all other sessions of the database. Until it finishes, new sessions can only read, and no service
    starts. A repeat continues where the last call stopped. Connect as the owner of the database.
    """
    from tidewheel.control.restore.procedure import restore as run

    if not yes and not dry_run:
        refuse("--yes", "is missing", "stop all services first, then add --yes; --dry-run only counts")
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
            ("read Kafka from", rfc3339(report.since)),
            ("sessions ended", ", ".join(report.sessions) or "none"),
            ("found", f"{report.completions:,} ends, {report.messages:,} runs, {report.replies:,} replies"),
            ("unreadable", f"{report.unreadable:,}" if report.unreadable else None),
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
        ("requests no longer in Kafka", f"{report.expired_requests:,}" if report.expired_requests else None),
        ("runs created again", f"{report.occurrences:,} of timers, {report.runs:,} others"),
        ("runs ended", f"{report.ended:,}"),
        ("runs that may have begun", f"{report.unknown:,} run again, {report.failed:,} failed (at most once)"),
        ("runs of unknown jobs", ", ".join(map(str, report.lost[:10])) or None),
    )


def audit(
    *,
    begin: Annotated[str, option("TIME", "The first instant of the range.", "--from")],
    end: Annotated[str | None, option("TIME", "The end of the range, exclusive; default: now.", "--to")] = None,
    job: Annotated[str | None, option("KEY", "Only this job.")] = None,
    report: Annotated[Path | None, option("FILE", "Write a report with the counts of each job, as JSON.")] = None,
    completions: Annotated[
        bool, switch("Also compare the ends of runs with the completions on Kafka.", "--completions")
    ] = False,
    timezone: Tz = None,
    tenant: Annotated[
        str | None, option("NAME", "Only this tenant; by default all, or with --job the tenant default.")
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Recompute every occurrence of a range, and compare it with the records. Exit code 1 for a gap.

    Each computed occurrence of a job must have fired, or been skipped with a reason. The audit reads one snapshot and
    writes only the report.
    """
    first = read_instant(begin, "--from", timezone)
    before = None if end is None else read_instant(end, "--to", timezone)
    scope = tenant or (DEFAULT_TENANT if job is not None else None)
    url = checked_url()
    kafka = Connections.load().kafka_config() if completions else None
    with nullcontext() if report is None else _replacing(report) as file:
        result = run_audit(url, first, before, tenant=scope, key=job, report=file, kafka=kafka)
    if output is Output.TEXT:
        _print(result, timezone)
    else:
        print_document({**(as_object(as_json(result)) or {}), "passed": result.passed}, output)
    if not result.passed:
        raise typer.Exit(ExitCode.FAILED)


@contextmanager
def _replacing(path: Path) -> Generator[TextIO]:
    """Open a file that replaces another one when it is complete."""
    try:
        if path.is_dir():  # as is one without a name: `.` or none
            raise IsADirectoryError(EISDIR, strerror(EISDIR))
        part = path.with_name(f"{path.name}.part")
        file = part.open("w", encoding="utf-8")
    except OSError as error:
        refuse("--report", f"{path} cannot be written: {error.strerror}", "name a file in a folder that exists")
    try:
        with file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _print(result: AuditResult, timezone: str | None) -> None:
    for each in result.findings[:_SHOWN_FINDINGS]:
        typer.echo(wrapped(_finding_text(each, timezone), "  "))
    if result.totals.findings > _SHOWN_FINDINGS:
        typer.echo(f"… {result.totals.findings - _SHOWN_FINDINGS:,} more")
    if not result.passed:
        typer.echo("")
    print_facts(_facts(result))


def _finding_text(each: JobFinding, timezone: str | None) -> str:
    found = each.finding
    last = "" if found.last_at == found.first_at else f" to {rfc3339(found.last_at)}"
    few = "" if found.occurrences == 1 else f", {count_text(found.occurrences, 'occurrence')}"
    job = f"{each.tenant}/{each.key}" if each.key else f"job {each.job_id}"
    return f"{found.problem}: {job} at {rfc3339(found.first_at)}{last}{few}: {found.words}"


def _facts(result: AuditResult) -> Iterator[tuple[str, str | None]]:
    facts, totals = result.facts, result.totals
    yield "range", f"{rfc3339(result.first)} to {rfc3339(result.before)}"
    yield "left out, being deleted", ", ".join(facts.deleting) or None
    yield "jobs", f"{totals.jobs:,}"
    yield "computed", f"{totals.computed:,}"
    yield "fired", f"{totals.fired:,}"
    for reason, count in sorted(totals.skipped.items()):
        yield f"skipped: {reason}", f"{count:,}"
    for reason, count in sorted(totals.undecided.items()):
        yield f"not decided: {reason}", f"{count:,}"
    yield "without a record", f"{totals.missing:,}"
    yield "runs", ", ".join(f"{count:,} {state}" for state, count in sorted(totals.runs.items())) or "none"
    yield "claimed", f"{totals.by_message:,} by a message, {totals.by_sweep:,} by the sweep"
    yield "attempts", f"{totals.attempts:,}"
    yield "unrecorded ends", f"{totals.unrecorded:,}" if totals.unrecorded else None
    yield "findings", f"{totals.findings:,}"
    yield "tzdata", f"{facts.tzdata}; the timers were computed with {as_json(facts.stored_tzdata) or 'none'}"
    changes = cast("list[dict[str, str]]", facts.tzdata_changes or [])
    yield (
        "tzdata changed",
        ", ".join(f"from {each['from']} to {each['to']} at {each['at']}" for each in changes) or None,
    )
    yield "snapshot", f"{facts.snapshot} of {facts.database} at {rfc3339(facts.taken_at)}"
    yield "sha256", result.sha256
