"""Freezes on the web: choose a scope, see what it stops, and end it."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, NamedTuple

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.authorization import Caller, ensure_all_tenants
from tidewheel.control.api.request_input import TenantQuery, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import SAMPLE, Dialog, Done, Field, address_of, request_id_of, text_of
from tidewheel.control.console.door import Form
from tidewheel.control.console.urls import Urls, local_path
from tidewheel.control.console.view import View
from tidewheel.control.console.words import agreed, counted, number
from tidewheel.control.reads.fleet import list_executors
from tidewheel.doors.address import query_with
from tidewheel.errors import FieldError, refuse
from tidewheel.nouns.freezes.model import Freezable, Freeze, FreezeSummary, FrozenScope
from tidewheel.nouns.freezes.operations import Freezes
from tidewheel.nouns.freezes.reads import (
    all_freezes,
    count_freezable,
    is_paused_by_tenant,
    list_freezes,
    standing_freezes,
)
from tidewheel.nouns.jobs.model import JobPage
from tidewheel.nouns.jobs.reads import list_jobs
from tidewheel.nouns.operation import operations
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn

_LONGEST_BACK = 500
_STANDING = 10_000  # freezes with which the scope of a dialog is compared
_EXECUTORS = 500  # whose queues are compared with that of a freeze
_TAKEN_OVER = "A key of the tenant began it. After your freeze, no key of the tenant can end it."
_OPERATORS = "An operator began it. Only an operator, or a key of all tenants, can end it."
_NO_OCCURRENCES = "No job of this scope has an upcoming occurrence."
_SKIPS = (
    "For a job whose on_resume is skip, the thaw skips the held occurrences. Only a backfill can run them afterwards."
)
_HELD = ("{}, will start only after a thaw of that one too.", "No open run waits.")
_PREVIEW = operations(Freezes)["preview_thaw"]


class BackQuery(TenantQuery):
    """The page that an operator comes from, and goes back to."""

    next: str | None = None


_SCOPE, _NAMES = query_with(BackQuery, _PREVIEW, _PREVIEW.parameters)
"""The query of a scope: its fields, and the page that an operator comes from."""


@dataclass(frozen=True, slots=True)
class ChooseFreezePage:
    """The page on which an operator chooses what to freeze."""

    template: ClassVar[str] = "freeze.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the standing freezes, with what waits under each."""
        back = _back(read_query(request, BackQuery))
        with connection.snapshot(all_tenants=caller.all_tenants) as reading:
            now = read_now(reading)
            freezes = list_freezes(reading, caller.tenant, counts_all=caller.all_tenants)
            standing = all_freezes(reading) if caller.all_tenants else ()
        rows = [(each, address_of(each.freeze), _waiting(each, at_least=each.is_capped)) for each in freezes]
        others = [(each, address_of(each)) for each in standing if each.tenant not in {None, caller.tenant}]
        may_fleet = caller.all_tenants and Scope.ADMIN in caller.scopes
        return View({"now": now, "rows": rows, "others": others, "may_freeze_fleet": may_fleet, "back": back,
                     "queues": sorted(_queues(connection, caller))})  # fmt: skip


@dataclass(frozen=True, slots=True)
class FreezeAction:
    """Freeze a scope."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Count what the freeze stops."""
        asked = _Asked.of(connection, caller, request)
        same, scope = asked.same, asked.scope
        takes_over = caller.all_tenants and asked.is_tenant and _is_own_pause(connection, caller)
        if same is not None and not takes_over:
            return asked.nothing("Freeze", f"Nothing would change. It has been {same.words}.", urls)
        found = _count(connection, scope)
        with connection.snapshot(all_tenants=scope.tenant is None) as reading:
            jobs = None if scope.tenant is None else _jobs_of(reading, scope.tenant, scope)
            held = None if scope.tenant is None else _jobs_of(reading, scope.tenant, scope, occurs=True)
        is_empty = not (found.open_runs or found.under_way or jobs is None or jobs.total)
        many = "all jobs" if held is None else counted(held.total, "job", at_least=held.at_least)
        has_none = held is not None and not held.total and not held.at_least
        runs = _waiting(found, at_least=found.at_least)
        starts = f"{runs}, will not start until the thaw: neither a first attempt nor a retry."
        return Dialog(
            f"Freeze {asked.words}?", f"Freeze {asked.words}", urls("freeze", next=_back(asked.query)),
            will=(
                *((f"It has been {same.words}. {_TAKEN_OVER}",) if same else ()),
                *asked.also_frozen("A thaw of that freeze does not end this one."),
                *((starts,) if found.open_runs else ()),
                *((_NO_OCCURRENCES,) if has_none else (
                    f"Occurrences of {many} that come due meanwhile are held until the thaw.", _SKIPS)),
                "Triggers are still accepted. Their runs wait for the thaw.",
            ),
            stays=(_under_way(found),),
            fields=(Field("reason", "Reason (optional)", help="Shown on every page until the thaw."),),
            warnings=_unknown_queue(connection, caller, scope) if is_empty else (),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Freeze it."""
        query, scope = _read(caller, request)
        by = connection.actor.named or connection.actor.name
        changed = Freezes(connection).freeze(
            reason=text_of(form, "reason"), by=by, request_id=request_id_of(form), **scope.named()
        )
        to, words = _to(query, urls), _words(scope)
        if not changed:
            return Done(to, f"Frozen already: {words}.")
        return Done(to, f"Frozen: {words}.", ("Thaw", urls("thaw", **address_of(scope), next=_back(query))))


@dataclass(frozen=True, slots=True)
class ThawAction:
    """End a freeze."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what starts again."""
        asked = _Asked.of(connection, caller, request)
        if asked.same is None:
            return asked.nothing("Thaw", "Nothing would change. No freeze of exactly this scope is in force.", urls)
        frozen = f"It has been {asked.same.words}."
        if not caller.all_tenants and asked.is_tenant and not _is_own_pause(connection, caller):
            return asked.nothing("Thaw", frozen, urls, _OPERATORS)
        found, due = _count(connection, asked.scope), Freezes(connection).preview_thaw(**asked.scope.named())
        runs = _waiting(found, at_least=found.at_least)
        waits = asked.also_frozen(_HELD[not found.open_runs].format(runs))
        return Dialog(
            f"Thaw {asked.words}?", f"Thaw {asked.words}", _to(asked.query, urls),
            will=(*(waits or (_released(found),)), *due.words),
            stays=(frozen, *asked.narrower(), "Jobs that are paused stay paused."),
            sample=[each.words for each in due.jobs[:SAMPLE]],
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Thaw it."""
        query, scope = _read(caller, request)
        Freezes(connection).thaw(request_id=request_id_of(form), **scope.named())
        freeze = urls("freeze_scope", **address_of(scope), next=_back(query))
        return Done(_to(query, urls), f"Thawed: {_words(scope)}.", ("Freeze", freeze))


class _Asked(NamedTuple):
    """The scope of a dialog, and the standing freezes."""

    query: BackQuery
    scope: FrozenScope
    same: Freeze | None  # the freeze of exactly this scope
    others: Sequence[Freeze]

    @classmethod
    def of(cls, connection: Connection, caller: Caller, request: Request) -> "_Asked":
        """Return those of a request."""
        query, scope = _read(caller, request)
        with connection.snapshot(all_tenants=caller.all_tenants) as reading:
            found = standing_freezes(reading, caller.tenant, _STANDING)
        same = next((each for each in found if each.covers(scope) and scope.covers(each)), None)
        return cls(query, scope, same, [each for each in found if each is not same])

    @property
    def words(self) -> str:
        """The scope in words."""
        return _words(self.scope)

    @property
    def is_tenant(self) -> bool:
        """True for all runs of a tenant."""
        return self.scope.named() == {"scope": "tenant"}

    def nothing(self, verb: str, words: str, urls: Urls, *more: str) -> Dialog:
        """Return the dialog of an action that is not possible."""
        return Dialog(f"{verb} {self.words}?", "", _to(self.query, urls), will=(words, *more))

    def also_frozen(self, effect: str) -> Sequence[str]:
        """Return a sentence about a wider freeze that covers all of the scope; none without one."""
        wider = next((each for each in self.others if each.covers(self.scope)), None)
        return () if wider is None else (f"A wider freeze covers all of it: {wider.words}. {effect}",)

    def narrower(self) -> Sequence[str]:
        """Return how many freezes go on within the scope after its thaw; nothing for none."""
        found = sum(self.scope.covers(each) for each in self.others)
        return (f"{counted(found, 'narrower freeze')} within it {agreed(found, 'goes', 'go')} on.",) if found else ()


def _read(caller: Caller, request: Request) -> tuple[BackQuery, FrozenScope]:
    """Return a query with its scope, about which the caller has the right."""
    query = read_query(request, _SCOPE)
    given: dict[str, Any] = {name: getattr(query, spoken) or None for name, spoken in _NAMES.items()}
    if not any(given.values()):
        refuse("", "nothing is chosen", "choose the tenant, a queue, a label or a key prefix")
    tenant = None if given.pop("scope") == "fleet" else caller.tenant
    if tenant is None:
        ensure_all_tenants(caller)
    return query, FrozenScope(tenant, **given)


def _back(query: BackQuery) -> str | None:
    """Return the address to go back to; None without one, and for one too long for a message's cookie."""
    found = local_path(query.next or "")
    return found if found != "/" and len(found) <= _LONGEST_BACK else None


def _to(query: BackQuery, urls: Urls) -> str:
    back = _back(query)
    return urls("overview") if back is None else urls.here(back)


def _jobs_of(connection: Conn, tenant: str, scope: FrozenScope, *, occurs: bool = False) -> JobPage:
    """Return the jobs of a scope of one tenant, or only those that have a further occurrence."""
    return list_jobs(
        connection, tenant, prefix=scope.key_prefix, labels=dict(scope.labels or {}), queue=scope.queue,
        occurs=occurs, limit=1,
    )  # fmt: skip


def _queues(connection: Connection, caller: Caller) -> set[str]:
    """Return the queues of executors, for a caller who may see the fleet."""
    if not caller.all_tenants:
        return set()
    with connection.snapshot(all_tenants=True) as reading:
        return {each for executor in list_executors(reading, limit=_EXECUTORS) for each in executor.queues}


def _unknown_queue(connection: Connection, caller: Caller, scope: FrozenScope) -> Sequence[FieldError]:
    """Return the warning that nothing has a queue; who may see the fleet gets names of executors' queues."""
    if scope.queue is None or scope.labels or scope.key_prefix:
        return ()
    if scope.queue in (queues := _queues(connection, caller)):
        return ()
    near = get_close_matches(scope.queue, queues)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    who = "no job, no open run and no executor" if caller.all_tenants else "no job and no open run"
    return (FieldError("", f"{who} has queue {scope.queue}", f"{meant}The freeze is for what comes later."),)


def _count(connection: Connection, scope: FrozenScope) -> Freezable:
    with connection.snapshot(all_tenants=scope.tenant is None) as reading:
        return count_freezable(reading, scope)


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


def _is_own_pause(connection: Connection, caller: Caller) -> bool:
    """Return True if a key of the tenant has begun the freeze of all its runs."""
    with connection.snapshot() as reading:
        return is_paused_by_tenant(reading, caller.tenant)


def _words(scope: FrozenScope) -> str:
    narrow = scope.narrow()
    return scope.scope if scope.tenant is None or not narrow else narrow
