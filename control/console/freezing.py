"""Freeze and thaw: choose a scope, see what it stops, and end it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, NamedTuple, cast

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.callers import Caller, ensure_all_tenants
from tidewheel.control.api.freezes import ScopeQuery as FreezeScopeQuery
from tidewheel.control.api.queries import TenantQuery, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import SAMPLE, Dialog, Done, Field, request_id_of, text_of
from tidewheel.control.console.forms import Form
from tidewheel.control.console.frozen import scope_address, thaw_filters
from tidewheel.control.console.urls import Urls, local_path
from tidewheel.control.console.view import View
from tidewheel.control.console.words import agreed, counted, number
from tidewheel.control.reads.fleet import list_executors
from tidewheel.control.reads.freezes import (
    Freezable,
    Freeze,
    FreezeSummary,
    all_freezes,
    count_freezable,
    is_paused_by_tenant,
    list_freezes,
    narrow_scope,
    standing_freezes,
)
from tidewheel.control.reads.jobs import JobPage, list_jobs
from tidewheel.errors import FieldError, refuse
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn

_LONGEST_BACK = 500
_STANDING = 10_000  # freezes with which the scope of a dialog is compared
_EXECUTORS = 500  # whose queues are compared with that of a freeze
_TAKEN_OVER = "A key of the tenant began it. After your freeze, no key of the tenant can end it."
_OPERATORS = "An operator began it. Only an operator, or a key of all tenants, can end it."
_NO_OCCURRENCES = "No job of this scope has an occurrence to come."
_SKIPS = (
    "For a job whose on_resume is skip, the thaw skips the held occurrences. Only a backfill can run them afterwards."
)
_HELD = ("{}, will start only after a thaw of that one too.", "No open run waits.")
_NARROW = ("queue", "labels", "key_prefix")


class BackQuery(TenantQuery):
    """The page that an operator comes from, and goes back to."""

    next: str | None = None


class ScopeQuery(FreezeScopeQuery, BackQuery):
    """The scope of a freeze, and the page that an operator comes from."""


@dataclass(frozen=True, slots=True)
class ChooseFreezePage:
    """The page on which an operator chooses what to freeze."""

    template: ClassVar[str] = "freeze.html"
    place: ClassVar[str] = ""

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the standing freezes, with what waits under each."""
        del urls
        back = _back(read_query(request, BackQuery))
        with connection.snapshot(all_tenants=caller.all_tenants) as reading:
            now = read_now(reading)
            freezes = list_freezes(reading, caller.tenant, counts_all=caller.all_tenants)
            standing = all_freezes(reading) if caller.all_tenants else ()
        rows = [(each, thaw_filters(each.freeze), _waiting(each, at_least=each.is_capped)) for each in freezes]
        others = [(each, thaw_filters(each)) for each in standing if each.tenant not in {None, caller.tenant}]
        return View({"now": now, "rows": rows, "others": others, "may_freeze_fleet": _may_fleet(caller), "back": back})


@dataclass(frozen=True, slots=True)
class FreezeScope:
    """Freeze a scope."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Count what the freeze stops."""
        query = read_query(request, ScopeQuery)
        document = _document(query)
        fleet = document.get("scope") == "fleet"
        if fleet:
            ensure_all_tenants(caller)
        words = _scope_words(document, caller.tenant)
        same, others = _standing(connection, caller, document)
        if same is not None and not _takes_over(connection, caller, document):
            unchanged = f"Nothing would change. It has been {same.words}."
            return Dialog(f"Freeze {words}?", "", _to(query, urls), will=(unchanged,), keep="Back")
        found = _count(connection, caller, document)
        with connection.snapshot(all_tenants=fleet) as reading:
            jobs = None if fleet else _jobs_of(reading, caller.tenant, document)
            held = None if fleet else _jobs_of(reading, caller.tenant, document, occurs=True)
        is_empty = not (found.open_runs or found.under_way or jobs is None or jobs.total)
        is_queue = query.queue is not None and document.keys() <= {"scope", "queue"}
        unknown = _unknown_queue(connection, caller, str(query.queue)) if is_queue and is_empty else ()
        many = "all jobs" if held is None else counted(held.total, "job", at_least=held.at_least)
        has_none = held is not None and not held.total and not held.at_least
        runs = _waiting(found, at_least=found.at_least)
        starts = f"{runs}, will not start until the thaw: neither a first attempt nor a retry."
        return Dialog(
            f"Freeze {words}?", f"Freeze {words}", urls("freeze", next=_back(query)),
            will=(
                *((f"It has been {same.words}. {_TAKEN_OVER}",) if same else ()),
                *_also_frozen(others, document, "A thaw of that freeze does not end this one."),
                *((starts,) if found.open_runs else ()),
                *((_NO_OCCURRENCES,) if has_none else (
                    f"Occurrences of {many} that come due meanwhile are held until the thaw.", _SKIPS)),
                "Triggers are still accepted. Their runs wait for the thaw.",
            ),
            stays=(_under_way(found),),
            fields=(Field("reason", "Reason (optional)", help="Shown on every page until the thaw."),),
            keep="Let it run", warnings=unknown,
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Freeze it."""
        query = read_query(request, ScopeQuery)
        document, to = _document(query), _to(query, urls)
        if document.get("scope") == "fleet":
            ensure_all_tenants(caller)
        sent = {
            "type": "freeze",
            "reason": text_of(form, "reason"),
            "by": connection.actor.named or connection.actor.name,
            **document,
        }
        unchanged = connection.request(sent, request_id_of(form)).unchanged
        words = _scope_words(document, caller.tenant)
        thaw = urls("thaw", **scope_address(document), next=_back(query))
        if unchanged:
            return Done(to, f"Frozen already: {words}.")
        return Done(to, f"Frozen: {words}.", ("Thaw", thaw))


@dataclass(frozen=True, slots=True)
class ThawScope:
    """End a freeze."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what starts again."""
        query = read_query(request, ScopeQuery)
        document = _document(query)
        if document.get("scope") == "fleet":
            ensure_all_tenants(caller)
        freeze, others = _standing(connection, caller, document)
        words = _scope_words(document, caller.tenant)
        if freeze is None:
            unchanged = "Nothing would change. No freeze of exactly this scope is in force."
            return Dialog(f"Thaw {words}?", "", _to(query, urls), will=(unchanged,), keep="Back")
        frozen = f"It has been {freeze.words}."
        if not caller.all_tenants and _is_tenant(document) and not _is_own_pause(connection, caller):
            return Dialog(f"Thaw {words}?", "", _to(query, urls), will=(frozen, _OPERATORS), keep="Back")
        found, due = _count(connection, caller, document), query.preview_thaw(connection, caller)
        runs = _waiting(found, at_least=found.at_least)
        waits = _also_frozen(others, document, _HELD[not found.open_runs].format(runs))
        return Dialog(
            f"Thaw {words}?", f"Thaw {words}", _to(query, urls),
            will=(*(waits or (_released(found),)), *due.words),
            stays=(frozen, *_narrower(others, document), "Jobs that are paused stay paused."), keep="Keep it frozen",
            sample=[each.words for each in due.jobs[:SAMPLE]],
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Thaw it."""
        query = read_query(request, ScopeQuery)
        document = _document(query)
        if document.get("scope") == "fleet":
            ensure_all_tenants(caller)
        connection.request({"type": "thaw", **document}, request_id_of(form))
        words = _scope_words(document, caller.tenant)
        freeze = urls("freeze_scope", **scope_address(document), next=_back(query))
        return Done(_to(query, urls), f"Thawed: {words}.", ("Freeze", freeze))


def _back(query: BackQuery) -> str | None:
    """Return the address to go back to; None without one, and for one too long for a message's cookie."""
    found = local_path(query.next or "")
    return found if found != "/" and len(found) <= _LONGEST_BACK else None


def _to(query: BackQuery, urls: Urls) -> str:
    back = _back(query)
    return urls("overview") if back is None else urls.here(back)


def _jobs_of(connection: Conn, tenant: str, document: Mapping[str, Any], *, occurs: bool = False) -> JobPage:
    """Return the jobs of a scope of one tenant, or only those that have a further occurrence."""
    return list_jobs(
        connection, tenant, prefix=document.get("key_prefix") or "", labels=document.get("labels"),
        queue=document.get("queue"), occurs=occurs, limit=1,
    )  # fmt: skip


def _unknown_queue(connection: Connection, caller: Caller, queue: str) -> Sequence[FieldError]:
    """Return the warning that nothing has a queue; who may see the fleet gets names of executors' queues."""
    queues: set[str] = set()
    if caller.all_tenants:
        with connection.snapshot(all_tenants=True) as reading:
            queues = {each for executor in list_executors(reading, limit=_EXECUTORS) for each in executor.queues}
    if queue in queues:
        return ()
    near = get_close_matches(queue, queues)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    who = "no job, no open run and no executor" if caller.all_tenants else "no job and no open run"
    return (FieldError("", f"{who} has queue {queue}", f"{meant}The freeze is for what comes later."),)


def _count(connection: Connection, caller: Caller, document: Mapping[str, object]) -> Freezable:
    """Count the open runs of a scope that the caller may see."""
    everywhere = document.get("scope") == "fleet" and caller.all_tenants
    narrowed: dict[str, Any] = {name: document.get(name) for name in _NARROW}
    with connection.snapshot(all_tenants=everywhere) as reading:
        return count_freezable(reading, None if everywhere else caller.tenant, **narrowed)


def _waiting(found: Freezable | FreezeSummary, *, at_least: bool) -> str:
    """Return the number of runs that a freeze keeps from starting, with those that are due."""
    runs = counted(found.open_runs, "open run", at_least=at_least)
    if not found.open_runs:
        return runs
    if found.waiting == found.open_runs and not at_least:
        return f"{runs}, {'all ' if found.waiting > 1 else ''}due now"
    due = number(found.waiting, at_least=at_least) if found.waiting else "none"
    return f"{runs}, of which {due} {agreed(max(found.waiting, 1), 'is', 'are')} due now"


def _under_way(found: Freezable) -> str:
    if not found.under_way:
        return "No run is under way."
    continues = "is under way and continues" if _is_one(found.under_way, found) else "are under way and continue"
    return f"{counted(found.under_way, 'run', at_least=found.at_least)} {continues}."


def _released(found: Freezable) -> str:
    """Return how many runs a thaw releases."""
    if not found.open_runs:
        return "No open run waits for this thaw."
    before = "not before its own start time" if _is_one(found.open_runs, found) else "none before its own start time"
    return f"{_waiting(found, at_least=found.at_least)}, may start again, {before}."


def _is_one(count: int, found: Freezable) -> bool:
    return count == 1 and not found.at_least


def _standing(
    connection: Connection, caller: Caller, document: Mapping[str, object]
) -> tuple[Freeze | None, Sequence[Freeze]]:
    """Return the standing freeze of exactly a scope, and the others."""
    with connection.snapshot(all_tenants=caller.all_tenants) as reading:
        found = standing_freezes(reading, caller.tenant, _STANDING)
    address = scope_address(document)
    same = next((each for each in found if thaw_filters(each) == address), None)
    return same, [each for each in found if each is not same]


def _also_frozen(others: Sequence[Freeze], document: Mapping[str, Any], effect: str) -> Sequence[str]:
    """Return a sentence about a wider freeze that covers all of a scope; none without one."""
    scope = _Scope.of(document)
    for each in others:
        if _scope_of(each).covers(scope):
            return (f"A wider freeze covers all of it: {each.words}. {effect}",)
    return ()


def _narrower(others: Sequence[Freeze], document: Mapping[str, Any]) -> Sequence[str]:
    """Return how many freezes go on within a scope after its thaw; nothing for none."""
    scope = _Scope.of(document)
    found = sum(scope.covers(_scope_of(each)) for each in others)
    return (f"{counted(found, 'narrower freeze')} within it {agreed(found, 'goes', 'go')} on.",) if found else ()


class _Scope(NamedTuple):
    """The runs that a freeze names."""

    is_fleet: bool
    queue: str | None
    labels: Mapping[str, str]
    key_prefix: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "_Scope":
        """Return the scope of a document."""
        labels = cast("Mapping[str, str]", document.get("labels") or {})
        return cls(
            document.get("scope") == "fleet", document.get("queue"), labels, str(document.get("key_prefix") or "")
        )  # fmt: skip

    def covers(self, other: "_Scope") -> bool:
        """Return True if all runs of another scope are in this one."""
        return (
            (self.is_fleet or not other.is_fleet)
            and self.queue in {None, other.queue}
            and self.labels.items() <= other.labels.items()
            and other.key_prefix.startswith(self.key_prefix)
        )


def _scope_of(freeze: Freeze) -> _Scope:
    return _Scope(freeze.tenant is None, freeze.queue, freeze.labels or {}, freeze.key_prefix or "")


def _is_tenant(document: Mapping[str, object]) -> bool:
    return dict(document) == {"scope": "tenant"}


def _is_own_pause(connection: Connection, caller: Caller) -> bool:
    """Return True if a key of the tenant has begun the freeze of all its runs."""
    with connection.snapshot() as reading:
        return is_paused_by_tenant(reading, caller.tenant)


def _takes_over(connection: Connection, caller: Caller, document: Mapping[str, object]) -> bool:
    """Return True if a second freeze of a scope changes something: it becomes one of an operator."""
    return caller.all_tenants and _is_tenant(document) and _is_own_pause(connection, caller)


def _document(query: ScopeQuery) -> dict[str, object]:
    """Return the scope as a request has it: a narrower one than the tenant names no tenant."""
    given: dict[str, object] = {
        "queue": query.queue, "labels": dict(query.label) or None, "key_prefix": query.key_prefix,
    }  # fmt: skip
    named = {name: value for name, value in given.items() if value is not None}
    if query.scope == "fleet" or (query.scope == "tenant" and not named):
        named = {"scope": query.scope, **named}
    if not named:
        refuse("", "nothing is chosen", "choose the tenant, a queue, a label or a key prefix")
    return named


def _scope_words(document: Mapping[str, Any], tenant: str) -> str:
    narrow = narrow_scope(*(document.get(name) for name in _NARROW))
    if document.get("scope") == "fleet":
        return f"{narrow} of the fleet" if narrow else "the fleet"
    return narrow or f"tenant {tenant}"


def _may_fleet(caller: Caller) -> bool:
    return caller.all_tenants and Scope.ADMIN in caller.scopes
