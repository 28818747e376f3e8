"""`tidewheel admin cron explain`, which needs no database, and `admin calendar`: named sets of days."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

from tidewheel.clock import SystemClock
from tidewheel.control.cli.options import DEFAULT_TENANT, Tenant, reading, requesting, rfc3339, wall
from tidewheel.control.cli.output import Output, OutputOption, print_record, print_result, print_rows, wrapped
from tidewheel.control.cli.parser import argument, option, switch
from tidewheel.control.instants import read_instant
from tidewheel.control.reads.calendars import CalendarDetail, list_calendars, show_calendar
from tidewheel.control.reads.json_form import as_json
from tidewheel.distribution import require
from tidewheel.errors import ScheduleRefused, refuse
from tidewheel.ids import job_id
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.validation import shown
from tidewheel.jobs.values import HORIZON_YEARS, is_key, is_tenant
from tidewheel.schedules.cron_parser import uses_hash
from tidewheel.schedules.cron_schedule import DstGap, DstOverlap
from tidewheel.schedules.describe import MarkedOccurrence, describe, marked_occurrences
from tidewheel.schedules.parse import ensure_can_fire, parse_schedule
from tidewheel.schedules.zones import LAST_YEAR

_MAX_SHOWN = 1000

Name = Annotated[str, argument("NAME", "The calendar's name.")]


@dataclass(frozen=True, slots=True)
class Explained:
    """Expressions in words, with the instants that they match, all later than `after`."""

    expressions: tuple[str, ...]
    words: tuple[str, ...]
    timezone: str
    dst_gap: DstGap
    dst_overlap: DstOverlap
    after: datetime
    occurrences: "tuple[Occurrence, ...]"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One instant, the expressions that match it, and the effects of clock changes on it."""

    utc: datetime
    local: datetime
    notes: tuple[str, ...]
    expressions: tuple[str, ...]


def explain(
    expressions: Annotated[list[str], argument("EXPR", 'Each in quotes, such as "0 8 * * *".')],
    *,
    timezone: Annotated[str, option("ZONE", "IANA time zone of the expressions.", "--tz")] = "UTC",
    after: Annotated[str | None, option("TIME", "Start after this time; default: now.")] = None,
    number: Annotated[int, option("N", "Show this many instants.", "-n", min=1, max=_MAX_SHOWN)] = 10,
    dst_gap: Annotated[DstGap, switch("Rule for a local time that the clock skips.")] = DstGap.SHIFT_FORWARD,
    dst_overlap: Annotated[DstOverlap, switch("Rule for a local time that occurs twice.")] = DstOverlap.FIRST,
    key: Annotated[str | None, option("KEY", "The key of the job for which `H` is computed.")] = None,
    tenant: Annotated[str, option("NAME", "Tenant of that job.")] = "default",
    output: OutputOption = Output.TEXT,
) -> None:
    """Describe cron expressions and show their next instants."""
    _refuse_unquoted(expressions)
    if key is None and any(map(uses_hash, expressions)):
        problem = "`H` depends on the job's id, but no job is given"
        raise ScheduleRefused(problem, "add --key with the job's key, or write a number", "cron")
    if key is not None and not is_key(key):
        refuse("key", f"{shown(key)} is not a job's key", "write the key as `tidewheel job list` shows it")
    if not is_tenant(tenant):
        refuse("tenant", f"{shown(tenant)} is not a tenant's name", "write a name of `tidewheel admin tenant list`")
    begin = read_instant(after, "--after", timezone, ahead=True) if after else SystemClock().now()
    job = job_id(tenant, key) if key is not None else None
    read: dict[str, object] = {"expressions": expressions, "timezone": timezone}
    chosen: dict[str, DstGap | DstOverlap] = {"dst_gap": dst_gap, "dst_overlap": dst_overlap}
    ensure_can_fire(parse_schedule({"kind": "cron", **read, **chosen}, job_id=job), begin)
    marked = {
        each: marked_occurrences(each, timezone, begin, number, **chosen, hash_key=job.bytes if job else None)
        for each in expressions
    }
    explained = Explained(
        expressions=tuple(expressions),
        words=tuple(describe(each, timezone, **chosen) for each in expressions),
        timezone=timezone,
        dst_gap=dst_gap,
        dst_overlap=dst_overlap,
        after=begin,
        occurrences=_merged(marked)[:number],
    )
    print_result(_text(explained, number), explained, output)


def _merged(marked: Mapping[str, Iterable[MarkedOccurrence]]) -> tuple[Occurrence, ...]:
    """Return the instants of all expressions in order; a shared instant is one, with the notes of each."""
    found: dict[tuple[datetime, datetime], Occurrence] = {}
    for expression, occurrences in marked.items():
        for each in occurrences:
            known = found.get((each.at, each.local))
            shown = [f"`{expression}`: {note}" for note in each.notes] if len(marked) > 1 else each.notes
            notes = (*(known.notes if known else ()), *shown)
            named = (*(known.expressions if known else ()), expression)
            found[each.at, each.local] = Occurrence(each.at, each.local, notes, named)
    return tuple(found[place] for place in sorted(found))


def _refuse_unquoted(expressions: Sequence[str]) -> None:
    """Refuse `explain 0 8 * * *`: the shell splits it into five words and expands the stars."""
    if len(expressions) > 1 and not any(" " in each or each.startswith("@") for each in expressions):
        problem = f"the command received {len(expressions)} expressions of one word each"
        raise ScheduleRefused(
            problem, 'put each expression in quotes: tidewheel admin cron explain "0 8 * * *"', "cron"
        )


def _text(explained: Explained, number: int) -> Iterator[str]:
    several = len(explained.expressions) > 1
    for expression, words in zip(explained.expressions, explained.words, strict=True):
        yield wrapped(f"{expression}: {words}", "  ")
    yield ""
    for each in explained.occurrences:
        named = f"  {', '.join(each.expressions)}" if several else ""
        yield f"{rfc3339(each.utc)}  {wall(each.local)}{named}"
        for note in each.notes:
            yield wrapped(f"    ! {note}", "      ")
    if len(explained.occurrences) < number:
        yield f"no further instants before the year {LAST_YEAR + 1}"


def put(
    name: Name,
    *,
    file: Annotated[
        Path | None, option("FILE.ics", "All days on which an event of an iCalendar file takes place.", "--from")
    ] = None,
    days: Annotated[str | None, option("DAY,...", "Days, such as 2026-12-25,2026-12-26.")] = None,
    weekdays: Annotated[str | None, option("DAY,...", "Days of the week, such as SAT,SUN.")] = None,
    years: Annotated[int, option("N", "With --from: expand repeated events this many years ahead.")] = HORIZON_YEARS,
    source: Annotated[
        str | None, option("TEXT", "Source of the days, stored and shown; by default the file's name.")
    ] = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create or replace a calendar; jobs that use it follow at once."""
    if file is None and not days and not weekdays:
        refuse("NAME", f"calendar {name!r} would have no days", "add days with --from, --days or --weekdays")
    single, origin = _words(days), source
    if file is not None:
        require("calendars", "--from")
        from tidewheel.control.ical import read_calendar_file  # its packages are an extra

        found = read_calendar_file(file, today=SystemClock().now().date(), years=years)
        single += [day.isoformat() for day in sorted(found.days)]
        until = f", repeats followed to {found.repeats_until}" if found.repeats_until else ""
        origin = source or f"{file.name}: {found.events} events{until}"
    with requesting(tenant) as client:
        changed = client.calendars.put(name, days=single, weekdays=_words(weekdays), source=origin)
        calendar = client.calendars.get(name)
    what = f"version {calendar.version}" if changed else f"unchanged, version {calendar.version}"
    document = {"unchanged": not changed, **(as_object(as_json(calendar)) or {})}
    print_result(
        [wrapped(f"calendar {name}: {what}; {_days(calendar)}; {_jobs(calendar.jobs)}", "  ")], document, output
    )


def list_all(*, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT) -> None:
    """List the calendars of a tenant."""
    with reading() as connection:
        found = list_calendars(connection, tenant)
    rows = [
        (each.name, str(each.version), str(each.days), ",".join(each.weekdays), str(each.jobs), each.source or "")
        for each in found
    ]
    headings = ("name", "version", "days", "weekdays", "jobs", "source")
    print_rows(headings, rows, {"calendars": found}, output, nothing="no calendars")


def show(name: Name, *, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT) -> None:
    """Show a calendar: its days and the jobs that use it."""
    with reading() as connection:
        calendar = show_calendar(connection, tenant, name)
    more = calendar.jobs - len(calendar.keys)
    facts = (
        ("name", calendar.name),
        ("version", str(calendar.version)),
        ("changed", rfc3339(calendar.updated_at)),
        ("source", calendar.source),
        ("weekdays", ", ".join(calendar.weekdays)),
        ("days", "\n".join(map(str, calendar.days))),
        ("jobs", "\n".join((*calendar.keys, *([f"and {more} more"] if more else [])))),
    )
    print_record(facts, calendar, output)


def delete(name: Name, *, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT) -> None:
    """Delete a calendar that no job uses."""
    with requesting(tenant) as client:
        client.calendars.delete(name)
    print_result([f"calendar {name}: deleted"], {"name": name, "deleted": True}, output)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in text.split(",")] if text else []


def _days(calendar: CalendarDetail) -> str:
    single = [f"{len(calendar.days)} day{'' if len(calendar.days) == 1 else 's'}"] if calendar.days else []
    return " and ".join([*single, *([", ".join(calendar.weekdays)] if calendar.weekdays else [])])


def _jobs(number: int) -> str:
    return "no job uses it" if not number else f"{number} job{' uses' if number == 1 else 's use'} it"
