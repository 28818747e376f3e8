"""Dead letters: what was given up, by cause and one by one, and one of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, ClassVar, Literal, TypeVar, cast

from starlette.requests import Request

from tidewheel.control.api.callers import Caller
from tidewheel.control.api.cancellations import read_number
from tidewheel.control.api.dead_letters import LettersQuery
from tidewheel.control.api.queries import Cursors, TenantQuery, Whole, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.dead_letters import DeadLetters
from tidewheel.control.console.dump import dump
from tidewheel.control.console.listing import filters_of, list_view
from tidewheel.control.console.sentences import about_run
from tidewheel.control.console.under_way import letter_under_way, letters_under_way
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, View, page_now, part, read_filters
from tidewheel.control.reads.dead_letter_groups import DeadLetterGroup, DeadLetterGroups
from tidewheel.control.reads.dead_letters import DeadLetterFilter, DeadLetterPage, DeadLetterSummary
from tidewheel.control.reads.redrives import in_redrives, letters_in_redrives
from tidewheel.errors import UnknownDeadLetter
from tidewheel.jobs.values import Instant

SPANS = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
REDRIVEN: Mapping[str, bool | None] = {"open": False, "redriven": True, "all": None}
"""The filter of each tab."""
_FILTERS = ("kind", "status", "error_type", "queue", "lane", "since", "until")
_GROUPS = 8
_MOST_GROUPS = 100  # of a page
_LOOK = 1000  # dead letters of which those in a redrive are counted


class TabQuery(LettersQuery):
    """Filter of dead letters with the tab of the page.

    Attributes:
        show: Those that are not redriven, those that are, or both.
    """

    show: Literal["open", "redriven", "all"] = "open"


T = TypeVar("T", bound=TabQuery)


class PageOfLettersQuery(TabQuery):
    """Filter of the page of dead letters.

    Attributes:
        last: Only dead letters of this time before now.
    """

    last: Literal["1h", "24h", "7d", "30d"] | None = None


@dataclass(frozen=True, slots=True)
class DeadLettersPage:
    """The list of dead letters."""

    template: ClassVar[str] = "dead-letters.html"
    place: ClassVar[str] = "dead_letters"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the causes, and a page of dead letters by the filters of the address."""
        query, errors = read_filters(request, PageOfLettersQuery)
        query = by_tab(query)
        now = page_now(connection)
        since = query.since if query.last is None else now - SPANS[query.last]
        narrowed: dict[str, Any] = {name: getattr(query, name) for name in _FILTERS}
        narrowed |= {"key": query.job, "since": since, "redriven": REDRIVEN[query.show]}

        def listed() -> tuple[DeadLetterPage, str | None]:
            cursors = Cursors.of_list("dead-letters", query, caller.tenant)
            place = cursors.read(Instant, Whole)
            after = None if place is None else (place[0], place[1])
            found = DeadLetters(connection).list(after=after, limit=query.limit, **cast("DeadLetterFilter", narrowed))
            return found, cursors.write(*found.next_cursor or [None])

        def grouped() -> DeadLetterGroups:
            return DeadLetters(connection).groups(since=since, redriven=False)

        filters = filters_of(query)
        by_cause = query.show == "open" and query.cursor is None and not set(filters) - {"last"}
        view = list_view("dead_letters", query, listed, errors=errors, now=now, urls=urls)
        page = view.values["page"]
        letters = () if isinstance(page, Failed) else cast("DeadLetterPage", page).dead_letters

        def counted_in_redrives() -> Sequence[DeadLetterSummary]:
            if query.show == "redriven" or not letters:
                return ()
            with connection.snapshot() as reading:
                return letters_in_redrives(reading, caller.tenant, cast("DeadLetterFilter", narrowed), look=_LOOK)

        known = part(counted_in_redrives)
        covered = () if isinstance(known, Failed) else known
        under_way = part(lambda: letters_under_way(connection, caller.tenant, letters, urls))
        more: dict[str, Any] = {
            "groups": part(grouped) if by_cause else None, "shown_groups": _GROUPS, "most_groups": _MOST_GROUPS,
            "group_filters": group_filters, "selected": _selected(query, filters, since),
            "under_way": {} if isinstance(under_way, Failed) else under_way,
            "in_redrive": len(covered), "in_redrive_by_cause": Counter(map(_cause, covered)),
            "cause_of": _cause, "most_in_redrive": _LOOK, "in_redrives": in_redrives,
        }  # fmt: skip
        return replace(view, values={**view.values, **more})


@dataclass(frozen=True, slots=True)
class DeadLetterOnePage:
    """The page of a dead letter."""

    template: ClassVar[str] = "dead-letter.html"
    place: ClassVar[str] = "dead_letters"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read it, with its run or its message."""
        read_query(request, TenantQuery)
        number = read_number(str(request.path_params["number"]))
        if number is None:
            raise UnknownDeadLetter(0)
        now, found = page_now(connection), DeadLetters(connection).get(number)
        under_way = part(lambda: letter_under_way(connection, caller.tenant, found.summary, urls))
        messages = {"key": found.message_key, "value": found.message_value}
        return View(
            {
                "now": now, "letter": found.summary, "run": found.run,
                "under_way": None if isinstance(under_way, Failed) else under_way,
                "sentence": None if found.run is None else about_run(found.run, now),
                "bytes": [(name, content, dump(content)) for name, content in messages.items() if content is not None],
            }
        )  # fmt: skip


def by_tab(query: T) -> T:
    """Return a filter with the tab in place of `redriven`: list and actions concern the same letters."""
    if query.redriven is None:
        return query
    return query.model_copy(update={"show": "redriven" if query.redriven else "open", "redriven": None})


def group_filters(group: DeadLetterGroup) -> Mapping[str, str] | None:
    """Return the filters that name the dead letters of a group; None if its job is no longer stored."""
    if group.kind == "run" and group.key is None:
        return None
    given = {"kind": group.kind, "job": group.key, "error_type": group.error_type, "status": group.status}
    return {name: value for name, value in given.items() if value is not None}


def _cause(each: DeadLetterGroup | DeadLetterSummary) -> tuple[object, ...]:
    return each.kind, each.job_id, each.error_type, each.status


def _selected(query: PageOfLettersQuery, filters: Mapping[str, Any], since: object) -> Mapping[str, Any]:
    """Return the filters of an action on all that the list shows, with instants in place of spans."""
    given = {name: value for name, value in filters.items() if name not in {"last", "show"}}
    return given | ({"since": f"{since:%Y-%m-%dT%H:%M:%SZ}"} if query.last is not None else {})
