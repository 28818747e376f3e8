"""`tidewheel job skip | move | unskip`: coming occurrences, each named by its nominal instant."""

from typing import Annotated

import typer

from tidewheel.control.cli.answers import Answer, Output
from tidewheel.control.cli.connecting import DEFAULT_TENANT, Key, Tenant, asking
from tidewheel.control.cli.instants import Tz, beside, read_instant
from tidewheel.control.cli.jobs import Reason, say_job

At = Annotated[str, typer.Option("--at", metavar="TIME", help="The occurrence's nominal instant.")]


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
