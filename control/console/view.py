"""Parts of a page: its template, its values, the filters and the next page of a list."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import ClassVar, Concatenate, ParamSpec, Protocol, TypeVar, cast
from urllib.parse import urlencode

from starlette.requests import Request

from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import PageQuery, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.rendering import ZONE, zone_of_page
from tidewheel.control.console.urls import Urls
from tidewheel.control.instants import read_instant
from tidewheel.errors import FieldError, InvalidInput, Refused, TidewheelError, Unavailable, refuse
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import format_timestamp
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn

T = TypeVar("T")
M = TypeVar("M", bound=StrictModel)
P = ParamSpec("P")

SPANS = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
"""The times before now that a list proposes."""

_FEWEST = 3  # equal neighbours that become one row
_END_OF_DAY = "23:59:59.999999"
_MORE = "add a job key, or choose a time in the field since"
_FIELDS: Mapping[str, tuple[str, str]] = {
    "key": ("job", "correct the key, or find the job in the list of jobs"),
    "labels": ("label", _MORE),
    "run_labels": ("run_label", _MORE),
    "ended_since": ("ended_since", "clear the filters"),
    "cursor": ("cursor", "open the list again, from its first page"),
}
"""The field of a page that a refusal of a read is about, and its remedy on the page."""


@dataclass(frozen=True, slots=True)
class View:
    """The values of a page.

    Args:
        moved_to: The address of the page, if the request has another one.
        document: What is sent as JSON in place of a page.
    """

    values: Mapping[str, object]
    status: int = 200
    moved_to: str | None = None
    document: object = None


class Page(Protocol):
    """A page."""

    template: ClassVar[str]

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the values, on a thread for reads."""
        ...


@dataclass(frozen=True, slots=True)
class Failed:
    """A part that could not be read, in place of its value; the rest of the page stays.

    Args:
        words: Why; empty if the page names the reason elsewhere.
    """

    words: str
    refused: tuple[FieldError, ...] = ()
    failed: bool = True


def part(read: Callable[[], T]) -> T | Failed:
    """Return a part of a page, or the reason for which it has none; an absent database fails the page."""
    try:
        return read()
    except Unavailable:
        raise
    except Refused as refused:
        return Failed(str(refused), refused.errors)
    except TidewheelError as error:
        return Failed(str(error))


def or_else(read: T | Failed, otherwise: T) -> T:
    """Return what was read, or a value in its place."""
    return otherwise if isinstance(read, Failed) else read


def in_snapshot(
    connection: Connection, read: Callable[Concatenate[Conn, P], T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return what one read returns, in a transaction of its own."""
    with connection.snapshot() as reading:
        return read(reading, *args, **kwargs)


def of_all_tenants(
    connection: Connection, read: Callable[Concatenate[Conn, P], T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return what one read returns that no tenant's rights bound."""
    with connection.snapshot(all_tenants=True) as reading:
        return read(reading, *args, **kwargs)


def part_of(
    connection: Connection, read: Callable[Concatenate[Conn, P], T], *args: P.args, **kwargs: P.kwargs
) -> T | Failed:
    """Return a part of a page that is one read."""
    return part(lambda: in_snapshot(connection, read, *args, **kwargs))


def page_now(connection: Connection) -> datetime:
    """Return the database's clock, which is the present of a page."""
    return in_snapshot(connection, read_now)


def without_zone(request: Request) -> Request:
    """Return a request without the zone in its address; `zone_of_page` still knows that zone."""
    given = [(name, value) for name, value in request.query_params.multi_items() if name != "tz"]
    return Request({**request.scope, ZONE: zone_of_page(request), "query_string": urlencode(given).encode()})


def read_filters(request: Request, model: type[M], now: datetime | None = None) -> tuple[M, tuple[FieldError, ...]]:
    """Return the filters of a page's form, and the errors of those that do not fit: then no filter holds.

    A form sends its empty fields too: they are left out. With a present, people write the instants of `since` and
    `until` in the zone of the page.
    """
    given = [(name, value) for name, value in request.query_params.multi_items() if value.strip()]
    try:
        if now is not None:
            given = _with_instants(given, zone_of_page(request)[0], now)
        return read_query(Request({**request.scope, "query_string": urlencode(given).encode()}), model), ()
    except InvalidInput as error:
        return model(), tuple(error.errors)


def _with_instants(given: Sequence[tuple[str, str]], zone_name: str, now: datetime) -> list[tuple[str, str]]:
    """Return fields with the instants of `since` and `until` as RFC 3339."""
    read = {name: _instant(name, text.strip(), zone_name, now) for name, text in given if name in {"since", "until"}}
    if len(read) > 1 and read["until"] < read["since"]:
        refuse("until", "it lies before since", "write a later time")
    return [(name, format_timestamp(read[name]) if name in read else text) for name, text in given]


def _instant(name: str, text: str, zone_name: str, now: datetime) -> datetime:
    """Return an instant as people write it; a day in `until` lasts to its end."""
    if name == "until":
        with suppress(InvalidInput):
            return read_instant(f"{text} {_END_OF_DAY}", name, zone_name, now=now)
    return read_instant(text, name, zone_name, now=now)


def begin_of(last: str | None, since: datetime | None, now: datetime) -> datetime | None:
    """Return the later begin of one of `SPANS` and of a filter; None if neither is given."""
    begins = (since, None if last is None else now - SPANS[last])
    return max((each for each in begins if each is not None), default=None)


def filters_of(query: PageQuery, *shown: str) -> dict[str, object]:
    """Return the filters of a list as a link has them, but for `shown`: labels as several `name=value`."""
    given = query.model_dump(mode="json", exclude={"tenant", "cursor", "limit", *shown}, exclude_defaults=True)
    return {
        name: pairs(cast("dict[str, str]", value)) if isinstance(value, dict) else value
        for name, value in given.items()
    }


def pairs(labels: Mapping[str, str]) -> list[str]:
    """Return labels as filters name them.

    >>> pairs({"team": "billing", "tier": "1"})
    ['team=billing', 'tier=1']
    """
    return [f"{name}={value}" for name, value in labels.items()]


def neighbours(
    rows: Sequence[T], alike: Callable[[T], object], opened: Callable[[T], bool], *, apart: bool = False
) -> list[Sequence[T]]:
    """Return groups of equal neighbours, each one row of a list; an opened group stays as its rows.

    Args:
        apart: Equal rows that lie apart are a group too, at the place of the first.
    """
    if apart:
        places = {alike(row): at for at, row in reversed([*enumerate(rows)])}
        rows = sorted(rows, key=lambda row: places[alike(row)])
    found: list[Sequence[T]] = []
    for _, equal in groupby(rows, alike):
        group = tuple(equal)
        folds = len(group) >= (2 if apart else _FEWEST) and not any(map(opened, group))
        found += [group] if folds else [(each,) for each in group]
    return found


def list_view(
    place: str,
    query: PageQuery,
    read: Callable[[], tuple[T, str | None]],
    *,
    errors: tuple[FieldError, ...],
    now: datetime,
    urls: Urls,
    of_page: Callable[[T], Mapping[str, object]] = lambda page: {},
    fields: Sequence[tuple[str, Sequence[str]]] = (),
    shown: tuple[str, ...] = (),
) -> View:
    """Return the view of a list.

    Args:
        read: Reads the page of rows, and its cursor.
        of_page: Values of the template that depend on the rows.
        fields: The fields of the form, each with its listed values.
        shown: The fields of the query that filter nothing, but change how the page shows the list.
    """
    found: tuple[T, str | None] | Failed = Failed("") if errors else part(read)
    if isinstance(found, Failed) and found.refused:
        errors, found = tuple(map(_in_form, found.refused)), Failed("")
    filters, kept = filters_of(query, *shown), query.model_dump(include={*shown}, exclude_defaults=True)
    page, cursor = (found, None) if isinstance(found, Failed) else found
    values: Mapping[str, object] = {} if isinstance(found, Failed) else of_page(found[0])
    return View(
        {
            "now": now, "page": page, "query": query, "errors": errors, "filters": filters, "kept": kept,
            "fields": fields, "is_first": query.cursor is None,
            "older": None if cursor is None else urls(place, **filters, **kept, cursor=cursor), **values,
        },
        422 if errors or isinstance(found, Failed) else 200,
    )  # fmt: skip


def _in_form(error: FieldError) -> FieldError:
    """Return an error of a read with the name of the page's field."""
    path, remedy = _FIELDS.get(error.path, (error.path, error.remedy))
    return FieldError(path, error.problem, remedy)
