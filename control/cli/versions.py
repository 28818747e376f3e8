"""`tidewheel job versions | diff | rollback`: read a job's versions, compare two, restore one."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from tidewheel.control.cli.job_edit import print_job_change
from tidewheel.control.cli.options import DEFAULT_TENANT, MAX_INT, IfVersion, Key, Tenant, reading, requesting, rfc3339
from tidewheel.control.cli.output import Output, OutputOption, print_document, print_result, print_table, wrapped
from tidewheel.control.cli.tables import Cell
from tidewheel.control.reads import versions as read


def versions(
    key: Key,
    *,
    number: Annotated[
        int, typer.Option("-n", metavar="N", min=1, max=read.MAX_VERSIONS, help="Show at most this many.")
    ] = 20,
    before: Annotated[
        int | None, typer.Option(metavar="VERSION", min=1, max=MAX_INT, help="Only versions before this one.")
    ] = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List a job's versions, the newest first, each with its changes."""
    with reading() as connection:
        found = read.versions(connection, tenant, key, limit=number, before=before)
    if output is not Output.TEXT:
        print_document({"key": key, "versions": found}, output)
    else:
        print_table(("version", "in force after", "until", "changed"), map(_row, found))


def diff(
    key: Key,
    first: Annotated[int, typer.Argument(metavar="A", min=1, max=MAX_INT, help="A version's number.")],
    second: Annotated[
        int | None,
        typer.Argument(metavar="B", min=1, max=MAX_INT, help="Another version's number; the newest by default."),
    ] = None,
    *,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compare version B of a job with version A, field by field."""
    with reading() as connection:
        to = second or read.versions(connection, tenant, key, limit=1)[0].number
        found = read.diff(connection, tenant, key, first, to)
    lines = change_lines(found) or ["nothing differs"]
    print_result(lines, {"key": key, "from": first, "to": to, "changes": found}, output)


def rollback(
    key: Key,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, max=MAX_INT, help="The version to restore.")],
    *,
    if_version: IfVersion = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Restore the spec of an earlier version, as a new version."""
    with requesting(tenant) as client:
        job = client.rollback(key, version, if_version=if_version)
    print_job_change(key, f"rolled back to version {version}", job, output)


def _row(version: read.Version) -> tuple[Cell, ...]:
    changed = ", ".join(change.path for change in version.changes)
    if version.retired_at is not None:
        changed = f"{changed}; deleted at {rfc3339(version.retired_at)}".removeprefix("; ")
    return str(version.number), version.effective_at, version.until, changed


def change_lines(found: Sequence[read.Change]) -> list[str]:
    """Return a line for each field that differs."""
    return [wrapped(f"{each.path}: {_value_text(each.before)} -> {_value_text(each.after)}", "    ") for each in found]


def _value_text(value: object) -> str:
    return "unset" if value is None else json.dumps(value, ensure_ascii=False)
