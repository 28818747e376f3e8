"""Dead letters on the web: the pages, and the one answer that REST has in a form of its own."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Literal

from starlette.requests import Request

from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.openapi import schema_of
from tidewheel.control.api.request_input import Cursors, PageQuery, TenantQuery, Text, read_number, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.payloads import dump
from tidewheel.control.console.run_log import attempts_with_logs, read_log
from tidewheel.control.console.sentences import about_run
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import (
    View,
    begin_of,
    filters_of,
    list_view,
    neighbours,
    or_else,
    page_now,
    part,
    part_of,
    read_filters,
)
from tidewheel.control.reads.stored import read_run_payload
from tidewheel.doors.address import after_of, form_of, query_with
from tidewheel.doors.console import Confirm
from tidewheel.doors.rest import Route, Routes
from tidewheel.errors import UnknownDeadLetter
from tidewheel.jobs.values import format_timestamp
from tidewheel.nouns.dead_letters.operations import (
    DeadLetterDetail,
    DeadLetterGroup,
    DeadLetters,
    DeadLettersPage,
    DeadLetterSummary,
)
from tidewheel.nouns.operation import operations
from tidewheel.nouns.runs.model import RunDetail
from tidewheel.nouns.runs.web import RUN, with_attempts
from tidewheel.nouns.works.operations import Work, Works

REDRIVEN: Mapping[str, bool | None] = {"open": False, "redriven": True, "all": None}
"""The filter of each tab."""
_GROUPS = 8
_MOST_GROUPS = 100  # of a page
_WORDS = 120  # characters of an error in a dialog
_WORKS = 20  # redrives, of which some are under way
_SPAN = {"since", "until"}
_LIST = operations(DeadLetters)["list"]
_FORM = form_of(_LIST.parameters, without=("redriven", "key"))


class PageOfLettersQuery(PageQuery):
    """Query of the page of dead letters without the filter: its tab, and a span before now."""

    show: Literal["open", "redriven", "all"] = "open"
    last: Literal["1h", "24h", "7d", "30d"] | None = None
    view: Literal["causes", "list"] = "causes"  # causes only without a filter
    opened: Text | None = None  # an id among the neighbours that the list does not fold


_QUERY, _NAMES = query_with(PageOfLettersQuery, _LIST, _LIST.parameters)


@dataclass(frozen=True, slots=True)
class DeadLettersListPage:
    """The list of dead letters."""

    template: ClassVar[str] = "dead-letters.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the causes, and a page of dead letters by the filters of the address."""
        now = page_now(connection)
        query, errors = read_filters(request, _QUERY, now)
        narrowed = {name: getattr(query, spoken) for name, spoken in _NAMES.items()}
        if narrowed["redriven"] is not None:  # the tab is in its place
            query = query.model_copy(update={"show": "redriven" if narrowed["redriven"] else "open", "redriven": None})
        since = begin_of(query.last, narrowed["since"], now)
        narrowed |= {"since": since, "redriven": REDRIVEN[query.show]}

        def listed() -> tuple[DeadLettersPage, str | None]:
            cursors = Cursors.of_list("dead-letters", query, caller.tenant)
            found: DeadLettersPage = DeadLetters(connection).list(after=after_of(cursors, _LIST), **narrowed)
            return found, cursors.write(*found.next_cursor or [None])

        def folded(page: DeadLettersPage) -> Mapping[str, object]:
            return {"folds": neighbours(page.dead_letters, _alike, lambda each: str(each.id) == query.opened)}

        filters = filters_of(query, "opened", "view")
        groupable = query.show == "open" and query.cursor is None and not set(filters) - {"last", "since"}
        groups = partial(DeadLetters(connection).groups, since=since, redriven=False)
        view = list_view(
            "dead_letters", query, listed, errors=errors, now=now, urls=urls, of_page=folded, fields=_FORM,
            shown=("view", "opened"),
        )  # fmt: skip
        selected = {name: value for name, value in filters.items() if name not in {"last", "show"}}
        for name, at in (("since", since), ("until", narrowed["until"])):  # an instant in place of its words
            selected |= {} if at is None else {name: format_timestamp(at.replace(microsecond=0))}
        more: dict[str, Any] = {
            "groupable": groupable, "groups": part(groups) if groupable and query.view == "causes" else None,
            "shown_groups": _GROUPS, "most_groups": _MOST_GROUPS, "group_filters": group_filters,
            "redrive_of": partial(_redrive_of, or_else(part(lambda: _redrives(connection)), ())),
            "selected": selected, "redriven": {"open": "false", "redriven": "true", "all": None}[query.show],
        }  # fmt: skip
        return replace(view, values={**view.values, **more})


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """The page of a dead letter."""

    template: ClassVar[str] = "dead-letter.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read it, with its run or its message."""
        read_query(request, TenantQuery)
        letter = read_number(str(request.path_params["number"]))
        if letter is None:
            raise UnknownDeadLetter(0)
        now, found = page_now(connection), DeadLetters(connection).get(letter)
        messages = {"key": found.message_key, "value": found.message_value}
        return View(
            {
                "now": now, "letter": found, "run": found.run, "alike": group_filters(found),
                **_of_run(connection, found.run),
                "sentence": None if found.run is None else about_run(found.run, now),
                "bytes": [(name, content, dump(content)) for name, content in messages.items() if content is not None],
            }
        )  # fmt: skip


def _of_run(connection: Connection, run: RunDetail | None) -> Mapping[str, object]:
    """Return the payload of a failed run, and the output of its last attempt."""
    if run is None:
        return {"payload": None, "log": None}
    payload = part_of(connection, read_run_payload, connection.tenant, run.run_id)
    attempts = attempts_with_logs(run)
    log = part(lambda: read_log(connection, run, attempts[0])) if attempts else None
    return {"payload": or_else(payload, None), "log": or_else(log, None)}


def group_filters(group: DeadLetterGroup | DeadLetterSummary) -> Mapping[str, str] | None:
    """Return the filters that name dead letters of one cause; None if their job is no longer stored."""
    if group.kind == "run" and group.key is None:
        return None
    given = {"kind": group.kind, "job": group.key, "error_type": group.error_type, "status": group.status}
    return {name: value for name, value in given.items() if value is not None}


def _redrives(connection: Connection) -> Sequence[Work]:
    """Return the redrives under way."""
    return [each for each in Works(connection).list(kind="redrive", limit=_WORKS) if each.state == "running"]


def _redrive_of(redrives: Sequence[Work], found: DeadLetterGroup | DeadLetterSummary) -> Work | None:
    """Return the redrive under way whose filter has these dead letters; None without one."""
    named = dict(group_filters(found) or {})
    times = (found.first_at, found.last_at) if isinstance(found, DeadLetterGroup) else (found.created_at,)
    having = (work for work in redrives if _narrowing(work.filter).items() <= named.items() and _spans(work, times))
    return next(having, None)


def _spans(work: Work, times: Iterable[datetime]) -> bool:
    """Return True if dead letters of these times are within the span of a redrive."""
    since, until = (str(work.filter.get(name, "")) for name in ("since", "until"))
    return all(since <= at <= until for at in map(format_timestamp, times))


def _under_way(connection: Connection, given: Mapping[str, Any], first: Sequence[DeadLetterSummary]) -> Sequence[Work]:
    """Return the redrives under way with dead letters of another one, by the times of those in its dialog.

    Of ids, and of dead letters since an instant, only one that has all that the dialog shows.
    """
    running = _redrives(connection)
    if given.get("ids") or given.get("since"):
        of_each = [_redrive_of(running, each) for each in first]
        return [work for work in of_each[:1] if work is not None and all(each is work for each in of_each)]
    named = {"job" if name == "key" else name: value for name, value in given.items()}
    asked = _narrowing({**named, "kind": given.get("kind") or "run"})
    found = [(work, _narrowing(work.filter)) for work in running]
    times = [each.created_at for each in first]
    return [
        work
        for work, its in found
        if (its.items() <= asked.items() or asked.items() <= its.items()) and _spans(work, times)
    ]


def _narrowing(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a filter without times and empty fields; a job_id without its job stays, and matches none."""
    left_out = {*_SPAN, "job_id"} if "job" in given else _SPAN
    return {name: value for name, value in given.items() if value and name not in left_out}


def _alike(each: DeadLetterSummary) -> object:
    return each.job_id, each.offset, each.status, each.error_type, each.reason, each.redriven_run_id


def _lines(found: Sequence[DeadLetterSummary]) -> Iterator[str]:
    """Yield a line about each dead letter; one about equal neighbours."""
    for fold in neighbours(found, _alike, lambda each: False, apart=True):
        each, many = fold[0], f", {len(fold)} times" if len(fold) > 1 else ""
        error = each.reason if each.error_type in {None, each.reason} else f"{each.error_type}: {each.reason}"
        first = next(iter(error.splitlines()), "")[:_WORDS]
        times = " to ".join(f"{at:%Y-%m-%dT%H:%M:%SZ}" for at in dict.fromkeys((each.created_at, fold[-1].created_at)))
        yield f"{each.key or each.topic}{many}: {first}, {times}"


def _redriven(first: Sequence[DeadLetterSummary]) -> str:
    """Return what happens to dead letters of runs, and to those of messages."""
    kinds = {each.kind for each in first}
    parts = (
        ("run", "Failed runs are retried on their job's current version."),
        ("message", "Messages are sent to their topic again."),
    )
    return " ".join(words for kind, words in parts if kind in kinds)


_confirm = partial(
    Confirm, noun=DeadLetters, things="dead letter", back="dead_letters", one=("dead_letter", "number"), lines=_lines
)
CONFIRMED = (
    _confirm(verb="redrive", sentence=_redriven, values={"rate": "50"}, others=_under_way),
    _confirm(
        verb="purge",
        sentence=lambda first: "Purged dead letters are deleted and cannot be retried.",
    ),
)


@dataclass(frozen=True, slots=True)
class DeadLetter(DeadLetterSummary):
    """A dead letter with its run, or with its message."""

    run: Mapping[str, Any] | None
    message_key_base64: str | None
    message_value_base64: str | None


def _shape(_: int, found: DeadLetterDetail) -> DeadLetter:
    """Return a dead letter with its run as the routes of runs return one, and with its message as base64."""
    summary = {each.name: getattr(found, each.name) for each in fields(DeadLetterSummary)}
    run = None if found.run is None else with_attempts(found.run)
    return DeadLetter(**summary, run=run, message_key_base64=_base64(found.message_key),
                      message_value_base64=_base64(found.message_value))  # fmt: skip


def _base64(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()


_SCHEMA = schema_of(DeadLetter)
_SCHEMA["properties"]["run"] = {"anyOf": [RUN, {"type": "null"}]}

DEAD_LETTERS: Routes = {"get": Route(schema=_SCHEMA, shape=_shape)}
