"""Confirm pages: what an operation would change, by its dry run, and its parameters as fields.

The address has the filter. The form binds the operation to what its page has counted: it concerns what existed then. An
operation that nothing can undo needs the number typed, from a hundred things on.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    reason_field,
    request_id_of,
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
from tidewheel.nouns.works.operations import KINDS, Changes, Work

_LABELS = {"rate": "Rate limit (per second)"}
_HELPS = {"rate": "Leave empty for no limit.", "reason": reason_field("on the bulk work").help}
_UNBOUNDED = FieldError("", "more than 10,000 match, too many for one page", "choose a job or a shorter time")


@dataclass(frozen=True, kw_only=True)
class Confirm:
    """The confirm page of an operation that starts a work, as an action of the console."""

    noun: type[Noun]
    verb: str  # the name of the operation's method
    things: str  # what it changes, in the singular, such as `dead letter`
    sentence: Callable[[Sequence[Any]], str]  # what happens to the first ones
    back: str  # the name of the page of all of them, where the caller comes from
    one: tuple[str, str]  # the name of the page of one of them, and of the id in its address
    not_back: Collection[str] = ()  # fields of the filter that this page lacks
    lines: Callable[[Sequence[Any]], Iterable[str]]  # the sample
    labels: Mapping[str, str] = field(default_factory=dict[str, str])  # of fields, by parameter
    values: Mapping[str, str] = field(default_factory=dict[str, str])  # the first ones of fields, by parameter
    others: Callable[[Connection, Mapping[str, Any], Sequence[Any]], Sequence[Work]] = (
        lambda connection, filters, first: ()
    )  # works under way that have some of these

    @property
    def scope(self) -> Scope:
        """The right that it needs."""
        return self._declared.scope

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Count what it would change by a dry run."""
        query, now = read_query(request, self._query[0]), page_now(connection)
        filters, verb, back = self._filter(query, now), self._changes.verb.capitalize(), self._back(query, urls)
        found = self._count(connection, filters)
        if not found.matched:
            return no_change(f"{verb} {self.things}s?", back, f"No {self.things} matches any more.")
        danger = self._declared.danger is not None
        others, taken = self._taken(connection, filters, found)
        left = found.matched - taken or found.matched
        button = f"{verb} {counted(left, self.things, at_least=found.at_least)}"
        first = found.first[:SAMPLE]
        rest = found.matched - len(first)
        above = f"The oldest {len(first)}:" if rest else f"All {number(found.matched)}:" if found.matched > 1 else ""
        dialog = Dialog(
            f"{button}?", button, back, danger=danger, will=(f"{self.sentence(found.first)} {above}".rstrip(),),
            fields=(
                *map(self._field, self._typed), *(confirmation(found.matched) if danger else ()),
                *bound(found.matched, now),
            ),
            sample=(*self.lines(first), *((f"and {number(rest)} more",) if rest else ())),
            warnings=(_UNBOUNDED,) if danger and found.at_least else (),
        )  # fmt: skip
        return self._beside(dialog, others, taken, found.matched, urls) if taken else dialog

    def _taken(self, connection: Connection, filters: Mapping[str, Any], found: Any) -> tuple[Sequence[Work], int]:  # noqa: ANN401
        """Return the works under way that have some of the things of a dry run, and how many these are."""
        others = self.others(connection, filters, found.first)
        return others, min(sum(each.matched_count - each.processed for each in others), found.matched)

    def _beside(self, dialog: Dialog, others: Sequence[Work], taken: int, matched: int, urls: Urls) -> Dialog:
        """Return the dialog with what works under way do with its things."""
        these = agreed(matched, "This one is", f"These {number(matched)} are")
        being = f"already being {participle(self._changes.verb)}"
        if taken < matched:
            some = FieldError("", f"{number(taken)} more {agreed(taken, 'is', 'are')} {being}", "")
            return replace(dialog, warnings=(*dialog.warnings, some))
        done, total = (sum(getattr(each, name) for each in others) for name in ("processed", "matched_count"))
        rate = f", at most {others[0].rate:g} per second" if len(others) == 1 and others[0].rate else ""
        return replace(
            dialog, question=f"{these} {being}", will=(f"{number(done)} of {number(total)} done{rate}.",),
            way=urls("bulk_work", kind=others[0].kind, id=others[0].work_id),
            anyway=f"{dialog.button.partition(' ')[0]} {agreed(matched, 'it', 'them')} anyway",
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
        _, taken = self._taken(connection, filters, found)
        typed = {each.name: _value(each, text_of(form, each.name)) for each in self._typed}
        given = self._declared.checked({**filters, **typed, "request_id": request_id_of(form)})
        result = self._declared.call(self.noun, connection, given)
        if result.matched == 0:
            refuse("", f"no {self.things} matches", "go back; it has perhaps been changed already")
        left = result.matched - taken or result.matched
        many, be = counted(left, self.things, at_least=result.at_least), agreed(left, "is", "are")
        to = urls("bulk_work", kind=self._declared.verb, id=result.work_id)
        return Done(to, f"{many} {be} being {participle(self._changes.verb)}.")

    @cached_property
    def _declared(self) -> Operation:
        return operations(self.noun)[self.verb]

    @property
    def _changes(self) -> Changes:
        return KINDS[self._declared.verb]

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
