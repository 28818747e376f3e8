"""`tidewheel job next | preview`: the occurrences that are to come of a job, saved or not."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from tidewheel.control.cli.connection_options import DEFAULT_TENANT, Key, Tenant, reading
from tidewheel.control.cli.job_files import read_job
from tidewheel.control.cli.job_flags import JobFlags, described, with_job_flags
from tidewheel.control.cli.jobs import MaybeKey, Named, key_of
from tidewheel.control.cli.output import Answer, Output, say, wrapped
from tidewheel.control.cli.time_options import Tz, beside, read_instant
from tidewheel.control.explain.explanation import Outcome
from tidewheel.control.explain.preview import Preview, preview
from tidewheel.control.explain.upcoming import MOST_SHOWN, Coming, upcoming
from tidewheel.control.reads.jobs import show_job
from tidewheel.errors import UnknownJob
from tidewheel.postgres.session import Conn
from tidewheel.settings import Connections

Number = Annotated[int, typer.Option("-n", metavar="N", min=1, max=MOST_SHOWN, help="How many instants to show.")]


def next_of(
    key: Key,
    *,
    number: Number = 10,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """Show what comes of a job, and what people, calendars and a pause make of it."""
    misfire_after = Connections.load().misfire_after
    with reading() as connection:
        found = upcoming(connection, tenant, key, number, misfire_after=misfire_after)
    lines = [*_lines(found.coming, timezone or found.zone), *([wrapped(found.words)] if found.words else [])]
    say(lines, found, output)


@with_job_flags
def preview_of(
    key: MaybeKey = None,
    *,
    flags: JobFlags,
    named: Named = None,
    after: Annotated[
        str | None, typer.Option(metavar="TIME", help="Begin after this, RFC 3339 or local to ZONE; else now.")
    ] = None,
    number: Number = 10,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """Show what a job would do, by a file or by flags, on top of the job as it stands; saves nothing."""
    begin = read_instant(after, "--after", flags.tz) if after else None
    given = read_job(flags.file) if flags.file else None
    wanted = key_of(key, named, given or {}) if key or named or (given or {}).get("key") else None
    with reading() as connection:
        base = given if given is not None else _standing(connection, tenant, wanted)
        job = {**described(base, flags), **({"key": wanted} if wanted else {})}
        found = preview(connection, tenant, job, number, begin)
    say(_preview_lines(found, flags.tz or found.zone), found, output)


def _standing(connection: Conn, tenant: str, key: str | None) -> dict[str, object]:
    """The job as it stands, where there is one."""
    try:
        return dict(show_job(connection, tenant, key).job) if key else {}
    except UnknownJob:
        return {}


def _preview_lines(found: Preview, zone: str) -> Iterator[str]:
    for sentence in found.words:
        yield wrapped(sentence, "  ")
    yield ""
    yield from _lines(found.coming, zone)
    if found.exhausted:
        yield "and nothing after that" if found.coming else "nothing"


def _lines(coming: Sequence[Coming], zone: str) -> Iterator[str]:
    for each in coming:
        yield wrapped(f"{beside(each.at, zone)}{_outcome(each, zone)}", "    ")
        for note in each.notes:
            yield wrapped(f"    ! {note}", "      ")


def _outcome(each: Coming, zone: str) -> str:
    """What is to become of it, where it is not simply to fire."""
    said: list[str] = [] if each.outcome is Outcome.COMING else [_WORDS.get(each.outcome, each.outcome)]
    if each.last_at is not None:
        few = str(each.occurrences) if each.exact else f"more than {each.occurrences}"
        said.append(f"{few} until {beside(each.last_at, zone)}")
    if each.leaves_at is not None and each.leaves_at != each.at:
        said.append(f"leaves {beside(each.leaves_at, zone)}")
    return f"  {', '.join(said)}" if said else ""


_WORDS = {
    Outcome.COMING_SKIPPED: "skipped by hand",
    Outcome.COMING_MOVED: "moved",
    Outcome.COMING_EXCLUDED: "left out by a calendar",
    Outcome.PAUSED: "held by the pause",
    Outcome.WAITING: "due, waits for a scheduler",
}
