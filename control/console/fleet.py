"""The fleet: who is alive, who is full, what doctor reports."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar, NamedTuple
from uuid import UUID

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.authorization import Caller, ensure_all_tenants
from tidewheel.control.api.request_input import TenantQuery, Text, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import Dialog, Done
from tidewheel.control.console.door import Form
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, View, of_all_tenants, or_else, page_now, part
from tidewheel.control.console.words import agreed, counted, number
from tidewheel.control.doctor.doctor import CHECKS, Broker, Doctor
from tidewheel.control.reads.findings import lost_words
from tidewheel.control.reads.fleet import (
    COUNTED,
    DueRuns,
    ExecutorSummary,
    FleetStatus,
    Service,
    count_runs,
    list_executors,
    list_runs_of,
    list_shards,
    read_status,
    use_of,
)
from tidewheel.nouns.freezes.model import FrozenScope
from tidewheel.postgres.replica import Replica
from tidewheel.scheduler.backlog import Unhandled, find_unhandled

_EXECUTORS = 1000
_ONE_BY_ONE = 50  # more executors are shown in groups, unusual ones first
_LATE = timedelta(seconds=30)  # as of a backlog that is a finding
_WAIT_SECONDS = 10.0  # for the checks of doctor before the page is shown without them


class FleetQuery(TenantQuery):
    """The parts of the page's address; `find` is a name, a queue or a handler of executors."""

    executor: Text | None = None
    find: Text | None = None


class Row(NamedTuple):
    """An executor with its runs.

    Args:
        version: Its release; None for one in another language.
        is_stuck: True if its process sends heartbeats, but does not renew its lease.
        is_unusual: True if it is silent, stopping, full or of another release than most.
    """

    executor: ExecutorSummary
    busy: int
    version: str | None
    skew_seconds: float | None
    is_stuck: bool
    is_unusual: bool


class Group(NamedTuple):
    """Executors of one release and the same queues."""

    version: str | None
    queues: tuple[str, ...]
    executors: int
    busy: int
    slots: int


@dataclass(frozen=True, slots=True)
class FleetPage:
    """The fleet."""

    shards: int
    doctor: Doctor
    broker: Broker
    replica: Replica | None
    template: ClassVar[str] = "fleet.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read each part by itself, for a key of all tenants; the state of services needs the scope admin."""
        ensure_all_tenants(caller, Scope.READ)
        query, is_admin = read_query(request, FleetQuery), Scope.ADMIN in caller.scopes
        now = page_now(connection)
        fleet = part(lambda: of_all_tenants(connection, read_status, self.shards)) if is_admin else None
        services = fleet.services if isinstance(fleet, FleetStatus) else ()
        shards = part(lambda: of_all_tenants(connection, list_shards, self.shards))
        rows = part(lambda: _rows(connection, services, query.find))
        alone = () if isinstance(rows, Failed) else rows
        groups = _groups(alone) if len(alone) > _ONE_BY_ONE and not query.find else ()
        shown = [each for each in alone if each.is_unusual or not groups][:_ONE_BY_ONE]
        opened = next((each for each in alone if str(each.executor.executor_id) == query.executor), None)
        if opened is not None and opened not in shown:
            shown.append(opened)
        live = [each for each in alone if not each.executor.is_silent]
        runs = part(lambda: of_all_tenants(connection, list_runs_of, opened.executor)) if opened else ()
        owned = Counter(each.owner.name for each in or_else(shards, ()) if each.owner is not None)
        return View(
            {
                "now": now, "fleet": fleet, "rows": rows, "shown": shown, "groups": groups, "runs": runs,
                "broker": self.broker.last(now), "busy": sum(each.busy for each in live),
                "slots": sum(each.executor.slots for each in live), "query": query,
                "opened": opened, "lost": lost_words(opened.busy, lives=bool(live)) if opened else "",
                "shards": shards, "shard_count": self.shards,
                "replica": self.replica and self.replica.state,
                **_waiting(connection, fleet, live, all_listed=not query.find),
                "owned": owned, "orphans": self.shards - owned.total(),
                "services": [each for each in services if each.role != "executor"],
                "diagnosis": self.doctor.last() if is_admin else None,
            }
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunDoctor:
    """Run the checks of doctor."""

    doctor: Doctor
    scope = Scope.ADMIN

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what the checks do."""
        ensure_all_tenants(caller)
        return Dialog(
            "Run the checks of doctor?", "Run the checks", urls("fleet"),
            will=(f"{counted(len(CHECKS), 'check')} read PostgreSQL and Kafka, for a few seconds.",),
            stays=("They change nothing.",),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Run them."""
        ensure_all_tenants(caller)
        return Done(urls("fleet"), "", then=partial(self._run, page_now(connection), urls))

    async def _run(self, now: datetime, urls: Urls) -> Done:
        found = await self.doctor.run(now, _WAIT_SECONDS)
        if found.is_running or found.report is None:
            return Done(urls("fleet"), "The checks of doctor are still running. Reload this page in a moment.")
        return Done(urls("fleet"), f"doctor: {counted(len(found.report.findings), 'finding')}.")


def _rows(connection: Connection, services: Sequence[Service], find: str | None) -> list[Row]:
    with connection.snapshot(all_tenants=True) as reading:
        executors, busy = list_executors(reading, limit=_EXECUTORS), count_runs(reading)
    known = {each.process_id: each for each in services}
    versions = Counter(each.version for each in services if each.role == "executor" and each.version)
    usual = versions.most_common(1)[0][0] if versions else None
    found = [
        _row(each, busy.get(each.executor_id, 0), known, usual)
        for each in executors
        if find is None or find in {each.name, str(each.executor_id), *each.queues, *each.handlers}
    ]
    return sorted(found, key=lambda each: (not each.is_unusual, each.executor.name))


def _use(live: Sequence[Row], queue: str) -> str:
    """Return the use of the slots of a queue in words."""
    serving = [each for each in live if queue in each.executor.queues and not each.executor.stopping]
    return use_of([each.executor for each in serving], {each.executor.executor_id: each.busy for each in serving}).words


def _waiting(
    connection: Connection, fleet: FleetStatus | Failed | None, live: Sequence[Row], *, all_listed: bool
) -> Mapping[str, object]:
    """Return the queues and lanes whose oldest due run waits for long, and why executors are idle."""
    if not isinstance(fleet, FleetStatus):
        return {"late": (), "idle": {}}
    late = sorted((each for each in fleet.due if each.due and each.oldest >= _LATE), key=lambda each: -each.due)
    unhandled = or_else(part(lambda: of_all_tenants(connection, find_unhandled)), ()) if late else ()
    return {
        "late": late, "lacking": {each.queue: _lacking(each.queue, late, fleet, unhandled) for each in late},
        "use": {each.queue: _use(live, each.queue) if all_listed else "" for each in late},
        "idle": {each.executor.executor_id: _why_idle(each, fleet, late, unhandled) for each in live},
    }  # fmt: skip


def _lacking(queue: str, late: Sequence[DueRuns], fleet: FleetStatus, unhandled: Sequence[Unhandled]) -> str:
    """Return how many waiting runs of a queue need a handler that no live executor has."""
    lacking = sum(each.runs for each in unhandled if each.queue == queue)
    if not lacking:
        return ""
    many = sum(each.due for each in late if each.queue == queue)
    of_all = "" if fleet.freezes or not lacking <= many < COUNTED else f" of {number(many)}"
    runs = "runs" if of_all else agreed(lacking, "run of this queue", "runs of this queue")
    return f"{number(lacking)}{of_all} {runs} {agreed(lacking, 'needs', 'need')} a handler that no executor has"


def _why_idle(each: Row, fleet: FleetStatus, late: Sequence[DueRuns], unhandled: Sequence[Unhandled]) -> str:
    """Return why an executor without a run starts none, where that is certain."""
    queues = [FrozenScope(None, queue, {}, "") for queue in each.executor.queues]
    if each.busy or each.executor.stopping:
        return ""
    if queues and all(any(freeze.covers(queue) for freeze in fleet.freezes) for queue in queues):
        return f"{counted(len(queues), 'queue')} frozen"
    due, lacking = Counter[str](), Counter[str]()
    for one in late:
        due.update({one.queue: one.due} if one.queue in each.executor.queues else {})
    for other in unhandled:
        lacking[other.queue] += other.runs
    if late and not due:
        return "runs wait in other queues"
    if due and not fleet.freezes and all(many <= min(lacking[queue], COUNTED - 1) for queue, many in due.items()):
        needed = sorted({other.handler for other in unhandled if other.queue in due})
        return f"runs need {needed[0] if len(needed) == 1 else counted(len(needed), 'other handler')}"
    return "idle while runs wait" if due else ""


def _row(each: ExecutorSummary, busy: int, known: dict[UUID, Service], usual: str | None) -> Row:
    service = known.get(each.executor_id)
    version = service.version if service else None
    unusual = each.is_silent or each.stopping or busy >= each.slots or (version is not None and version != usual)
    is_stuck = service is not None and service.is_stuck
    return Row(each, busy, version, service.skew_seconds if service else None, is_stuck, unusual)


def _groups(rows: Sequence[Row]) -> list[Group]:
    """Return the executors by release and queues, the largest group first."""
    kinds: dict[tuple[str | None, tuple[str, ...]], list[Row]] = {}
    for each in rows:
        kinds.setdefault((each.version, tuple(sorted(each.executor.queues))), []).append(each)
    made = [
        Group(*kind, len(found), sum(each.busy for each in found), sum(each.executor.slots for each in found))
        for kind, found in kinds.items()
    ]
    return sorted(made, key=lambda group: -group.executors)
