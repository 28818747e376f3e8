"""Options and arguments that several commands share, and their sessions of the database.

Both check the database first, so that a missing one is reported in one line. Times in output are UTC beside local time;
`control/instants.py` reads those of options.
"""

import re
import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar, cast
from uuid import UUID

import typer
from psycopg import IsolationLevel

from tidewheel.audit import Door, process_actor
from tidewheel.control.cli.parser import argument, option, switch
from tidewheel.control.instants import SECONDS, read_instant
from tidewheel.control.reads.stored import show_damaged
from tidewheel.errors import FieldError, InvalidInput, ScheduleRefused, UnknownRun, refuse
from tidewheel.ids import read_uuid
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import format_timestamp, parse_duration
from tidewheel.migrations.runner import require_current
from tidewheel.postgres.session import FOR_LISTS, Conn, Session, connect_configured
from tidewheel.settings.connections import MOST_COPIES, Connections

if TYPE_CHECKING:
    from tidewheel.control.client.client import Client

T = TypeVar("T")
DEFAULT_TENANT = "default"
MAX_INT = 2**31 - 1  # of an `integer` column

_PART = re.compile(r"(?P<begin>[0-9a-f]{4}[0-9a-f-]{0,31})(?:(?:…|\.\.\.)(?P<end>[0-9a-f]{1,12}))?", re.ASCII)
_SHOWN = 10  # candidates of an ambiguous id
_IDS: Mapping[object, str] = {int: r"\d{1,18}", UUID: r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", str: ".{1,255}"}

Yes = Annotated[bool, switch("Do not ask for confirmation; required without a terminal.", "--yes", "-y")]


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal before an act that is rarely meant."""
    if yes:
        return
    if not sys.stdin.isatty():
        refuse("--yes", f"is missing: {question[0].lower()}{question[1:]}", "add --yes")
    typer.confirm(question, abort=True, err=True)


# Eager: the callbacks of other options and arguments read in this tenant.
Tenant = Annotated[str, typer.Option(metavar="NAME", is_eager=True, help="Tenant to act in.")]
Key = Annotated[str, argument("KEY", "The job's key.")]
Delay = Annotated[str | None, option("DURATION", "The delay before the run, such as 10m.")]
DryRun = Annotated[bool, switch("Print how many match, and the first ten; change nothing.", "--dry-run")]
Reason = Annotated[str | None, option("TEXT", "Reason, stored with the change.")]

RequestId = Annotated[
    str | None, option("ID", "The request's id; a repeated id returns the first reply and changes nothing.")
]
IfVersion = Annotated[int | None, option("N", "Fail unless this is the job's current version.", min=1, max=MAX_INT)]
Limit = Annotated[int, option("N", "Show at most this many.", "-n", min=1, max=1000)]
Replication = Annotated[int | None, option("N", "Copies of each new partition; 3 in production.")]


def tenant_flag(tenant: str) -> str:
    """Return the flag that a command in a remedy needs.

    >>> tenant_flag("default"), tenant_flag("acme")
    ('', ' --tenant acme')
    """
    return "" if tenant == DEFAULT_TENANT else f" --tenant {shlex.quote(tenant)}"


@contextmanager
def reading() -> Generator[Conn]:
    """Open a transaction that reads one snapshot; an error names the setting of the database's address."""
    session = Session(checked_url(), "tidewheel-cli", options=FOR_LISTS)
    try:
        session.connection().isolation_level = IsolationLevel.REPEATABLE_READ
        with session.transaction() as connection:
            show_damaged(connection, shows=True)
            yield connection
    finally:
        session.close()


@contextmanager
def requesting(tenant: str) -> Generator["Client"]:
    """Open a client for requests; raises as `reading` does."""
    from tidewheel.control.client.client import Client  # imports all of intake, which no list needs

    checked_url()
    with Client(tenant=tenant, actor=process_actor(Door.CLI)) as client:
        yield client


def checked_url() -> str:
    """Return the URL of the database after it answered; raises as `reading` does."""
    url = Connections.load().database()
    with connect_configured(url, "tidewheel-cli", autocommit=True) as connection:
        require_current(connection)
    return url


def check_replication(copies: int | None) -> None:
    """Check the value of --replication, or raise InvalidInput."""
    if copies is not None and not 1 <= copies <= MOST_COPIES:
        refuse("--replication", f"{copies} is not a number of copies", f"write 1 to {MOST_COPIES}; 3 in production")


def read_labels(texts: Iterable[str]) -> dict[str, str]:
    """Return the labels that `NAME=VALUE` texts name; refuse a text without `=`."""
    labels: dict[str, str] = {}
    for each in texts:
        name, equals, value = each.partition("=")
        if not equals:
            refuse("--label", f"{each!r} is not a label", f"write it as {each}=VALUE")
        labels[name] = value
    return labels


def _known_zone(name: str | None) -> str | None:
    """Return the value of --tz; refuse an unknown zone also where no time needs it."""
    if name is not None:
        from tidewheel.schedules.zones import zone  # here: most commands read no local time

        try:
            zone(name)
        except ScheduleRefused as refused:
            raise InvalidInput([FieldError("--tz", each.problem, each.remedy) for each in refused.errors]) from None
    return name


Tz = Annotated[
    str | None,
    typer.Option(
        "--tz",
        metavar="ZONE",
        help="IANA time zone for times without an offset, and for the output.",
        callback=_known_zone,
    ),
]

After = Annotated[str | None, option("PLACE", "Start after this place; the last line of a page shows it.", "--after")]


def read_place(text: str, kind: Callable[[str], T]) -> tuple[datetime, T]:
    """Parse the place of a row in a list: its instant and its id; raise InvalidInput if it is none."""
    if (found := re.fullmatch(rf"(\S{{20,40}})/({_IDS[kind]})", text, re.ASCII)) is None:
        refuse("--after", f"{text!r} is not a place in a list", "copy it from the last line of a page")
    return read_instant(found[1], "--after"), kind(found[2])


def place_text(at: datetime, number: int | UUID | str) -> str:
    """Return the text of a place."""
    return f"{format_timestamp(at)}/{number}"


def read_duration(text: str, path: str) -> timedelta:
    """Parse a duration; a bare number is seconds. Raise InvalidInput for other texts."""
    try:
        return parse_duration(float(text) if SECONDS.fullmatch(text) else text)
    except InvalidValue as invalid:
        raise InvalidInput([FieldError(path, part.problem, part.remedy) for part in invalid.errors]) from invalid


def rfc3339(at: datetime) -> str:
    """Return an instant in UTC, in its shortest exact form.

    >>> from datetime import timezone
    >>> rfc3339(datetime(2026, 3, 29, 8, tzinfo=timezone(timedelta(hours=2))))
    '2026-03-29T06:00:00Z'
    """
    return at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def wall(local: datetime) -> str:
    """Return a local time with weekday, offset and abbreviation; for UTC the weekday alone.

    >>> from tidewheel.schedules.describe import to_zone
    >>> wall(to_zone(datetime(2026, 3, 29, 1, tzinfo=UTC), "Europe/Berlin"))
    'Sun 2026-03-29T03:00:00+02:00 CEST'
    """
    if local.tzname() == "UTC":
        return f"{local:%a}"
    name = local.tzname() or ""
    return f"{local:%a} {local.isoformat()}" + (f" {name}" if name[:1].isalpha() else "")


def utc_and_local(at: datetime, zone_name: str | None) -> str:
    """Return an instant in UTC, followed by the local time if a zone other than UTC is known."""
    if zone_name is None or zone_name == "UTC":
        return rfc3339(at)
    from tidewheel.schedules.describe import to_zone  # here: UTC needs no zone data

    return f"{rfc3339(at)}  {wall(to_zone(at, zone_name))}"


class _Part(NamedTuple):
    """A part of a run's id, as it was written, and its begin and end without hyphens."""

    text: str
    begin: str
    end: str


def _read(text: str) -> UUID | _Part:
    try:
        return read_uuid(text)
    except ValueError:
        if (found := _PART.fullmatch(text.lower())) is None:
            message = f"{text!r} is not a run id; write the whole id, or at least its first 4 digits"
            raise typer.BadParameter(message) from None
        return _Part(text, found["begin"].replace("-", ""), found["end"] or "")


def _whole_ids(context: typer.Context, given: object) -> object:
    """Replace each part of an id by the id of the only run that has it."""
    if isinstance(given, list):
        return [_whole_ids(context, each) for each in cast("list[object]", given)]
    return _find(str(context.params["tenant"]), given) if isinstance(given, _Part) else given


def _find(tenant: str, part: _Part) -> UUID:
    """Return the id of the only stored run that a part names; a run of the archive needs its whole id."""
    from tidewheel.nouns.runs.reads import find_short_id  # here: a whole id needs no read

    with reading() as connection:
        runs, is_cut = find_short_id(connection, tenant, part.begin, part.end)
    if is_cut:
        refuse("RUN", f"too many run ids begin with {part.begin}", "write more digits of the id")
    if not runs:
        raise UnknownRun(part.text)
    if len(runs) > 1:
        listed = ", ".join(f"{run.run_id} ({run.key}, {run.status})" for run in runs[:_SHOWN])
        more = f", and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
        refuse("RUN", f"{part.text} matches {len(runs)} runs", f"write more digits of one of {listed}{more}")
    return runs[0].run_id


RunId = Annotated[
    UUID,
    typer.Argument(
        metavar="RUN",
        help="The run's id, or enough of its first digits to be unique.",
        parser=_read,
        callback=_whole_ids,
    ),
]
RunIds = Annotated[
    list[UUID] | None,
    typer.Argument(metavar="RUN", help="Runs, by id or by the first digits of one.", parser=_read, callback=_whole_ids),
]
FromRun = Annotated[
    UUID | None,
    typer.Option(
        "--from-run", metavar="RUN", help="A run of the batch that is in progress.", parser=_read, callback=_whole_ids
    ),
]
