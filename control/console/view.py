"""The parts of a page: a template, and the values that it shows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Protocol, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request

from tidewheel.control.api.callers import Caller
from tidewheel.control.api.queries import read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.urls import Urls
from tidewheel.errors import FieldError, InvalidInput, Refused, TidewheelError, Unavailable
from tidewheel.jobs.validation import StrictModel
from tidewheel.postgres.database_clock import read_now

T = TypeVar("T")
M = TypeVar("M", bound=StrictModel)


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
    place: ClassVar[str]

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
    """Read a part of a page.

    Returns:
        Its value; or the reason for which there is none. An absent database is no matter of one part.
    """
    try:
        return read()
    except Unavailable:
        raise
    except Refused as refused:
        return Failed(str(refused), refused.errors)
    except TidewheelError as error:
        return Failed(str(error))


def page_now(connection: Connection) -> datetime:
    """Return the database's clock, which is the present of a page."""
    with connection.snapshot() as reading:
        return read_now(reading)


def without_zone(request: Request) -> Request:
    """Return a request without the zone of its page, which no filter names."""
    given = [(name, value) for name, value in request.query_params.multi_items() if name != "tz"]
    return Request({**request.scope, "query_string": urlencode(given).encode()})


def read_filters(request: Request, model: type[M]) -> tuple[M, tuple[FieldError, ...]]:
    """Return the filters of a page's form, and the errors of those that do not fit: then no filter holds.

    A form sends its empty fields too: they are left out.
    """
    given = [(name, value) for name, value in request.query_params.multi_items() if value.strip()]
    scope = {**request.scope, "query_string": urlencode(given).encode()}
    try:
        return read_query(Request(scope), model), ()
    except InvalidInput as error:
        return model(), tuple(error.errors)
