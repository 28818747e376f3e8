"""`tidewheel admin calendar put | list | show | delete`: named sets of days that limit jobs."""

from pathlib import Path
from typing import Annotated

import typer

from tidewheel.clock import SystemClock
from tidewheel.control.cli.options import DEFAULT_TENANT, Tenant, reading, requesting, rfc3339
from tidewheel.control.cli.output import (
    Output,
    OutputOption,
    print_document,
    print_facts,
    print_result,
    print_table,
    wrapped,
)
from tidewheel.control.reads.calendars import CalendarDetail, list_calendars, show_calendar
from tidewheel.control.reads.json_form import as_json
from tidewheel.errors import refuse
from tidewheel.extras import require
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.values import HORIZON_YEARS

Name = Annotated[str, typer.Argument(metavar="NAME", help="The calendar's name.")]


def put(
    name: Name,
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE.ics", help="All days on which the events of an iCalendar file take place."
        ),
    ] = None,
    days: Annotated[str | None, typer.Option(metavar="DAY,...", help="Days, such as 2026-12-25,2026-12-26.")] = None,
    weekdays: Annotated[
        str | None, typer.Option(metavar="DAY,...", help="Days of every week, such as SAT,SUN.")
    ] = None,
    years: Annotated[
        int, typer.Option(metavar="N", help="With --from: expand repeated events this many years ahead.")
    ] = HORIZON_YEARS,
    source: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Source of the days, stored and shown; by default the file's name."),
    ] = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create or replace a calendar; jobs that name it follow at once."""
    if file is None and not days and not weekdays:
        refuse("NAME", f"calendar {name!r} would have no days", "add days by --from, --days or --weekdays")
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
    if output is not Output.TEXT:
        print_document({"calendars": found}, output)
        return
    if not found:
        typer.echo("no calendars")
        return
    print_table(
        ("name", "version", "days", "weekdays", "jobs", "source"),
        (
            (each.name, str(each.version), str(each.days), ",".join(each.weekdays), str(each.jobs), each.source or "")
            for each in found
        ),
    )


def show(name: Name, *, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT) -> None:
    """Show a calendar: its days and the jobs that name it."""
    with reading() as connection:
        calendar = show_calendar(connection, tenant, name)
    if output is not Output.TEXT:
        print_document(calendar, output)
        return
    more = calendar.jobs - len(calendar.keys)
    print_facts(
        (
            ("name", calendar.name),
            ("version", str(calendar.version)),
            ("changed", rfc3339(calendar.updated_at)),
            ("source", calendar.source),
            ("weekdays", ", ".join(calendar.weekdays)),
            ("days", "\n".join(map(str, calendar.days))),
            ("jobs", "\n".join((*calendar.keys, *([f"and {more} more"] if more else [])))),
        )
    )


def delete(name: Name, *, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT) -> None:
    """Delete a calendar that no job names."""
    with requesting(tenant) as client:
        client.calendars.delete(name)
    print_result([f"calendar {name}: deleted"], {"name": name, "deleted": True}, output)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in text.split(",")] if text else []


def _days(calendar: CalendarDetail) -> str:
    single = [f"{len(calendar.days)} day{'' if len(calendar.days) == 1 else 's'}"] if calendar.days else []
    return " and ".join([*single, *([", ".join(calendar.weekdays)] if calendar.weekdays else [])])


def _jobs(number: int) -> str:
    return "no job names it" if not number else f"{number} job{' names' if number == 1 else 's name'} it"
