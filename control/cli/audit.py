"""`tidewheel admin audit`: recompute every occurrence of a range and compare it with what is recorded."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from errno import EISDIR
from os import strerror
from pathlib import Path
from typing import Annotated, TextIO, cast

import typer

from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.options import DEFAULT_TENANT, Tz, checked_url, complete_key, rfc3339
from tidewheel.control.cli.output import Output, OutputOption, count_text, print_document, print_facts, wrapped
from tidewheel.control.instants import read_instant
from tidewheel.control.occurrence_audit.archived_days import ARCHIVE
from tidewheel.control.occurrence_audit.result import AuditResult, JobFinding, run_audit
from tidewheel.control.reads.json_form import as_json
from tidewheel.errors import refuse
from tidewheel.jobs.strict_json import as_object
from tidewheel.settings.connections import Connections

_SHOWN = 50  # findings in text


def audit(
    *,
    begin: Annotated[str, typer.Option("--from", metavar="TIME", help="The first instant of the range.")],
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="The end of the range, not part of it; default: now.")
    ] = None,
    job: Annotated[str | None, typer.Option(metavar="KEY", help="Only this job.", autocompletion=complete_key)] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report with the counts of each job, as JSON.")
    ] = None,
    completions: Annotated[
        bool, typer.Option("--completions", help="Compare the ends of runs with the completions on Kafka too.")
    ] = False,
    timezone: Tz = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this tenant; of --job by default: default.")
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Recompute every occurrence of a range, and compare it with what is recorded. Exit code 1 for a gap.

    The computed occurrences of each job must equal those that fired and those that were skipped with a reason. It
    reads one snapshot and writes nothing but the report.
    """
    first = read_instant(begin, "--from", timezone)
    before = None if end is None else read_instant(end, "--to", timezone)
    scope = tenant or (DEFAULT_TENANT if job is not None else None)
    url = checked_url()
    settings = Connections.load()
    kafka = settings.kafka_config() if completions else None
    with nullcontext() if report is None else _replacing(report) as file:
        result = run_audit(
            url, first, before, tenant=scope, key=job, report=file, kafka=kafka, archive=settings.archive
        )
    if output is Output.TEXT:
        _print(result, timezone)
    else:
        print_document({**(as_object(as_json(result)) or {}), "passed": result.passed}, output)
    if not result.passed:
        raise typer.Exit(ExitCode.FAILED)


@contextmanager
def _replacing(path: Path) -> Generator[TextIO]:
    """Open a file that replaces another one when it is complete."""
    part = path.with_name(f"{path.name}.part")
    try:
        if path.is_dir():
            raise IsADirectoryError(EISDIR, strerror(EISDIR))
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
    for each in result.findings[:_SHOWN]:
        typer.echo(wrapped(_finding_text(each, timezone), "  "))
    if result.totals.findings > _SHOWN:
        typer.echo(f"… {result.totals.findings - _SHOWN:,} more")
    for problem in (problem for day in result.days for problem in day.problems):
        typer.echo(wrapped(f"archive: {problem}", "  "))
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
    yield "being deleted, left out", ", ".join(facts.deleting) or None
    yield "jobs", f"{totals.jobs:,}"
    part = f"{count_text(totals.shortened, 'job')}, whose history_limit has removed runs of the range"
    yield "audited in part", part if totals.shortened else None
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
    archived = [each.day for each in result.days if each.source == ARCHIVE]
    yield "from the archive", f"{len(archived):,} days, {archived[0]} to {archived[-1]}" if archived else None
    yield "tzdata", f"{facts.tzdata}; the timers were computed by {as_json(facts.stored_tzdata) or 'none'}"
    changes = cast("list[dict[str, str]]", facts.tzdata_changes or [])
    yield (
        "tzdata changed",
        ", ".join(f"from {each['from']} to {each['to']} at {each['at']}" for each in changes) or None,
    )
    yield "snapshot", f"{facts.snapshot} of {facts.database} at {rfc3339(facts.taken_at)}"
    yield "sha256", result.sha256
