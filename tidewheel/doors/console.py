"""Confirm pages: what an operation would change, by its dry run, and its parameters as fields.

The address has the filter. The form binds the operation to what its page has counted: it concerns what existed then. An
operation that nothing can undo needs the number typed, from a hundred things on.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import TenantQuery, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import (
    SAMPLE,
    Dialog,
    Done,
    Field,
    bound,
    confirmation,
    ensure_confirmed,
    ensure_counted,
    no_change,
    request_id_of,
    sample_of,
    text_of,
    until_of,
)
from tidewheel.control.console.door import Form
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import page_now
from tidewheel.control.console.words import agreed, counted, number
from tidewheel.control.instants import typed_number
from tidewheel.doors.address import query_with
from tidewheel.errors import FieldError, InvalidInput, refuse
from tidewheel.nouns.operation import Noun, Operation, Parameter, operations, participle
from tidewheel.nouns.works.operations import Work

_LABELS = {"rate": "Rate limit (per second)"}
_HELPS = {"rate": "Leave empty for no limit."}
_UNBOUNDED = FieldError("", "more than 10,000 match, too many for one page", "choose a job or a shorter time")


@dataclass(frozen=True, kw_only=True)
class Confirm:
    """The confirm page of an operation that starts a work, as an action of the console."""

    noun: type[Noun]
    verb: str  # the name of the operation's method
    things: str  # what it changes, in the singular, such as `dead letter`
    sentence: Callable[[Sequence[Any], bool], str]  # what happens to the first ones, and whether these are all
    back: str  # the name of the page of all of them, where the caller comes from
    one: tuple[str, str]  # the name of the page of one of them, and of the id in its address
    not_back: Collection[str] = ()  # fields of the filter that this page lacks
    line: Callable[[Any], str]  # a line of the sample
    labels: Mapping[str, str] = field(default_factory=dict[str, str])  # of fields, by parameter
    values: Mapping[str, str] = field(default_factory=dict[str, str])  # the first ones of fields, by parameter
    other: Callable[[Connection, Sequence[Any]], Work | None] = lambda connection, first: None  # under way with these

    @property
    def scope(self) -> Scope:
        """The right that it needs."""
        return self._declared.scope

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Count what it would change by a dry run."""
        query, now = read_query(request, self._query[0]), page_now(connection)
        found = self._count(connection, self._filter(query, now))
        many, verb = counted(found.matched, self.things, at_least=found.at_least), self._declared.verb.capitalize()
        back = self._back(query, urls)
        if not found.matched:
            return no_change(f"{verb} {self.things}s?", back, f"No {self.things} matches any more.")
        danger, other = self._declared.danger is not None, self.other(connection, found.first)
        is_all = found.matched <= min(len(found.first), SAMPLE)
        above = "The oldest:" if not is_all else f"All {number(found.matched)}:" if found.matched > 1 else ""
        again = "" if other is None else " again"
        return Dialog(
            f"{verb} {many}{again}?", f"{verb} {many}{again}", back, danger=danger,
            will=(f"{self.sentence(found.first, is_all)} {above}".rstrip(),),
            fields=(
                *map(self._field, self._typed), *(confirmation(found.matched) if danger else ()),
                *bound(found.matched, now),
            ),
            sample=sample_of([self.line(each) for each in found.first], found.matched),
            warnings=(*((_UNBOUNDED,) if danger and found.at_least else ()), *self._under_way(other, found.matched)),
            way=None if other is None else urls("bulk_work", kind=other.kind, id=other.work_id),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Change them, as counted."""
        filters = self._filter(read_query(request, self._query[0]), until_of(form, page_now(connection)))
        found = self._count(connection, filters)
        if self._declared.danger is not None:
            if found.at_least:
                raise InvalidInput((_UNBOUNDED,))
            ensure_confirmed(form, found.matched)
        ensure_counted(form, found.matched)
        typed = {each.name: _value(each, text_of(form, each.name)) for each in self._typed}
        given = self._declared.checked({**filters, **typed, "request_id": request_id_of(form)})
        result = self._declared.call(self.noun, connection, given)
        if result.matched == 0:
            refuse("", f"no {self.things} matches", "go back; it has perhaps been changed already")
        many, be = counted(result.matched, self.things, at_least=result.at_least), agreed(result.matched, "is", "are")
        to = urls("bulk_work", kind=self._declared.verb, id=result.work_id)
        return Done(to, f"{many} {be} being {participle(self._declared.verb)}.")

    @cached_property
    def _declared(self) -> Operation:
        return operations(self.noun)[self.verb]

    @cached_property
    def _typed(self) -> Sequence[Parameter]:
        """The parameters that are fields of the form."""
        asked = [each for each in self._declared.parameters if each.name != "request_id"]
        return [each for each in asked if not each.filters and not each.accepts(bool)]

    @cached_property
    def _query(self) -> tuple[type[TenantQuery], Mapping[str, str]]:
        return query_with(TenantQuery, self._declared, [each for each in self._declared.parameters if each.filters])

    def _filter(self, query: TenantQuery, now: datetime) -> dict[str, Any]:
        """Return the filter of an address, up to an instant."""
        found = {name: getattr(query, spoken) for name, spoken in self._query[1].items() if name != "until"}
        given = {name: None if value == () else value for name, value in found.items()}
        until: datetime | None = getattr(query, "until", None)
        return {**given, "until": min(until or now, now)}

    def _count(self, connection: Connection, filters: Mapping[str, object]) -> Any:  # noqa: ANN401 - of a dry run
        return self._declared.call(self.noun, connection, {**filters, "dry_run": True})

    def _field(self, each: Parameter) -> Field:
        label = {**_LABELS, **self.labels}.get(each.name, f"{each.name.capitalize()} (optional)")
        options, value = [(choice, choice) for choice in each.choices], self.values.get(each.name, "")
        words = _HELPS.get(each.name, each.help)
        return Field(each.name, label, "choice" if options else "text", value, options=options, help=words)

    def _under_way(self, work: Work | None, matched: int) -> Sequence[FieldError]:
        """Warn of a work under way that has the first of these things."""
        if work is None:
            return ()
        these = f"these {number(matched)} are" if work.matched_count == matched > 1 else "the oldest of these is"
        progress = f"{number(work.processed)} of {number(work.matched_count)} done"
        return (FieldError("", f"{these} already being {participle(self._declared.verb)}: {progress}", ""),)

    def _back(self, query: TenantQuery, urls: Urls) -> str:
        page, name = self.one
        ids: Sequence[object] = getattr(query, "id", ())
        if len(ids) == 1:
            return urls(page, **{name: ids[0]})
        given = query.model_dump(mode="json", exclude={"tenant", "id", *self.not_back}, exclude_defaults=True)
        flags = {name: str(value).lower() for name, value in given.items() if isinstance(value, bool)}
        return urls(self.back, **{**given, **flags})


def _value(each: Parameter, text: str | None) -> object:
    """Return what was typed into a field; a number that is none is refused as a text."""
    return text if text is None or not each.accepts(float) else (typed_number(text) or text)
