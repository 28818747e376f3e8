"""The pages that write a job: `/jobs/new` and `/jobs/{ref}/edit`, as a form and as JSON.

Checking and changing the view change nothing. Saving submits the job with the version that it was made from, and with
the request_id of the page. Whatever is refused, the page keeps all that was typed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from fastapi.security import SecurityScopes
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api.answers import call
from tidewheel.control.api.authorization import Caller, caller
from tidewheel.control.api.request_input import read_number
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import acting, framed, request_id_of, visitor
from tidewheel.control.console.door import Door, Form, check_form, read_form
from tidewheel.control.console.job import job_of_page, key_of_page
from tidewheel.control.console.job_pages import last_author
from tidewheel.control.console.spec_check import Check, check, every_error
from tidewheel.control.console.view import in_snapshot, of_all_tenants
from tidewheel.control.foreign import read_pasted
from tidewheel.errors import FieldError, InvalidInput, Refused, RequestConflict, UnknownJob, VersionConflict
from tidewheel.ids import job_id
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.targets import TARGETS
from tidewheel.nouns.jobs.fields import GROUPS, LABELS, SCHEDULES, SpecField, json_text
from tidewheel.nouns.jobs.form import (
    Draft,
    draft_of,
    draft_of_json,
    errors_by_field,
    join_payload,
    normalised,
    read_payload_fields,
    retyped,
    split_payload,
    typed,
)
from tidewheel.nouns.jobs.model import Job as SavedJob
from tidewheel.nouns.jobs.model import job_of
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.nouns.jobs.versions import job_at
from tidewheel.redaction import REDACTED, redact_query
from tidewheel.schedules.zones import zone_names

_REUSED = InvalidInput([FieldError("", "this page has saved something else", "save once more")])  # it was left by Back
_MOST_BYTES = 2 * 1024 * 1024  # a payload of 256 KiB in JSON, percent-encoded


@dataclass(frozen=True, slots=True)
class Typed:
    """The content of the page.

    Args:
        base: The version that the text was made from; 0 for a new job.
        if_version: The version that saving expects; 0 for none.
        under: What the form lacks, as JSON text, if it is not that of the base.
        paste: The text of the field for schedules of others; `notes` are what it was read as.
        fields: Those of the payload, if the handler declares a model.
    """

    key: str | None
    base: int = 0
    if_version: int = 0
    view: str = "form"
    texts: dict[str, str] = field(default_factory=dict[str, str])
    document: str = ""
    under: str = ""
    paste: str = ""
    notes: Sequence[str] = ()
    errors: Sequence[FieldError] = ()
    check: Check | None = None
    lost: bool = False
    fields: Sequence[SpecField] = ()


@dataclass(frozen=True, slots=True)
class JobForms:
    """The pages."""

    reads: Workers
    writes: Workers
    door: Door

    async def show(self, request: Request) -> Response:
        """Return the page of a new job, or of a job as it is."""
        found = await caller(request, SecurityScopes([Scope.WRITE]))

        def made(connection: Connection) -> Response:
            if "ref" not in request.path_params:
                new = Typed(None, texts={"schedule": "cron", "target": "handler"})
                return self._page(connection, request, found, new)
            job = job_of_page(connection, found, request)
            state = Typed(job.summary.key, job.summary.version, job.summary.version, texts=typed(job.job))
            shown = _checked(connection, found, state, Draft(dict(job.job)), None)
            return self._page(connection, request, found, replace(state, check=shown.check))

        return await call(self.reads, found, made)

    async def submit(self, request: Request) -> Response:
        """Do what a button of the page orders."""
        form = await read_form(request, _MOST_BYTES)
        check_form(request, form, self.door)
        found = await caller(request, SecurityScopes([Scope.WRITE]))
        refused: Refused | None = None
        if form.get("do") == "save":
            try:
                saved = await call(self.writes, acting(request, found), lambda each: _save(each, found, request, form))
            except UnknownJob:
                raise
            except Refused as error:
                refused = _REUSED if error.code == RequestConflict.code else error
            else:
                return self._saved(request, found, *saved)

        def made(connection: Connection) -> Response:
            return self._page(connection, request, found, _answer(connection, found, request, form, refused))

        return await call(self.reads, found, made)

    def _page(self, connection: Connection, request: Request, found: Caller, state: Typed) -> Response:
        seen, state = framed(connection, visitor(request, found)), _with_payload(connection, state)
        at, others = errors_by_field(state.errors, state.fields)
        urls = self.door.renderer.urls(seen)
        back = urls("jobs") if state.key is None else urls.job(state.key, job_id(found.tenant, state.key))
        status = HTTPStatus.UNPROCESSABLE_ENTITY if state.errors else HTTPStatus.OK
        values: dict[str, object] = {
            "typed": state, "groups": GROUPS, "at": at, "others": others, "labels": LABELS,
            "kinds": {"schedule": SCHEDULES, "target": TARGETS}, "back": back,
            "zones": sorted(zone_names()),
        }  # fmt: skip
        status = HTTPStatus.CONFLICT if state.lost else status
        return self.door.renderer.page(request, "job-form.html", seen, status=status, values=values)

    def _saved(self, request: Request, found: Caller, key: str, base: int, saved: SavedJob) -> Response:
        """Lead on to the job, with the way back to the version before."""
        urls = self.door.renderer.urls(visitor(request, found))
        words, undo = f"Version {saved.version} of {key} is in force.", None
        if saved.unchanged:
            words = f"Nothing differs: version {saved.version} of {key} stays in force."
        elif base:
            back = urls.job(key, saved.job_id, "job_rollback", version=base, if_version=saved.version)
            undo = (f"Back to version {base}", back)
        return self.door.renderer.done(request, urls.job(key, saved.job_id), words, undo)


def _with_secrets(connection: Connection, found: Caller, key: str | None, draft: Draft) -> Draft:
    """Return a job with the stored URL in place of the masked one, if that came back unchanged.

    A URL that differs elsewhere stays masked, and is refused: a stored secret goes to no other address.
    """
    target = as_object(draft.job.get("target")) or {}
    if key is None or REDACTED not in str(target.get("url")):
        return draft
    try:
        job = in_snapshot(connection, show_job, found.tenant, key, as_stored=True).job
    except UnknownJob:
        return draft
    url = (as_object(job.get("target")) or {}).get("url")
    if not isinstance(url, str) or target["url"] != redact_query(url):
        return draft
    return replace(draft, job={**draft.job, "target": {**target, "url": url}})


def _read(connection: Connection, found: Caller, request: Request, form: Form) -> tuple[Typed, Draft]:
    """Return what was typed, and the job that it describes."""
    key = None if "ref" not in request.path_params else key_of_page(connection, found, request)
    base, expected = (read_number(form.get(name, "")) or 0 for name in ("base", "if_version"))
    state = Typed(
        key, base, expected, "json" if form.get("view") == "json" else "form", document=form.get("document", ""),
        under=form.get("under", ""), paste=form.get("paste", ""),
    )  # fmt: skip
    if state.view == "json":
        draft = draft_of_json(state.document)
    else:
        was = _version(connection, found, key, base)
        below = draft_of_json(state.under).job if state.under else was
        texts, errors = _joined(connection, form, as_object(was.get("payload")) or {})
        read = draft_of(texts, below)
        draft = Draft(read.job, tuple(dict.fromkeys((*read.errors, *errors))))
        state = replace(state, texts=typed(below) | texts)
    if not draft.errors and (wrong := _wrong_key(draft, key)) is not None:
        draft = replace(draft, errors=(wrong,))
    return state, draft


def _joined(
    connection: Connection, form: Form, was: Mapping[str, object]
) -> tuple[dict[str, str], Sequence[FieldError]]:
    """Return the texts of a form with its payload as one JSON text; with errors, they stay as typed."""
    texts = dict(form.items())
    if (handler := form.get("payload_of")) is None:
        return texts, ()
    fields = of_all_tenants(connection, read_payload_fields, handler)
    try:
        payload = join_payload(texts, fields, was)
    except InvalidInput as error:
        return texts, error.errors
    of_payload = {"payload_of", *(each.path for each in fields)}
    return {name: text for name, text in texts.items() if name not in of_payload} | {"payload": payload}, ()


def _with_payload(connection: Connection, state: Typed) -> Typed:
    """Return the page with its payload split into fields; a refused one is as typed."""
    is_refused = "payload_of" in state.texts
    if state.view == "json" or (state.texts.get("target") != "handler" and not is_refused):
        return state
    handler = state.texts.get("payload_of" if is_refused else "target.name", "")
    fields = of_all_tenants(connection, read_payload_fields, handler)
    if is_refused:
        return replace(state, fields=fields)
    texts = split_payload(state.texts.get("payload", ""), fields) if fields else None
    if texts is None:
        return state
    return replace(state, fields=fields, texts={**state.texts, **texts, "payload_of": handler})


def _version(connection: Connection, found: Caller, key: str | None, number: int) -> dict[str, object]:
    return in_snapshot(connection, job_at, found.tenant, key, number) if key is not None and number else {}


def _wrong_key(draft: Draft, key: str | None) -> FieldError | None:
    """Return the error of a key that is missing, or is that of another job."""
    given = draft.job.get("key")
    if key is None:
        return None if given else FieldError("key", "is missing", "name the job")
    if draft.job.setdefault("key", key) != key:
        return FieldError("key", "a job keeps its key", "leave it out, or make a new job")
    return None


def _save(connection: Connection, found: Caller, request: Request, form: Form) -> tuple[str, int, SavedJob]:
    state, draft = _read(connection, found, request, form)
    if draft.errors:
        raise InvalidInput(draft.errors)
    job = _with_secrets(connection, found, state.key, draft).job
    document = {"type": "job.submit", "job": job, "if_version": state.if_version}
    return str(draft.job["key"]), state.base, job_of(connection.request(document, request_id_of(form)))


def _answer(connection: Connection, found: Caller, request: Request, form: Form, refused: Refused | None) -> Typed:
    """Return what the page shows after a button was pressed, or after saving was refused."""
    state, draft = _read(connection, found, request, form)
    if isinstance(refused, VersionConflict):
        return _lost(connection, found, state, draft, refused)
    match form.get("do"):
        case "as_json" if not draft.errors:
            return replace(state, view="json", document=json_text(draft.job))
        case "as_form" if not draft.errors:
            return _as_form(state, draft.job)
        case "paste":
            return _pasted(state, draft)
        case _:
            return _checked(connection, found, state, draft, refused)


def _as_form(state: Typed, job: dict[str, object]) -> Typed:
    """Return the form of a job; what the form has no field for goes with it."""
    job = normalised(job)
    under = {name: value for name, value in job.items() if name != "payload"}
    return replace(state, view="form", texts=typed(job), under=json_text(under))


def _pasted(state: Typed, draft: Draft) -> Typed:
    """Return the form with a pasted schedule over what was typed."""
    try:
        pasted = read_pasted(state.paste)
    except InvalidInput as error:
        return replace(state, errors=error.errors)
    job = {"key": state.texts.get("key", ""), "target": {"type": "handler"}} | draft.job | pasted.job
    return replace(_as_form(state, job), notes=pasted.notes)


def _checked(connection: Connection, found: Caller, state: Typed, draft: Draft, refused: Refused | None) -> Typed:
    """Return the page with what saving will do, or with every error."""
    drafted, draft = draft, _with_secrets(connection, found, state.key, draft)
    with_secrets = draft is not drafted  # then those of both are the same, and no difference shows one
    try:
        in_force = None
        if state.key is not None:
            in_force = in_snapshot(connection, show_job, found.tenant, state.key, as_stored=with_secrets)
    except UnknownJob:  # it was deleted: saving creates it again
        in_force = None
    errors = list(dict.fromkeys((*draft.errors, *(refused.errors if refused else ()))))  # a save refuses a draft's too
    try:
        if not errors:
            return replace(state, check=check(connection, found.tenant, draft.job, in_force))
    except Refused as error:
        errors = list(error.errors)
    return replace(state, errors=every_error(connection, found.tenant, draft.job, errors))


def _lost(connection: Connection, found: Caller, state: Typed, draft: Draft, lost: VersionConflict) -> Typed:
    """Return the page of a save that another one has overtaken."""
    if state.key is None:
        error = FieldError(
            "key", f"there is a job of this key, at version {lost.current}", "edit that one, or choose another"
        )
        return replace(state, errors=(error,))
    who = last_author(connection, found.tenant, state.key) or "another user"
    if lost.current is None:
        state = replace(state, if_version=0)
        problem, remedy = f"{who} deleted the job meanwhile", "save again to create the job with what is typed here"
    else:
        state, draft = _onto(connection, found, state, draft, lost.current)
        problem, remedy = f"{who} saved version {lost.current} meanwhile", "read what still differs, then save again"
    checked = _checked(connection, found, state, draft, None)
    return replace(checked, lost=True, errors=(FieldError("", problem, remedy), *checked.errors))


def _onto(connection: Connection, found: Caller, state: Typed, draft: Draft, current: int) -> tuple[Typed, Draft]:
    """Return what was typed on top of the version in force; JSON replaces that version as a whole."""
    state = replace(state, if_version=current)
    if state.view == "json" or state.under:
        return state, draft
    before, job = (_version(connection, found, state.key, number) for number in (state.base, current))
    texts = retyped(state.texts, typed(before), typed(job))
    return replace(state, base=current, texts=texts), draft_of(texts, job)
