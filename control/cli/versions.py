"""`tidewheel job versions | diff | rollback`: what a job said, what has changed, and going back."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from tidewheel.control.cli.connection_options import DEFAULT_TENANT, Key, Tenant, asking, reading
from tidewheel.control.cli.jobs import IfVersion, say_job
from tidewheel.control.cli.output import Answer, Output, print_table, say, say_json, wrapped
from tidewheel.control.cli.time_options import rfc3339
from tidewheel.control.reads import versions as read


def versions(
    key: Key,
    *,
    number: Annotated[
        int, typer.Option("-n", metavar="N", min=1, max=read.MOST_VERSIONS, help="How many to show.")
    ] = 20,
    before: Annotated[int | None, typer.Option(metavar="VERSION", min=1, help="Only earlier ones.")] = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """List a job's versions, the newest first, each with what it changed."""
    with reading() as connection:
        found = read.versions(connection, tenant, key, most=number, before=before)
    if output is Output.JSON:
        say_json({"key": key, "versions": found})
    else:
        print_table(("version", "in force after", "until", "changed"), map(_row, found))


def diff(
    key: Key,
    first: Annotated[int, typer.Argument(metavar="A", min=1, help="A version.")],
    second: Annotated[int | None, typer.Argument(metavar="B", min=1, help="Another; else the newest.")] = None,
    *,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """Show what differs in version B of a job from version A, field by field."""
    with reading() as connection:
        to = second or read.versions(connection, tenant, key, most=1)[0].number
        found = read.diff(connection, tenant, key, first, to)
    say(_changes(found) or ["nothing differs"], {"key": key, "from": first, "to": to, "changes": found}, output)


def rollback(
    key: Key,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="The version whose spec is wanted.")],
    *,
    if_version: IfVersion = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """Give a job the spec of an earlier version again, as a new version."""
    with asking(tenant) as client:
        done = client.rollback(key, version, if_version=if_version)
    say_job(key, f"rolled back to what version {version} said", done, output)


def _row(version: read.Version) -> tuple[str, ...]:
    changed = ", ".join(change.path for change in version.changes)
    if version.retired_at is not None:
        changed = f"{changed}; deleted at {rfc3339(version.retired_at)}".removeprefix("; ")
    return str(version.number), rfc3339(version.effective_at), rfc3339(version.until) if version.until else "", changed


def _changes(found: Sequence[read.Change]) -> list[str]:
    return [wrapped(f"{each.path}: {_said(each.before)} -> {_said(each.after)}", "    ") for each in found]


def _said(value: object) -> str:
    return "not said" if value is None else json.dumps(value, ensure_ascii=False)
