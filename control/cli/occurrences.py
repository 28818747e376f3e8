"""`tidewheel job explain | skip | move | unskip`: single occurrences, each named by its nominal instant."""

from collections.abc import Iterator
from typing import Annotated

import typer

from tidewheel.control.cli.connection_options import DEFAULT_TENANT, Key, Tenant, asking, reading
from tidewheel.control.cli.jobs import Reason, say_job
from tidewheel.control.cli.output import Answer, Output, print_facts, print_table, say_json, wrapped
from tidewheel.control.cli.time_options import Tz, beside, read_instant, rfc3339
from tidewheel.control.explain import explain as explaining
from tidewheel.control.explain.explanation import AttemptFacts, Explanation
from tidewheel.settings import Connections

AnyInstant = Annotated[str, typer.Option("--at", metavar="TIME", help="Any instant, past or coming.")]
At = Annotated[str, typer.Option("--at", metavar="TIME", help="The occurrence's nominal instant.")]


def explain(
    key: Key,
    *,
    at: AnyInstant,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """Say why a job did or did not fire at an instant, past or coming, and what is to be done about it."""
    instant = read_instant(at, "--at", timezone)
    misfire_after = Connections.load().misfire_after
    with reading() as connection:
        found = explaining.explain(connection, tenant, key, instant, misfire_after=misfire_after)
    if output is Output.JSON:
        say_json(found)
        return
    zone = timezone or found.zone
    typer.echo(wrapped(f"{found.key} at {beside(found.at, zone)}: {found.outcome.replace('_', ' ')}", "  "))
    typer.echo(wrapped(found.words))
    for note in found.notes:
        typer.echo(wrapped(f"! {note}", "  "))
    typer.echo("")
    print_facts(_facts(found, zone))
    if found.run is not None and found.run.attempts:
        typer.echo("")
        print_table(("attempt", "outcome", "began", "ended", "error"), map(_attempt, found.run.attempts))


def skip(
    key: Key,
    *,
    at: At,
    reason: Reason = None,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """Leave out one coming occurrence of a job."""
    instant = read_instant(at, "--at", timezone)
    with asking(tenant) as client:
        done = client.skip(key, instant, reason=reason)
    say_job(key, f"skips {beside(instant, timezone)}", done, output, unchanged="skips it already", zone=timezone)


def move(
    key: Key,
    *,
    at: At,
    to: Annotated[str, typer.Option(metavar="TIME", help="When it fires instead.")],
    reason: Reason = None,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """Let one coming occurrence of a job fire at another time."""
    instant, instead = read_instant(at, "--at", timezone), read_instant(to, "--to", timezone)
    with asking(tenant) as client:
        done = client.move(key, instant, instead, reason=reason)
    said = f"moves {beside(instant, timezone)} to {beside(instead, timezone)}"
    say_job(key, said, done, output, unchanged="moves it so already", zone=timezone)


def unskip(
    key: Key, *, at: At, timezone: Tz = None, tenant: Tenant = DEFAULT_TENANT, output: Answer = Output.TEXT
) -> None:
    """Take back a skip or a move of an occurrence that is still to come."""
    instant = read_instant(at, "--at", timezone)
    with asking(tenant) as client:
        done = client.unskip(key, instant)
    say_job(key, f"fires {beside(instant, timezone)} again", done, output, unchanged="fires it anyhow", zone=timezone)


def _facts(found: Explanation, zone: str) -> Iterator[tuple[str, str | None]]:
    yield "reason", found.reason
    if found.version is not None:
        until = f" until {rfc3339(found.version.until)}" if found.version.until else ""
        yield "version", f"{found.version.number}, in force after {rfc3339(found.version.effective_at)}{until}"
    for run in (found.run, *found.others):
        if run is not None:
            yield (
                "run" if run is found.run else "another",
                f"{run.run_id}, {run.cause}, {run.state}, attempt {run.attempt}",
            )
    if found.span is not None:
        few = found.span.occurrences if found.span.exact else f"more than {found.span.occurrences}"
        yield "passed over", f"{few}, {rfc3339(found.span.first_at)} to {rfc3339(found.span.last_at)}"
    yield "moved to", beside(found.moved_to, zone) if found.moved_to else None
    yield "before", beside(found.before, zone) if found.before else None
    yield "after", beside(found.after, zone) if found.after else None


def _attempt(attempt: AttemptFacts) -> tuple[str, ...]:
    error = ": ".join(part for part in (attempt.error_type, attempt.error_message) if part)
    began, ended = (rfc3339(at) if at else "" for at in (attempt.started_at, attempt.finished_at))
    return str(attempt.attempt), attempt.outcome or "under way", began, ended, error
