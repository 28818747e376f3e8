"""The answer to a question: a page, or suggestions as JSON. An id or a key leads to its page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from starlette.requests import Request

from tidewheel.control.api.ask import answered
from tidewheel.control.api.callers import Caller
from tidewheel.control.ask.answer import EXAMPLES, Answer, Kind, Meaning
from tidewheel.control.ask.question import MAX_QUESTION
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.rendering import zone_of_page
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, page_now
from tidewheel.errors import FieldError, Refused
from tidewheel.ids import job_id
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import format_timestamp, one_line

_SUGGESTIONS = 8
_MOVES = {Kind.RUN, Kind.JOB, Kind.DEAD_LETTER}
_QUESTION = one_line(MAX_QUESTION)


@dataclass(frozen=True, slots=True)
class AskPage:
    """The page of an answer."""

    template: ClassVar[str] = "ask.html"
    place: ClassVar[str] = ""
    reads_zone: ClassVar[bool] = True

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Answer the question; as a page, an id or a key leads on."""
        text, zone = request.query_params.get("q", "").strip(), zone_of_page(request)[0]
        as_json = request.query_params.get("format") == "json"
        errors: Sequence[FieldError] = ()
        try:
            found = _answer(connection, caller, text, zone)
        except Refused as refused:
            found, errors = Answer(text, Kind.NOTHING, None, ""), refused.errors
        if as_json:
            return View({}, 422 if errors else 200, document=_document(found, caller, urls))
        if found.kind in _MOVES and found.target is not None:
            return View({}, moved_to=_link(caller, urls, found.kind, found.target))
        others = [(each, _link(caller, urls, each.kind, each.target, each)) for each in found.alternatives]
        job = urls.job(found.target, job_id(caller.tenant, found.target)) if found.target else None
        return View(
            {
                "now": page_now(connection), "answer": found, "others": others, "job": job, "errors": errors,
                "in_jobs_zone": next((each for each in found.alternatives if each.zone), None),
                "examples": EXAMPLES, "nothing": found.kind == Kind.NOTHING, "zone": zone,
            },
            422 if errors else 200,
        )  # fmt: skip


def _answer(connection: Connection, caller: Caller, text: str, zone: str) -> Answer:
    if not text:
        return Answer("", Kind.NOTHING, None, "a key, an id, or a key with a time is looked for")
    try:
        return answered(connection, caller, _QUESTION(text), zone)
    except InvalidValue as invalid:
        raise Refused([FieldError("question", each.problem, each.remedy) for each in invalid.errors]) from invalid


def _document(found: Answer, caller: Caller, urls: Urls) -> Mapping[str, object]:
    """Return the suggestions of the field: the first meaning, then the others."""
    first = [] if found.target is None else [Meaning(found.kind, found.target, found.words, found.at)]
    return {
        "question": found.question,
        "kind": found.kind,
        "words": found.words,
        "zone": found.zone,
        "suggestions": [
            {
                "kind": each.kind, "target": each.target, "words": _line(each), "at": each.at,
                "href": _link(caller, urls, each.kind, each.target, each),
            }
            for each in (*first, *found.alternatives)[:_SUGGESTIONS]
        ],
    }  # fmt: skip


def _line(each: Meaning) -> str:
    """Return the line of a suggestion."""
    return each.target if each.kind is Kind.JOB else f"{each.target}: {each.words}"


def _link(caller: Caller, urls: Urls, kind: Kind, target: str, meaning: Meaning | None = None) -> str:
    """Return the address of a meaning."""
    if kind is Kind.RUN:
        return urls("run", run_id=target)
    if kind is Kind.JOB:
        return urls.job(target, job_id(caller.tenant, target))
    if kind is Kind.OCCURRENCE and meaning is not None and meaning.at is not None:
        return urls("ask", q=f"{target} at {format_timestamp(meaning.at)}")
    if kind is Kind.QUEUE:
        return urls("jobs", queue=target)
    if kind is Kind.DEAD_LETTER:
        return urls("dead_letter", number=target)
    return urls("fleet", find=target)
