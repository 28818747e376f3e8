"""`tidewheel admin archive run | list | show | verify | restore | forget`."""

import re
from contextlib import closing
from dataclasses import asdict
from datetime import date
from typing import Annotated

import typer

from tidewheel.control.archive.days import ArchivedDay, forget_days, is_locked, list_days, locked_archive
from tidewheel.control.archive.stores import MANIFEST, SETTING, MissingFile, open_store
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.options import DEFAULT_TENANT, RunId, Tenant, Tz, checked_url, reading
from tidewheel.control.cli.output import Output, OutputOption, print_record, print_result, print_rows
from tidewheel.control.cli.parser import argument, switch
from tidewheel.control.cli.run_output import run_facts
from tidewheel.errors import SettingsError, refuse
from tidewheel.settings.connections import Connections

Day = Annotated[str | None, argument("DAY", "A day of UTC, such as 2026-11-20.")]


def run(output: OutputOption = Output.TEXT) -> None:
    """Archive closed days; remove days beyond the archive's period, and deleted tenants.

    A repeat continues where the last call stopped. Run the command once a day, and again after a failure.
    """
    from tidewheel.control.archive.archiver import archive_closed_days
    from tidewheel.settings.services import ArchiveSettings

    settings = ArchiveSettings.load()
    with closing(open_store(settings.archive)) as store:
        done = archive_closed_days(checked_url(), store, settings.archive_retention)
    lines = [f"{each.day}: {each.runs:,} runs, {each.bytes:,} bytes" for each in done.archived]
    lines += [f"{day}: removed, its facts are kept" for day in done.removed]
    lines += [f"tenant {tenant}: removed" for tenant in done.tenants]
    print_result(lines or ["nothing to archive: every closed day is already archived"], done, output)


def list_archived(output: OutputOption = Output.TEXT) -> None:
    """List archived days, oldest first, each with its runs and its size."""
    with reading() as connection:
        days = list_days(connection)
    rows = [(str(each.day), f"{each.runs:,}", f"{each.bytes:,}", each.archived_at) for each in days]
    print_rows(("day", "runs", "bytes", "archived"), rows, {"days": days}, output, nothing="no archived days")


def show(
    run_id: RunId, *, timezone: Tz = None, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT
) -> None:
    """Show a run from the archive, even while the database still has it."""
    from tidewheel.control.archive.lookup import show_archived_run

    archive = Connections.load().archive
    open_store(archive).close()
    found = show_archived_run(reading, archive, tenant, run_id)
    print_record(run_facts(found, timezone), found, output)


def verify(day: Day = None, *, output: OutputOption = Output.TEXT) -> None:
    """Check every file of the archive, or of a day; exit code 1 if one is damaged, missing or extra."""
    from tidewheel.control.archive.archiver import Verified
    from tidewheel.control.archive.archiver import verify as find

    def recorded() -> list[ArchivedDay]:
        with reading() as connection:
            return list_days(connection)

    def is_written() -> bool:
        with reading() as connection:
            return is_locked(connection)

    store, totals = open_store(Connections.load().archive), Verified()
    days = [_day(day).isoformat()] if day else sorted({*store.days(), *(each.day.isoformat() for each in recorded())})
    findings = list(find(store, days, recorded, totals, is_written))
    problems = f"{len(findings):,} findings" if findings else "all intact"
    lines = [f"{each.day}/{each.file} {each.problem}" for each in findings]
    lines.append(f"{totals.days:,} days, {totals.files:,} files, {totals.runs:,} runs: {problems}")
    print_result(lines, {**asdict(totals), "findings": findings}, output)
    if findings:
        raise typer.Exit(ExitCode.FAILED)


def restore(
    day: Day = None,
    *,
    drop: Annotated[
        bool, switch("Delete the restored rows of the day, or of all days if you name none.", "--drop")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Copy an archived day into tables of the schema tidewheel_archive, to read it with SQL."""
    from tidewheel.control.archive.archiver import drop_restored, restore_day, restored_schema
    from tidewheel.control.archive.days import read_manifest
    from tidewheel.control.archive.export import archive_session

    wanted = None if day is None else _day(day)
    url = checked_url()
    with locked_archive(url), closing(archive_session(url)) as session, session.transaction() as connection:
        schema = restored_schema(connection)
        if drop:
            if not drop_restored(connection, wanted):
                remedy = f"name a day in {schema}.facts or {schema}.finished_runs, or none to drop all"
                refuse("DAY", f"no rows of {wanted} are restored", remedy)
            print_result(["dropped"], {"dropped": wanted}, output)
            return
        if wanted is None:
            refuse("DAY", "is missing", "name a day from `tidewheel admin archive list`")
        archive = Connections.load().archive
        store = open_store(archive)
        try:
            manifest = read_manifest(wanted.isoformat(), store.read(f"{wanted}/{MANIFEST}"))
        except MissingFile:
            if any(each.day == wanted for each in list_days(connection)):
                raise SettingsError(
                    f"{archive} lacks {wanted}, which the database has recorded; mount the folder, correct {SETTING},"
                    " or restore the day from a copy"
                ) from None
            refuse("DAY", f"the archive has no day {wanted}", "name a day from `tidewheel admin archive list`")
        restore_day(connection, store, manifest)
    line = f"{wanted}: {manifest.runs:,} runs are in {schema}.finished_runs"
    print_result([line], {"day": wanted, "runs": manifest.runs}, output)


def forget(
    *,
    yes: Annotated[bool, switch("Confirm; required.", "--yes")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Stop archiving: retention again drops days that are not archived; the archive's files stay."""
    if not yes:
        refuse("--yes", "is missing: runs of days that are not archived will be lost after their period", "add --yes")
    from tidewheel.control.archive.export import archive_session

    url = checked_url()
    with locked_archive(url), closing(archive_session(url)) as session, session.transaction() as connection:
        days = forget_days(connection)
    print_result([f"forgot {days:,} days; `tidewheel admin archive run` records them again"], {"days": days}, output)


def _day(text: str) -> date:
    try:
        found = date.fromisoformat(text) if re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII) else None
    except ValueError:
        found = None
    if found is None:
        refuse("DAY", f"{text!r} is not a day", "write it as 2026-11-20")
    return found
