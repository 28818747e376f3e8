"""`tidewheel dlq list | show | redrive | purge`: runs that were given up, and messages that were no request."""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from tidewheel.control.cli.options import DEFAULT_TENANT, Tenant, reading, requesting
from tidewheel.control.cli.output import (
    Output,
    OutputOption,
    as_json,
    print_facts,
    print_json,
    print_result,
    print_table,
    progress_bar,
    total_text,
)
from tidewheel.control.cli.run_format import attempt_facts, attempt_row, lineage_facts
from tidewheel.control.cli.time_options import Tz, read_instant, rfc3339, utc_and_local
from tidewheel.control.client.dead_letters import Redriven
from tidewheel.control.reads import dead_letters as read
from tidewheel.errors import refuse
from tidewheel.jobs.strict_json import as_object

Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", help="Only these.")]
Job = Annotated[str | None, typer.Option("--job", metavar="KEY", help="Only of this job.")]
Error = Annotated[str | None, typer.Option("--error", metavar="TYPE", help="Only of this error's type.")]
Status = Annotated[str | None, typer.Option("--status", metavar="STATE", help="Only failed, or timed_out, runs.")]
Kind = Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only run, or request.")]
Queue = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only of this queue.")]
Lane = Annotated[str | None, typer.Option("--lane", metavar="LANE", help="Only of this lane.")]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only since this time.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only up to this time.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count them, and show the first ten.")]
RedrivenToo = Annotated[
    bool | None, typer.Option("--redriven/--not-redriven", help="Only those that were redriven, or only the others.")
]

_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(?:/(s|m|h))?", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, None: 1}
_COLUMNS = ("id", "made", "job", "status", "error", "run or message", "redriven as")


def list_dead_letters(
    *,
    job: Job = None,
    error: Error = None,
    status: Status = None,
    kind: Kind = None,
    queue: Queue = None,
    lane: Lane = None,
    since: Since = None,
    until: Until = None,
    redriven: RedrivenToo = None,
    after: Annotated[int | None, typer.Option(metavar="ID", help="Begin after this one.")] = None,
    number: Annotated[int, typer.Option("-n", metavar="N", min=1, max=1000, help="How many to show.")] = 50,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List dead letters, the newest first."""
    which = _filter(
        timezone, ids=None, key=job, error_type=error, status=status, kind=kind, queue=queue, lane=lane, since=since,
        until=until,
    )  # fmt: skip
    which["redriven"] = redriven
    with reading() as connection:
        page = read.list_dead_letters(connection, tenant, which, after=after, most=number)
    if output is Output.JSON:
        print_json(page)
        return
    if not page.letters:
        typer.echo("no such dead letter")
        return
    print_table(_COLUMNS, map(_row, page.letters))
    typer.echo(total_text(page.total, at_least=page.at_least, shown=len(page.letters), noun="dead letter"))
    if page.following is not None:
        typer.echo(f"more: add --after {page.following}")


def show(
    number: Annotated[int, typer.Argument(metavar="ID", help="The dead letter, by its id.")],
    *,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a dead letter: attempts, errors, output and retry chain."""
    with reading() as connection:
        found = read.show_dead_letter(connection, tenant, number)
    if output is Output.JSON:
        rest = as_object(as_json(found)) or {}
        exactly = {} if found.message_value is None else {"message_base64": b64encode(found.message_value).decode()}
        print_json({**(as_object(rest.pop("summary")) or {}), **rest, **exactly})
        return
    print_facts(_facts(found, timezone))
    for attempt in found.run.attempts if found.run else ():
        typer.echo(f"\nattempt {'  '.join(part for part in attempt_row(attempt) if part)}")
        print_facts(attempt_facts(attempt))


def redrive(
    ids: Ids = None,
    *,
    job: Job = None,
    error: Error = None,
    status: Status = None,
    kind: Kind = None,
    queue: Queue = None,
    lane: Lane = None,
    since: Since = None,
    until: Until = None,
    everything: Annotated[bool, typer.Option("--all", help="All there are, where nothing else is said.")] = False,
    rate: Annotated[str | None, typer.Option(metavar="N/s", help="At most so many a second (/m, /h).")] = None,
    dry_run: DryRun = False,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Redrive dead letters, the oldest first; skip redriven ones."""
    which = _filter(
        timezone, ids=ids, key=job, error_type=error, status=status, kind=kind, queue=queue, lane=lane, since=since,
        until=until,
    )  # fmt: skip
    _require_some(which, everything=everything)
    pace = None if rate is None else _read_rate(rate)
    with requesting(tenant) as client:
        counted = client.redrive(**which, dry_run=True)
        done = counted
        if not dry_run:
            with progress_bar("redriving", counted.wanted) as tell:
                done = client.redrive(**which, rate=pace, tell=tell)
    if dry_run:
        _say_first("redriven", counted.wanted, counted.first, output, at_least=counted.at_least)
        return
    before = max(len(set(ids or ())) - counted.wanted, 0)
    _say_redriven(done, output, before=before)
    if done.refused:
        raise typer.Exit(1)


def purge(
    ids: Ids = None,
    *,
    job: Job = None,
    error: Error = None,
    status: Status = None,
    kind: Kind = None,
    queue: Queue = None,
    lane: Lane = None,
    since: Since = None,
    until: Until = None,
    redriven: RedrivenToo = None,
    everything: Annotated[bool, typer.Option("--all", help="All there are, where nothing else is said.")] = False,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Needed to remove them.")] = False,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete dead letters; their runs stay."""
    which = _filter(
        timezone, ids=ids, key=job, error_type=error, status=status, kind=kind, queue=queue, lane=lane, since=since,
        until=until,
    )  # fmt: skip
    which["redriven"] = redriven
    _require_some(which, everything=everything)
    if not dry_run and not yes:
        refuse("--yes", "is missing: what is removed cannot be redriven", "look with --dry-run, then add --yes")
    with requesting(tenant) as client:
        counted = client.purge_dead_letters(**which, dry_run=True)
        if dry_run:
            _say_first("purged", counted.wanted, counted.first, output, at_least=counted.at_least)
            return
        with progress_bar("purging", counted.wanted) as tell:
            done = client.purge_dead_letters(**which, tell=tell)
    print_result([f"{done.purged:,} dead letters purged"], {"purged": done.purged}, output)


def _filter(
    zone: str | None,
    *,
    ids: list[int] | None,
    key: str | None,
    error_type: str | None,
    status: str | None,
    kind: str | None,
    queue: str | None,
    lane: str | None,
    since: str | None,
    until: str | None,
) -> read.LetterFilter:
    return {
        "ids": ids or None,
        "key": key,
        "error_type": error_type,
        "status": status,
        "kind": kind,
        "queue": queue,
        "lane": lane,
        "since": read_instant(since, "--since", zone) if since else None,
        "until": read_instant(until, "--until", zone) if until else None,
    }


def _require_some(which: read.LetterFilter, *, everything: bool) -> None:
    if not everything and all(value is None for value in which.values()):
        refuse("ID", "no dead letter is named", "write ids, or filters such as --job, or --all")


def _read_rate(text: str) -> float:
    found = _RATE.fullmatch(text)
    if found is None or float(found[1]) == 0:
        refuse("--rate", f"{text!r} was read", "write it as 10/s, 100/m or 1000/h")
    return float(found[1]) / _SECONDS[found[2]]


def _row(letter: read.DeadLetterSummary) -> tuple[str, ...]:
    message = f"{letter.topic}/{letter.partition}/{letter.offset}"
    redriven = str(letter.redriven_run_id) if letter.redriven_run_id else "sent again" if letter.redriven_at else ""
    return (
        str(letter.id),
        rfc3339(letter.created_at),
        letter.key or "",
        letter.status or "no request",
        letter.error_type or letter.reason,
        str(letter.run_id or message),
        redriven,
    )


def _facts(found: read.DeadLetterDetail, zone: str | None) -> Iterator[tuple[str, str | None]]:
    letter = found.summary
    yield "dead letter", str(letter.id)
    yield "made", utc_and_local(letter.created_at, zone)
    yield "job", letter.key
    yield "run", str(letter.run_id) if letter.run_id else None
    yield "status", letter.status
    yield "cause", letter.cause
    yield "queue", f"{letter.queue}, {letter.lane} lane" if letter.queue else None
    yield "message", f"{letter.topic}/{letter.partition}/{letter.offset}" if letter.topic else None
    yield "key", _text(found.message_key)
    yield "value", _text(found.message_value)
    yield "error", letter.error_type
    yield "reason", letter.reason
    yield "redriven", utc_and_local(letter.redriven_at, zone) if letter.redriven_at else None
    yield "redriven as", str(letter.redriven_run_id) if letter.redriven_run_id else None
    if found.run is not None:
        yield from lineage_facts(found.run)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _say_first(
    what: str, wanted: int, first: Iterable[read.DeadLetterSummary], output: Output, *, at_least: bool
) -> None:
    if output is Output.JSON:
        print_json({"wanted": wanted, "at_least": at_least, "first": first})
        return
    typer.echo(f"{'at least ' if at_least else ''}{wanted:,} dead letters would be {what}")
    if rows := list(map(_row, first)):
        print_table(_COLUMNS, rows)


def _say_redriven(done: Redriven, output: Output, *, before: int) -> None:
    if output is Output.JSON:
        told = {"redriven": done.redriven, "before": before, "refused": done.refused, "refusals": done.refusals}
        print_json(told)
        return
    typer.echo(f"{done.redriven:,} dead letters redriven" + (f", {before:,} were before" if before else ""))
    if done.refused:
        typer.echo(f"{done.refused:,} refused:")
        for refusal in done.refusals:
            typer.echo(f"{refusal.id}: {'; '.join(map(str, refusal.errors))}")
