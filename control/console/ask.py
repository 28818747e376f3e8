"""The search field: an id or a key leads to its page, another text to a list or suggestions."""

from collections.abc import Sequence
from typing import ClassVar

from starlette.requests import Request

from tidewheel.control.api.authorization import Caller
from tidewheel.control.ask import EXAMPLES, Answer, Kind, Meaning, ask
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, page_now
from tidewheel.errors import FieldError
from tidewheel.ids import job_id
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import MAX_TEXT, one_line

_SUGGESTIONS = 8
_TEXT = one_line(MAX_TEXT)


class AskPage:
    """The page of a text that names no one thing."""

    template: ClassVar[str] = "ask.html"
    place: ClassVar[str] = ""

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Find what the text names; as a page, an id or a key leads on."""
        text = request.query_params.get("q", "").strip()
        errors: Sequence[FieldError] = ()
        try:
            found = _answer(connection, caller, _TEXT(text)) if text else Answer("", Kind.NOTHING, None, "")
        except InvalidValue as invalid:
            found = Answer(text, Kind.NOTHING, None, "")
            errors = [FieldError("question", each.problem, each.remedy) for each in invalid.errors]
        first = [] if found.target is None else [Meaning(found.kind, found.target, found.words)]
        status = 422 if errors else 200
        if request.query_params.get("format") == "json":
            shown = (*first, *found.alternatives)[:_SUGGESTIONS]
            suggestions = [_suggestion(each, _link(caller, urls, each)) for each in shown]
            document = {"question": text, "kind": found.kind, "words": found.words, "suggestions": suggestions}
            return View({}, status, document=document)
        if first:
            return View({}, moved_to=_link(caller, urls, first[0]))
        others = [(each, _link(caller, urls, each)) for each in found.alternatives]
        seen = {"answer": found, "others": others, "errors": errors, "examples": EXAMPLES}
        return View({"now": page_now(connection), "nothing": found.kind == Kind.NOTHING, **seen}, status)


def _answer(connection: Connection, caller: Caller, text: str) -> Answer:
    with connection.snapshot() as reading:
        return ask(reading, caller.tenant, text)


def _suggestion(each: Meaning, address: str) -> dict[str, str]:
    """Return the line of a suggestion, as the script of the pages reads it."""
    words = each.target if each.kind is Kind.JOB else f"{each.target}: {each.words}"
    return {"kind": each.kind, "target": each.target, "words": words, "href": address}


def _link(caller: Caller, urls: Urls, meaning: Meaning) -> str:
    """Return the address of a meaning."""
    if meaning.kind is Kind.RUN:
        return urls("run", run_id=meaning.target)
    if meaning.kind is Kind.DEAD_LETTER:
        return urls("dead_letter", number=meaning.target)
    return urls.job(meaning.target, job_id(caller.tenant, meaning.target))
