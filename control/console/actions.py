"""Actions: a dialog as a page of its own, whose form is confirmed, changes something and leads on.

A GET of an action's address shows its dialog and changes nothing. A POST acts, and answers with 303 and a message that
the next page shows once. A refusal shows the dialog again, with each error at its field and all that was typed.

The form has the number that its dialog showed, and the instant of its count. The action concerns only what existed at
that instant. If this is more than the number, the dialog is shown again with the new one. An action on one thing is
bound to the state that its dialog shows.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus
from typing import Literal, Protocol

from fastapi.security import SecurityScopes
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.audit import Door as AuditDoor
from tidewheel.control.api.answers import call
from tidewheel.control.api.authorization import KEY, SIGN_IN, Caller, caller
from tidewheel.control.api.key_check import StoredKey
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.door import MOST_BYTES, Door, Form, check_form, read_form
from tidewheel.control.console.rendering import Visitor
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, in_snapshot, pairs, part_of, without_zone
from tidewheel.control.console.words import number
from tidewheel.control.instants import typed_whole
from tidewheel.control.reads.fleet import count_wrong
from tidewheel.errors import FieldError, Refused, refuse
from tidewheel.intake.apply import replies_of
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import format_timestamp, parse_timestamp
from tidewheel.nouns.api_keys.sign_ins import SignIn
from tidewheel.nouns.freezes.model import FrozenScope
from tidewheel.nouns.freezes.reads import standing_freezes

SAMPLE = 5
"""The lines of what a dialog touches."""

FREELY = 100
"""So many things a click may change."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a dialog.

    Args:
        value: What it has at first; after a refusal, what was typed.
        upload: The kinds of files whose text the script puts into a long text; empty for none.
        button: Of a box: verb and object of the dialog's button while it is checked; empty if it changes neither.
    """

    name: str
    label: str
    kind: Literal["text", "number", "long", "choice", "check", "hidden"] = "text"
    value: str = ""
    help: str = ""
    options: Sequence[tuple[str, str]] = ()
    required: bool = False
    errors: Sequence[FieldError] = ()
    rows: int = 8
    upload: str = ""
    button: str = ""


def reason_field(place: str = "") -> Field:
    """Return the field of a reason; its help names where the reason appears."""
    return Field("reason", "Reason (optional)", help=f"Appears {place and f'{place} and '}in the audit log.")


@dataclass(frozen=True, slots=True)
class Dialog:
    """The consequences of an action, and the fields of its form.

    Args:
        button: Verb and object of the button, with no box checked; empty if there is nothing to do.
        will: What happens, in at most three lines.
    """

    question: str
    button: str
    back: str
    will: Sequence[str] = ()
    stays: Sequence[str] = ()
    fields: Sequence[Field] = ()
    sample: Sequence[str] = ()
    danger: bool = False
    warnings: Sequence[FieldError] = ()
    way: str | None = None  # to the bulk work that does this already
    anyway: str = ""  # then the words that unfold the form

    def refused(self, form: Form, errors: Sequence[FieldError]) -> "Dialog":
        """Return the dialog with what was typed, and with each error at its field."""
        fields = [_refused(each, form, errors) for each in self.fields]
        at_fields = {id(error) for each in fields for error in each.errors}
        return replace(self, fields=fields, warnings=[each for each in errors if id(each) not in at_fields])


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an action.

    Args:
        words: The message of the next page, which has the address `to`.
        undo: The label and the address of the action that undoes it, which needs no field.
        shown: A template and its values, shown at once in place of the address: for what is shown only once.
        then: Awaited on the event loop for the result in place of this one: what takes seconds keeps no thread.
    """

    to: str
    words: str
    undo: tuple[str, str] | None = None
    shown: tuple[str, Mapping[str, object]] | None = None
    then: "Callable[[], Awaitable[Done]] | None" = None


class Action(Protocol):
    """An action."""

    @property
    def scope(self) -> Scope:
        """The right that it needs."""
        ...

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return the dialog, on a thread of reads."""
        ...

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done | Dialog:
        """Do it, on a thread of changes; or return the next step, which the same address receives.

        Raises:
            Refused: Nothing was changed; each error names a field by the last part of its path.
        """
        ...


@dataclass(frozen=True, slots=True)
class Actions:
    """The routes of the actions: dialogs on the threads of reads, changes on those of changes."""

    reads: Workers
    writes: Workers
    door: Door

    async def show(self, action: Action, request: Request) -> Response:
        """Return the dialog of an action."""
        return await self._show(action, request, await caller(request, SecurityScopes([action.scope])))

    async def act(self, action: Action, request: Request) -> Response:
        """Do what a form orders, and lead on to the next page."""
        form = await read_form(request, getattr(action, "most_bytes", MOST_BYTES))
        check_form(request, form, self.door)
        found = await caller(request, SecurityScopes([action.scope]))
        seen = visitor(request, found)
        urls = self.door.renderer.urls(seen)

        def do(connection: Connection) -> Done | Dialog:
            return action.act(connection, found, form, without_zone(request), urls)

        try:
            done = await call(self.writes, acting(request, found), do)
        except Refused as error:
            return await self._show(action, request, found, form, error.errors)
        if isinstance(done, Dialog):
            return self._page(request, seen, done)
        if done.then is not None:
            done = await done.then()
        if done.shown is not None:
            template, values = done.shown
            return self.door.renderer.page(request, template, seen, values=values)
        return self.door.renderer.done(request, done.to, done.words, done.undo)

    async def _show(
        self,
        action: Action,
        request: Request,
        found: Caller,
        form: Form | None = None,
        errors: Sequence[FieldError] = (),
    ) -> Response:
        def made(connection: Connection) -> Response:
            seen = framed(connection, visitor(request, found))
            dialog = action.ask(connection, found, without_zone(request), self.door.renderer.urls(seen))
            if form is None:
                return self._page(request, seen, dialog)
            return self._page(request, seen, dialog.refused(form, errors), HTTPStatus.UNPROCESSABLE_ENTITY)

        return await call(self.reads, found, made)

    def _page(self, request: Request, seen: Visitor, dialog: Dialog, status: HTTPStatus = HTTPStatus.OK) -> Response:
        return self.door.renderer.page(request, "dialog.html", seen, status=status, values={"dialog": dialog})


def visitor(request: Request, found: Caller) -> Visitor:
    """Return the reader of a page."""
    key: StoredKey | None = request.scope.get(KEY)
    scopes = frozenset(str(each) for each in found.scopes)
    return Visitor(request.scope.get(SIGN_IN), key, found.tenant, found.all_tenants, scopes)


def framed(connection: Connection, visitor: Visitor) -> Visitor:
    """Return the reader of a page with its freezes, the numbers of the rail, and why no replica was read.

    A page does without them if they cannot be read.
    """
    tenant, visitor = visitor.tenant, visitor._replace(replica_problem=connection.replica_problem or "")
    found = part_of(connection, lambda reading: (standing_freezes(reading, tenant), count_wrong(reading, tenant)))
    if isinstance(found, Failed):
        return visitor
    freezes, (letters, silent) = found
    wrong = {"dead_letters": number(letters) if letters else "", "fleet": f"{silent} silent" if silent else ""}
    return visitor._replace(frozen=[(each, address_of(each)) for each in freezes], wrong=wrong)


def address_of(scope: FrozenScope) -> Mapping[str, object]:
    """Return a scope as parts of an address: labels as several `name=value`."""
    named = scope.named()
    labels = named.pop("labels", None)
    return {**named, "label": pairs(labels)} if labels else named


def acting(request: Request, found: Caller) -> Caller:
    """Return the caller as the audit log names it: by the console, with the name of the sign-in."""
    sign_in: SignIn | None = request.scope.get(SIGN_IN)
    named = sign_in.name if sign_in else None
    return replace(found, actor=replace(found.actor, door=AuditDoor.CONSOLE, named=named or found.actor.named))


def cannot(question: str, back: str, *why: str) -> Dialog:
    """Return the dialog of an action that cannot be done."""
    return Dialog(question, "", back, will=why)


def no_change(question: str, back: str, why: str) -> Dialog:
    """Return the dialog of an action that would change nothing."""
    return cannot(question, back, f"Nothing would change. {why}")


def sample_of(lines: Sequence[str], count: int) -> Sequence[str]:
    """Return the first few lines of what a dialog touches, and how many more things there are.

    >>> sample_of(["a", "b", "c", "d", "e", "f"], 1200)
    ['a', 'b', 'c', 'd', 'e', 'and 1,195 more']
    """
    first = list(lines[:SAMPLE])
    return [*first, f"and {number(count - len(first))} more"] if count > len(first) else first


def text_of(form: Mapping[str, str], name: str) -> str | None:
    """Return what was typed into a field; None for an empty one."""
    return form.get(name, "").strip() or None


def whole_of(form: Mapping[str, str], name: str) -> object:
    """Return a number that was typed; other text as it is, which the request refuses."""
    text = text_of(form, name)
    whole = None if text is None else typed_whole(text)
    return text if whole is None else whole


def request_id_of(form: Form) -> str | None:
    """Return the request_id that the dialog was made with: a second click of its button changes nothing."""
    return text_of(form, "request_id")


def _refused(field: Field, form: Form, errors: Sequence[FieldError]) -> Field:
    if field.kind == "hidden":
        return field
    own = [each for each in errors if each.path == field.name or each.path.endswith(f".{field.name}")]
    return replace(field, value=form.get(field.name, "" if field.kind == "check" else field.value), errors=own)


def bound(count: int, until: datetime) -> Sequence[Field]:
    """Return the hidden fields that bind an action to what its dialog has counted."""
    return (
        Field("counted", "", kind="hidden", value=str(count)),
        Field("counted_at", "", kind="hidden", value=format_timestamp(until)),
    )


def as_shown(state: str) -> Field:
    """Return the hidden field that binds an action to the state that its dialog shows."""
    return Field("shown", "", kind="hidden", value=state)


def ensure_as_shown(connection: Connection, form: Form, state: str, news: str) -> None:
    """Refuse to change what is no longer as the dialog has shown it; `news` is the sentence about it.

    A repeat gets its first reply. A form without the field is of no dialog.
    """
    if form.get("shown", state) == state:
        return
    request_id = request_id_of(form)
    if request_id is None or not in_snapshot(connection, replies_of, connection.tenant, [request_id]):
        refuse("", news, "nothing was changed: read the dialog again, then decide")


def confirmation(count: int, what: str = "") -> Sequence[Field]:
    """Return the field that asks for a number; none for a few things.

    Args:
        what: Its name, if a box of the dialog decides it; empty for the number itself.
    """
    if count <= FREELY:
        return ()
    label = f"Type {what or count} to confirm"
    return (Field("typed", label, kind="number", required=True, help="Nothing can undo it."),)


def until_of(form: Form, now: datetime) -> datetime:
    """Return the instant of the count of a form's dialog; never a later one than now."""
    try:
        return min(parse_timestamp(form.get("counted_at", "")), now)
    except InvalidValue:
        return now


def ensure_counted(form: Form, count: int) -> None:
    """Refuse a change of more things than the dialog has counted."""
    counted = counted_of(form)
    if counted is not None and count > counted:
        refuse("typed", f"{count:,} match now, and {counted:,} when they were counted", "read the new number")


def counted_of(form: Form) -> int | None:
    """Return the number of things that a form's dialog has counted; None for a form of no dialog."""
    return _number(form, "counted")


def ensure_confirmed(form: Form, count: int) -> None:
    """Refuse a change of more than a hundred things without their number.

    The number may be that which the dialog showed: meanwhile there may be fewer.
    """
    ensure_counted(form, count)
    if count > FREELY and _number(form, "typed") not in {count, counted_of(form) or count}:
        refuse("typed", f"this is not the number {count:,}", f"type {count} to confirm")


def _number(form: Form, name: str) -> int | None:
    digits = "".join(each for each in form.get(name, "")[:40] if each.isascii() and each.isdecimal())
    return int(digits) if digits else None
