"""`tidewheel explain`, `tidewheel job next | preview`: a job's occurrences."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from tidewheel.control.cli.job_edit import JobFlags, MaybeKey, described, key_of, with_job_flags
from tidewheel.control.cli.job_files import read_job
from tidewheel.control.cli.options import (
    DEFAULT_TENANT,
    Key,
    Tenant,
    Tz,
    read_duration,
    reading,
    rfc3339,
    utc_and_local,
)
from tidewheel.control.cli.output import (
    Output,
    OutputOption,
    Shown,
    print_document,
    print_facts,
    print_result,
    print_table,
    wrapped,
)
from tidewheel.control.cli.parser import option
from tidewheel.control.cli.tables import Cell
from tidewheel.control.explain import explain as explaining
from tidewheel.control.explain import preview as previews
from tidewheel.control.explain.explanation import AttemptFacts, Explanation, OccurrenceOutcome, WorkflowFacts
from tidewheel.control.explain.operations import MAX_NEXT, Occurrences
from tidewheel.control.explain.preview import Preview
from tidewheel.control.explain.upcoming import MAX_SHOWN, Upcoming, UpcomingOccurrence
from tidewheel.control.instants import read_instant, unit_of
from tidewheel.doors.cli import Flag, command
from tidewheel.errors import UnknownJob, refuse
from tidewheel.jobs.values import format_second
from tidewheel.nouns.jobs.commands import zone_of
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.postgres.session import Conn
from tidewheel.settings.connections import Connections

_SHOWN_PARENTS = 10
_OUTCOME_TEXT = {
    OccurrenceOutcome.WILL_BE_SKIPPED: "skipped manually",
    OccurrenceOutcome.WILL_BE_MOVED: "moved",
    OccurrenceOutcome.WILL_BE_EXCLUDED: "excluded by a calendar",
    OccurrenceOutcome.PAUSED: "paused",
    OccurrenceOutcome.WAITING: "overdue, waiting for a scheduler",
}

AnyInstant = Annotated[str | None, option("TIME", "Explain this past or future instant.", "--at")]
Number = Annotated[int, option("N", "Show this many instants.", "-n", min=1, max=MAX_SHOWN)]


def explain(
    key: Key,
    *,
    at: AnyInstant = None,
    last: Annotated[
        str | None, option("DURATION", "List all occurrences of this period, such as 24h, that did not fire.")
    ] = None,
    number: Annotated[
        int, option("N", "With --last: show at most this many.", "-n", min=1, max=explaining.MAX_UNFIRED)
    ] = 50,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Explain why a job did or did not fire: the last occurrence and the next one, or any instant."""
    if at is not None and last is not None:
        refuse("--last", "looks back from now, but --at names an instant", "leave one out")
    instant = None if at is None else read_instant(at, "--at", timezone or zone_of(tenant, key))
    span = None if last is None else read_duration(last, "--last")
    misfire_after = Connections.load().misfire_after
    with reading() as connection:
        if instant is not None:
            unit = unit_of(at or "")
            found = explaining.explain(connection, tenant, key, instant, misfire_after=misfire_after, unit=unit)
            _print_explanation(found, timezone, output)
        elif span is not None:
            unfired = explaining.unfired(connection, tenant, key, span, limit=number, misfire_after=misfire_after)
            print_result(_unfired_lines(unfired, timezone or unfired.zone), unfired, output)
        else:
            _print_around(explaining.around(connection, tenant, key, misfire_after=misfire_after), timezone, output)


def _print_explanation(found: Explanation, timezone: str | None, output: Output) -> None:
    if output is not Output.TEXT:
        print_document(found, output)
        return
    zone = timezone or found.zone
    typer.echo(wrapped(f"{found.key} at {utc_and_local(found.at, zone)}: {found.outcome.replace('_', ' ')}", "  "))
    typer.echo(wrapped(found.words))
    for note in found.notes:
        typer.echo(wrapped(f"! {note}", "  "))
    typer.echo("")
    print_facts(_facts(found, zone))
    if found.run is not None and found.run.attempts:
        typer.echo("")
        print_table(("attempt", "outcome", "began", "ended", "error"), map(_attempt_row, found.run.attempts))


def _print_around(found: explaining.Around, timezone: str | None, output: Output) -> None:
    if output is not Output.TEXT:
        print_document(found, output)
        return
    parts = [each for each in (found.last, found.next) if each is not None] or [found.present]
    for number, each in enumerate(parts):
        if number:
            typer.echo("")
        _print_explanation(each, timezone, output)
    if found.next is None and found.last is not None:
        typer.echo("\nno further occurrence")


def _unfired_lines(found: explaining.UnfiredOccurrences, zone: str) -> Iterator[str]:
    if not found.any_due:
        yield f"the job has had no occurrence since {format_second(found.since)}"
        yield wrapped(f"the next is {utc_and_local(found.next_at, zone)}" if found.next_at else found.words, "  ")
    elif not found.unfired:
        yield f"every occurrence since {format_second(found.since)} fired"
    for each in found.unfired:
        few = str(each.occurrences) if each.exact else f"more than {each.occurrences}"
        span = f", {few} until {utc_and_local(each.last_at, zone)}" if each.last_at != each.at else ""
        yield wrapped(f"{utc_and_local(each.at, zone)}{span}: {each.reason.replace('_', ' ')}", "  ")
        yield wrapped(f"  {each.words}", "  ")
    if found.has_more:
        yield "more: raise -n, or shorten --last"


def _facts(found: Explanation, zone: str) -> Iterator[tuple[str, str | None]]:
    yield "reason", found.reason
    if found.version is not None:
        until = f" until {rfc3339(found.version.until)}" if found.version.until else ""
        yield "version", f"{found.version.number}, in force after {rfc3339(found.version.effective_at)}{until}"
    for run in (found.run, *found.others):
        if run is not None:
            yield (
                "run" if run is found.run else "other run",
                f"{run.run_id}, {run.cause}, {run.state}, attempt {run.attempt}",
            )
    if found.workflow is not None:
        yield from _workflow_facts(found.workflow)
    if found.span is not None:
        few = found.span.occurrences if found.span.exact else f"more than {found.span.occurrences}"
        yield "skipped", f"{few}, {rfc3339(found.span.first_at)} to {rfc3339(found.span.last_at)}"
    yield "moved to", utc_and_local(found.moved_to, zone) if found.moved_to else None
    yield "before", utc_and_local(found.before, zone) if found.before else None
    yield "after", utc_and_local(found.after, zone) if found.after else None


def _workflow_facts(workflow: WorkflowFacts) -> Iterator[tuple[str, str | None]]:
    yield "root", f"{workflow.root_key}, run {workflow.root_run_id}, {workflow.root_state}"
    yield "occurrence", workflow.state or "not open yet"
    for run in workflow.runs:
        why = f", {run.reason}" if run.reason else ""
        yield f"generation {run.generation}", f"{run.run_id}, {run.state}{why}"
    for parent in workflow.parents[:_SHOWN_PARENTS]:
        condition = f" ({parent.when})" if parent.when != "success" else ""
        yield "parent", f"{parent.key}{condition}, {parent.state or 'no run yet'}"
    if len(workflow.parents) > _SHOWN_PARENTS:
        yield "parent", f"… and {len(workflow.parents) - _SHOWN_PARENTS} more"


def _attempt_row(attempt: AttemptFacts) -> tuple[Cell, ...]:
    error = ": ".join(part for part in (attempt.error_type, attempt.error_message) if part)
    return str(attempt.attempt), attempt.outcome or "running", attempt.started_at, attempt.finished_at, error


def _show_next(shown: Shown) -> None:
    found: Upcoming = shown.found
    lines = [*_lines(found.occurrences, shown.zone or found.zone), *([wrapped(found.words)] if found.words else [])]
    print_result(lines, found, shown.output)


_Next = Annotated[int, option("N", "Show this many instants.", "-n", min=1, max=MAX_NEXT)]
_NEXT = {"key": Flag(kind=Key), "n": Flag(kind=_Next)}
next_occurrences = command(Occurrences, "next", _show_next, flags=_NEXT, local_times=True)


@with_job_flags
def preview(
    key: MaybeKey = None,
    *,
    flags: JobFlags,
    begin_after: Annotated[str | None, option("TIME", "Start after this time; default: now.")] = None,
    number: Number = 10,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show what an unsaved job would do, from a file or from flags."""
    begin = read_instant(begin_after, "--begin-after", flags.tz, ahead=True) if begin_after else None
    given = read_job(flags.file) if flags.file else None
    job_key = key_of(key, given or {}) if key or (given or {}).get("key") else None
    with reading() as connection:
        base = given if given is not None else _current_job(connection, tenant, job_key)
        job = {**described(base, flags), **({"key": job_key} if job_key else {})}
        settings = Connections.load()
        allowed, late = settings.allow_lists(), settings.misfire_after
        found = previews.preview(connection, tenant, job, number, begin, allow_lists=allowed, misfire_after=late)
    print_result(_preview_lines(found, flags.tz or found.zone), found, output)


def _current_job(connection: Conn, tenant: str, key: str | None) -> dict[str, object]:
    """Return the stored job; empty if there is none."""
    try:
        return dict(show_job(connection, tenant, key).job) if key else {}
    except UnknownJob:
        return {}


def _preview_lines(found: Preview, zone: str) -> Iterator[str]:
    for sentence in found.words:
        yield wrapped(sentence, "  ")
    if found.drops:
        yield wrapped(found.drops, "  ")
    yield ""
    yield from _lines(found.occurrences, zone)
    if found.exhausted:
        yield "no further occurrences" if found.occurrences else "no occurrences"


def _lines(occurrences: Sequence[UpcomingOccurrence], zone: str) -> Iterator[str]:
    for each in occurrences:
        yield wrapped(f"{utc_and_local(each.at, zone)}{_outcome_text(each, zone)}", "    ")
        for note in each.notes:
            yield wrapped(f"    ! {note}", "      ")


def _outcome_text(each: UpcomingOccurrence, zone: str) -> str:
    """Return the outcome of an occurrence in words; empty if it fires as scheduled."""
    parts: list[str] = (
        [] if each.outcome is OccurrenceOutcome.SCHEDULED else [_OUTCOME_TEXT.get(each.outcome, each.outcome)]
    )
    if each.last_at is not None:
        few = str(each.occurrences) if each.exact else f"more than {each.occurrences}"
        parts.append(f"{few} until {utc_and_local(each.last_at, zone)}")
    if each.leaves_at is not None and each.leaves_at != each.at:
        parts.append(f"fires {utc_and_local(each.leaves_at, zone)}")
    return f"  {', '.join(parts)}" if parts else ""
