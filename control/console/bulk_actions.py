"""Actions on bulk work: pause, resume and cancel a work."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.callers import Caller
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import Dialog, Done, Field, text_of
from tidewheel.control.console.bulk import read_place, read_work
from tidewheel.control.console.forms import Form
from tidewheel.control.console.progress import Work
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.words import number, state
from tidewheel.nouns.works.model import ENDS
from tidewheel.nouns.works.operations import Works

Verb = Literal["pause", "resume", "cancel"]

_WILL: Mapping[tuple[str, Verb], str] = {
    ("backfill", "pause"): "It creates no further run until it is resumed.",
    ("backfill", "resume"): "It continues where it was paused.",
    ("backfill", "cancel"): "It creates no further run, and its runs that have not started are cancelled.",
}
_STAYS: Mapping[tuple[str, Verb], str] = {
    ("backfill", "pause"): "Runs that it has created go on.",
    ("backfill", "cancel"): "Runs that have started go on.",
}
_WORK_STAYS: Mapping[Verb, str] = {
    "pause": "What it has done stays.", "cancel": "What it has done stays, and runs that it has created continue."
}  # fmt: skip
_FROM: Mapping[Verb, Collection[str]] = {
    "pause": ("running",), "resume": ("paused",), "cancel": ("running", "paused")
}  # fmt: skip
_KEEP: Mapping[Verb, str] = {"pause": "Let it run", "resume": "Keep it paused", "cancel": "Let it run"}
_DONE: Mapping[str, str] = {"pause": "is paused", "resume": "continues", "cancel": "is cancelled"}


@dataclass(frozen=True, slots=True)
class ChangeBulk:
    """Pause, resume or cancel bulk work.

    Args:
        verb: Which of these.
    """

    verb: Verb
    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what the change stops, with the progress so far."""
        work = read_work(connection, caller, request)
        _require_change(work.kind)
        total = "" if work.total is None else f" of {number(work.total, at_least=work.at_least)}"
        so_far = f"Done so far: {number(work.done)}{total} {work.noun}. {work.gone_words}".rstrip()
        name, back = f"the {work.kind}", urls("bulk_work", kind=work.kind, id=work.id)
        if work.state not in _FROM[self.verb]:
            is_now = f"It {ENDS}" if work.state == "ending" else f"Its state is {state(work.state)}"
            words = f"Nothing would change. {is_now}."
            return Dialog(
                f"{self.verb.capitalize()} {name}?", "", back, place="bulk", will=(words, so_far), keep="Back"
            )
        return Dialog(
            f"{self.verb.capitalize()} {name}?", f"{self.verb.capitalize()} {name}",
            back, place="bulk", danger=self.verb == "cancel",
            will=(self._will(work), so_far), sample=work.about, keep=_KEEP[self.verb],
            stays=tuple(filter(None, (self._stays(work),))),
            fields=() if self.verb == "resume" else (
                Field("reason", "Reason (optional)", help=f"Stored with the {work.kind}."),
            ),
        )  # fmt: skip

    def _will(self, work: Work) -> str:
        if work.words is None:
            return _WILL[work.kind, self.verb]
        if self.verb == "resume":
            return "It continues where it was paused, at its rate."
        until = " until it is resumed" if self.verb == "pause" else ""
        return f"It {work.words.does} no further {work.words.noun}{until}."

    def _stays(self, work: Work) -> str | None:
        return _STAYS.get((work.kind, self.verb)) if work.words is None else _WORK_STAYS.get(self.verb)

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Change it."""
        del caller
        kind, found = read_place(request)
        _require_change(kind)
        assert isinstance(found, UUID)  # noqa: S101 - of these kinds
        works = Works(connection)
        reason = text_of(form, "reason")
        if self.verb == "resume":
            unchanged = works.resume(found).unchanged
        else:
            change = works.pause if self.verb == "pause" else works.cancel
            unchanged = change(found, reason=reason).unchanged
        words = (
            f"The {kind} {_DONE[self.verb]}." if not unchanged else f"Nothing to {self.verb}: the {kind} has changed."
        )
        return Done(urls("bulk_work", kind=kind, id=found), words, self._undo(kind, found, urls, unchanged=unchanged))

    def _undo(self, kind: str, found: UUID, urls: Urls, *, unchanged: bool) -> tuple[str, str] | None:
        other = {"pause": "resume", "resume": "pause"}.get(self.verb)
        if other is None or unchanged:
            return None
        return other.capitalize(), urls(f"bulk_{other}", kind=kind, id=found)


def _require_change(kind: str) -> None:
    if kind == "cancellation":
        raise HTTPException(HTTPStatus.NOT_FOUND, "a cancellation cannot be stopped: no executor starts its runs")
