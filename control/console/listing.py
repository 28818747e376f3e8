"""The common end of pages that list rows: filters in links, the next page, the status of a refusal."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TypeVar, cast

from tidewheel.control.api.queries import PageQuery
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, View, part
from tidewheel.errors import FieldError

P = TypeVar("P")

_MORE = "add a job key, or choose a time in the field since"
_FIELDS: Mapping[str, tuple[str, str]] = {
    "key": ("job", "correct the key, or find the job in the list of jobs"),
    "labels": ("label", _MORE),
    "run_labels": ("run_label", _MORE),
    "ended_since": ("ended_since", "clear the filters"),
    "cursor": ("cursor", "open the list again, from its first page"),
}
"""The field of a page that a refusal of a read is about, and its remedy on the page."""


def filters_of(query: PageQuery) -> dict[str, object]:
    """Return the filters of a list as a link has them: labels as several `name=value`."""
    given = query.model_dump(mode="json", exclude={"tenant", "cursor", "limit"}, exclude_defaults=True)
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


def list_view(
    place: str,
    query: PageQuery,
    read: Callable[[], tuple[P, str | None]],
    *,
    errors: tuple[FieldError, ...],
    now: datetime,
    urls: Urls,
    of_page: Callable[[P], Mapping[str, object]] = lambda page: {},
) -> View:
    """Return the view of a list.

    Args:
        read: Reads the page of rows, and its cursor.
        errors: Those of filters that do not fit.
        of_page: Values of the template that depend on the rows.
    """
    found: tuple[P, str | None] | Failed = Failed("") if errors else part(read)
    if isinstance(found, Failed) and found.refused:
        errors, found = tuple(map(_in_form, found.refused)), Failed("")
    filters = filters_of(query)
    page, cursor = (found, None) if isinstance(found, Failed) else found
    values: Mapping[str, object] = {} if isinstance(found, Failed) else of_page(found[0])
    return View(
        {
            "now": now, "page": page, "query": query, "errors": errors, "filters": filters,
            "labels": filters.get("label", []), "is_first": query.cursor is None,
            "older": None if cursor is None else urls(place, **filters, cursor=cursor), **values,
        },
        422 if errors or isinstance(found, Failed) else 200,
    )  # fmt: skip


def _in_form(error: FieldError) -> FieldError:
    """Return an error of a read with the name of the page's field."""
    path, remedy = _FIELDS.get(error.path, (error.path, error.remedy))
    return FieldError(path, error.problem, remedy)
