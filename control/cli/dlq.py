"""`tidewheel dlq list | groups | show | redrive | purge`: dead letters: failed runs, invalid messages."""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from tidewheel.control.cli.options import (
    DEFAULT_TENANT,
    Limit,
    Reason,
    Tenant,
    complete_key,
    reading,
    requesting,
    with_options,
)
from tidewheel.control.cli.output import (
    Output,
    OutputOption,
    moment,
    print_document,
    print_facts,
    print_result,
    print_table,
    progress_bar,
    total_text,
)
from tidewheel.control.cli.redrives import follow_redrive, print_redrive
from tidewheel.control.cli.run_format import attempt_facts, attempt_row, retry_chain_facts
from tidewheel.control.cli.tables import Cell, cell_text
from tidewheel.control.cli.time_options import After, Tz, place_text, read_place
from tidewheel.control.instants import read_instant
from tidewheel.control.reads import dead_letters as read
from tidewheel.control.reads.dead_letter_groups import DeadLetterGroup, group_dead_letters
from tidewheel.control.reads.json_form import as_json
from tidewheel.errors import refuse
from tidewheel.jobs.strict_json import as_object

Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", help="Dead letters, by id.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print their number and the first ten; change nothing.")]
All = Annotated[bool, typer.Option("--all", help="All dead letters; needed without an id or a filter.")]
IsRedriven = Annotated[
    bool | None, typer.Option("--redriven/--not-redriven", help="Only redriven ones, or only ones not redriven.")
]

_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(?:/(s|m|h))?", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, None: 1}
_COLUMNS = ("id", "created", "job", "status", "error", "run or message", "redriven as")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterFlags:
    """Filters of all commands but `show`."""

    job: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only those of this job.", autocompletion=complete_key)
    ] = None
    error: Annotated[str | None, typer.Option(metavar="TYPE", help="Only those with this error type.")] = None
    status: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only those of runs in this state: failed or timed_out.")
    ] = None
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only this kind: run or message.")] = None
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this queue.")] = None
    lane: Annotated[str | None, typer.Option(metavar="LANE", help="Only those of this lane.")] = None
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Only those created at this time or later.")] = None
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only those created at this time or earlier.")] = (
        None
    )
    timezone: Tz = None

    def read(self, ids: list[int] | None = None) -> read.DeadLetterFilter:
        """Return the filter that the flags describe."""
        return {
            "ids": ids or None,
            "key": self.job,
            "error_type": self.error,
            "status": self.status,
            "kind": self.kind,
            "queue": self.queue,
            "lane": self.lane,
            "since": read_instant(self.since, "--since", self.timezone) if self.since else None,
            "until": read_instant(self.until, "--until", self.timezone) if self.until else None,
        }


@with_options(FilterFlags, "flags")
def list_dead_letters(
    *,
    flags: FilterFlags,
    redriven: IsRedriven = None,
    after: After = None,
    number: Limit = 50,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List dead letters, the newest first."""
    filters = flags.read()
    filters["redriven"] = redriven
    with reading() as connection:
        page = read.list_dead_letters(
            connection, tenant, filters, after=read_place(after) if after else None, limit=number
        )
    if output is not Output.TEXT:
        print_document(page, output)
        return
    if page.dead_letters:
        print_table(_COLUMNS, map(_row, page.dead_letters), spare=("status",))
        typer.echo(total_text(page.total, at_least=page.at_least, shown=len(page.dead_letters), noun="dead letter"))
    else:
        typer.echo("no dead letters" if page.next_cursor is None else "none among the dead letters of this page")
    if page.next_cursor is not None:
        typer.echo(f"more: add --after {place_text(*page.next_cursor)}")


def groups(
    *,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Only those created at this time or later.")] = None,
    redriven: IsRedriven = None,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Group the newest dead letters by job, error and status, the largest group first."""
    begin = read_instant(since, "--since", timezone) if since else None
    with reading() as connection:
        found = group_dead_letters(connection, tenant, since=begin, redriven=redriven)
    if output is not Output.TEXT:
        print_document(found, output)
        return
    if not found.groups:
        typer.echo("no dead letters")
        return
    print_table(("dead letters", "job", "status", "error", "versions", "first", "last"), map(_group_row, found.groups))
    if found.at_least:
        typer.echo(f"of the newest {found.looked_at:,}")


def show(
    number: Annotated[int, typer.Argument(metavar="ID", help="The dead letter's id.")],
    *,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a dead letter: attempts, errors, output and retry chain."""
    with reading() as connection:
        found = read.show_dead_letter(connection, tenant, number)
    if output is not Output.TEXT:
        rest = as_object(as_json(found)) or {}
        exactly = {} if found.message_value is None else {"message_base64": b64encode(found.message_value).decode()}
        print_document({**(as_object(rest.pop("summary")) or {}), **rest, **exactly}, output)
        return
    print_facts(_facts(found, timezone))
    for attempt in found.run.attempts if found.run else ():
        typer.echo(f"\nattempt {'  '.join(cell_text(part) for part in attempt_row(attempt) if part)}")
        print_facts(attempt_facts(attempt))


@with_options(FilterFlags, "flags")
def redrive(
    ids: Ids = None,
    *,
    flags: FilterFlags,
    everything: All = False,
    rate: Annotated[
        str | None, typer.Option(metavar="N/s", help="Redrive at most this many a second; also N/m or N/h.")
    ] = None,
    dry_run: DryRun = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until each dead letter is redriven, not until its run has ended.")
    ] = False,
    reason: Reason = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Redrive dead letters of runs, the oldest first; of messages with --kind message.

    Schedulers do the work, also after this command has ended. `tidewheel redrive` shows, pauses and cancels it.
    """
    filters = flags.read(ids)
    _require_filter(filters, everything=everything)
    per_second = None if rate is None else _read_rate(rate)
    with requesting(tenant) as client:
        done = client.dead_letters.redrive(**filters, rate=per_second, dry_run=dry_run, reason=reason)
        if dry_run:
            _print_dry_run("redriven", done.matched, done.first, output, at_least=done.at_least)
            return
        if wait and done.redrive_id is not None:
            print_redrive(follow_redrive(client, done.redrive_id), flags.timezone, output)
            return
    already = max(len(set(ids or ())) - done.matched, 0)
    lines = [f"redrive {done.redrive_id}"] if done.redrive_id else []
    lines.append(f"dead letters to redrive: {'at least ' if done.at_least else ''}{done.matched:,}")
    if already:
        lines[-1] += f"; already redriven before: {already:,}"
    document = {
        "redrive_id": done.redrive_id,
        "matched": done.matched,
        "at_least": done.at_least,
        "already_redriven": already,
    }
    print_result(lines, document, output)


@with_options(FilterFlags, "flags")
def purge(
    ids: Ids = None,
    *,
    flags: FilterFlags,
    redriven: IsRedriven = None,
    everything: All = False,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm the deletion; needed without --dry-run.")] = False,
    reason: Reason = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete dead letters; their runs stay."""
    filters = flags.read(ids)
    filters["redriven"] = redriven
    _require_filter(filters, everything=everything)
    if not dry_run and not yes:
        refuse("--yes", "is missing: a deleted dead letter cannot be redriven", "try --dry-run, then add --yes")
    with requesting(tenant) as client:
        found = client.dead_letters.purge(**filters, dry_run=True)
        if dry_run:
            _print_dry_run("purged", found.matched, found.first, output, at_least=found.at_least)
            return
        with progress_bar("purging", found.matched) as on_progress:
            result = client.dead_letters.purge(**filters, on_progress=on_progress, reason=reason)
    print_result([f"dead letters purged: {result.purged:,}"], {"purged": result.purged}, output)


def _require_filter(filters: read.DeadLetterFilter, *, everything: bool) -> None:
    if not everything and all(value is None for value in filters.values()):
        refuse("ID", "no dead letter is selected", "write ids, or filters such as --job, or --all")


def _read_rate(text: str) -> float:
    found = _RATE.fullmatch(text)
    if found is None or float(found[1]) == 0:
        refuse("--rate", f"{text!r} is not a rate", "write it as 10/s, 100/m or 1000/h")
    return float(found[1]) / _SECONDS[found[2]]


def _row(each: read.DeadLetterSummary) -> tuple[Cell, ...]:
    message = f"{each.topic}/{each.partition}/{each.offset}"
    republished = "republished" if each.redriven_at else ""
    return (
        str(each.id),
        each.created_at,
        each.key or "",
        each.status or "invalid message",
        each.error_type or each.reason,
        str(each.run_id or message),
        str(each.redriven_run_id) if each.redriven_run_id else republished,
    )


def _group_row(each: DeadLetterGroup) -> tuple[Cell, ...]:
    versions = ", ".join(map(str, each.versions))
    status = each.status or "invalid message"
    return f"{each.count:,}", each.key or "", status, each.error_type or "", versions, each.first_at, each.last_at


def _facts(found: read.DeadLetterDetail, zone: str | None) -> Iterator[tuple[str, str | None]]:
    summary = found.summary
    yield "dead letter", str(summary.id)
    yield "created", moment(summary.created_at, zone)
    yield "job", summary.key
    yield "run", str(summary.run_id) if summary.run_id else None
    yield "status", summary.status
    yield "cause", summary.cause
    yield "queue", f"{summary.queue}, {summary.lane} lane" if summary.queue else None
    yield "message", f"{summary.topic}/{summary.partition}/{summary.offset}" if summary.topic else None
    yield "key", _message_text(found.message_key)
    yield "value", _message_text(found.message_value)
    yield "error", summary.error_type
    yield "reason", summary.reason
    yield "redriven", moment(summary.redriven_at, zone) if summary.redriven_at else None
    yield "redriven as", str(summary.redriven_run_id) if summary.redriven_run_id else None
    if found.run is not None:
        yield from retry_chain_facts(found.run)


def _message_text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _print_dry_run(
    verb: str, matched: int, first: Iterable[read.DeadLetterSummary], output: Output, *, at_least: bool
) -> None:
    if output is not Output.TEXT:
        print_document({"matched": matched, "at_least": at_least, "first": first}, output)
        return
    typer.echo(f"dead letters that would be {verb}: {'at least ' if at_least else ''}{matched:,}")
    if rows := list(map(_row, first)):
        print_table(_COLUMNS, rows)
