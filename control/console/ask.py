"""The search: an id, a key or the name of a page leads there, another text to a list."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.authorization import Caller
from tidewheel.control.ask import Answer, Kind, Meaning, ask
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, in_snapshot, page_now
from tidewheel.errors import FieldError
from tidewheel.ids import job_id
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import MAX_TEXT, one_line

_SUGGESTIONS = 8
_PLACES = 3  # pages and actions among the suggestions
_TEXT = one_line(MAX_TEXT)


class _Place(NamedTuple):
    """A page or an action that the search finds by its name; `of_all` needs a key of all tenants."""

    label: str
    name: str
    scope: Scope = Scope.READ
    of_all: bool = False


_PAGES = (
    _Place("Overview", "overview"), _Place("Jobs", "jobs"), _Place("Runs", "runs"), _Place("Slow runs", "slow_runs"),
    _Place("Workflows", "workflows"), _Place("Batches", "batches"), _Place("Dead letters", "dead_letters"),
    _Place("Bulk work", "bulk"), _Place("Calendars", "calendars"), _Place("Freezes", "freeze"),
    _Place("Fleet", "fleet", of_all=True),
    _Place("Tenants and limits", "tenants", Scope.ADMIN), _Place("API keys", "keys", Scope.ADMIN),
    _Place("Audit log", "audit", Scope.ADMIN), _Place("New job", "job_new", Scope.WRITE),
    _Place("New calendar…", "calendar_new", Scope.WRITE), _Place("Freeze…", "freeze", Scope.OPERATE),
    _Place("New tenant…", "tenant_new", Scope.ADMIN, of_all=True), _Place("New API key…", "key_new", Scope.ADMIN),
)  # fmt: skip


class AskPage:
    """The page of a text that names no one thing."""

    template: ClassVar[str] = "ask.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Find what the text names; as a page, an id or a key leads on."""
        text = request.query_params.get("q", "").strip()
        errors: Sequence[FieldError] = ()
        found = Answer(text, Kind.NOTHING, None, "")
        try:
            found = in_snapshot(connection, ask, caller.tenant, _TEXT(text)) if text else found
        except InvalidValue as invalid:
            errors = [FieldError("question", each.problem, each.remedy) for each in invalid.errors]
        first = [] if found.target is None else [Meaning(found.kind, found.target, found.words)]
        may = [each for each in _PAGES if each.scope in caller.scopes and (caller.all_tenants or not each.of_all)]
        places = [(each.label, urls(each.name)) for each in may if text.lower() in each.label.lower()]
        status = 422 if errors else 200
        if request.query_params.get("format") == "json":
            named = [_suggestion("page", label, "", to) for label, to in places[:_PLACES]]
            shown = (*first, *found.alternatives)[: _SUGGESTIONS - len(named)]
            things = [_suggestion(each.kind, each.target, each.words, _link(caller, urls, each)) for each in shown]
            document = {"question": text, "kind": found.kind, "words": found.words, "suggestions": things + named}
            return View({}, status, document=document)
        if first:
            return View({}, moved_to=_link(caller, urls, first[0]))
        if found.kind is Kind.NOTHING and len(places) == 1:
            return View({}, moved_to=places[0][1])
        others = [(each, _link(caller, urls, each)) for each in found.alternatives]
        seen = {"answer": found, "others": others, "errors": errors, "places": places}
        return View({"now": page_now(connection), "nothing": found.kind == Kind.NOTHING, **seen}, status)


def _suggestion(kind: str, target: str, words: str, address: str) -> dict[str, str]:
    """Return the line of a suggestion, as the script of the pages reads it."""
    shown = target if kind in {"page", Kind.JOB} else f"{target}: {words}"
    return {"kind": kind, "target": target, "words": shown, "href": address}


def _link(caller: Caller, urls: Urls, meaning: Meaning) -> str:
    """Return the address of a meaning."""
    if meaning.kind is Kind.RUN:
        return urls("run", run_id=meaning.target)
    if meaning.kind is Kind.DEAD_LETTER:
        return urls("dead_letter", number=meaning.target)
    return urls.job(meaning.target, job_id(caller.tenant, meaning.target))
