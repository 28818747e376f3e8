"""A damaged row of one job stops no other: its neighbours are fired, published, claimed and ended.

The columns are those of the catalog. Each walk damages rows of some jobs, each in another column, beside jobs that are
whole. Then the services run until nothing of the whole ones is open.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import LiteralString, cast
from uuid import UUID, uuid4

import pytest
from psycopg import DataError, IntegrityError
from psycopg.sql import SQL, Identifier

from tests.executor.running import Executing
from tests.fixtures.acts import about, ending, submission
from tests.fixtures.damages import Damage, damages
from tests.fixtures.database import Database, lend
from tests.fixtures.services import until
from tests.fixtures.waiting import WaitRanOut
from tests.relay.relaying import Relaying
from tests.relay.topics import make_topics
from tests.scheduler.test_loop import running as scheduling
from tests.transitions.graphs import drain_some, never
from tidewheel.control.client.client import Client
from tidewheel.executor.reaper import Reaper
from tidewheel.ids import job_id
from tidewheel.kafka.topics import Topics
from tidewheel.local.stack import StackInfo
from tidewheel.postgres.session import Session
from tidewheel.process.service import Shutdown
from tidewheel.runs import RunState
from tidewheel.schemas.generated.records import ReplyStatus
from tidewheel.testing.databases import Template
from tidewheel.transitions.claim import Started
from tidewheel.transitions.requeue import Wait, wait_runs

pytestmark = pytest.mark.kafka

TOGETHER = 40  # damages of one walk
WHOLE = ("whole-1", "whole-2", "whole-3")
SECONDS = 60.0  # a healthy walk takes five
GONE = UUID("00000000-0000-4000-8000-0000000000aa")  # an executor that sends no heartbeats

PARTS: Mapping[str, Mapping[str, object]] = {
    "": {
        "schedule": {"cron": "* * * * * *"}, "max_runs": 2, "exclude_calendars": ["none"], "overlap": "allow_all",
        "catch_up": "fire_all", "window": "1h", "history_limit": 100, "pause_on_failure": 9,
        "on_resume": "fire_all",
    },
    "-keyed": {"concurrency_key": {"key": "{payload.name}-key", "at_once": 1, "rate": "1000/s"}},
    "-ordered": {"ordering_key": {"key": "{payload.name}-order"}},
    "-alone": {"overlap": "buffer_all"},
    "-root": {"overlap": "allow_all", "workflow": {"timeout": "1d"}},
    "-left": {"schedule": {"after": ["-root"]}, "overlap": "allow_all"},
    "-right": {"schedule": {"after": ["-root"]}, "overlap": "allow_all"},
    "-end": {"schedule": {"after": ["-left", "-right"]}, "overlap": "allow_all"},
    "-failed": {"retry": {"max_attempts": 1}},
    "-frozen": {
        "schedule": {"cron": "* * * * * *"}, "max_runs": 2, "overlap": "allow_all", "catch_up": "fire_all",
        "window": "1h", "on_resume": "fire_all",
    },
    "-delayed": {"overlap": "allow_all"}, "-skipped": {"schedule": {"cron": "0 8 * * *"}},
}  # fmt: skip
"""The jobs of each name by what their keys end with; parents are named without it."""
RUNS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "queued": ("", {"labels": {"c": "d"}}), "lost": ("", {}), "stopped": ("", {}), "waiting": ("", {}),
    "failed": ("-failed", {}), "keyed": ("-keyed", {}), "ordered": ("-ordered", {}), "alone": ("-alone", {}),
    "released": ("-root", {}), "joined": ("-root", {}), "overdue": ("-root", {}),
    "keyed behind": ("-keyed", {}), "ordered behind": ("-ordered", {}), "alone behind": ("-alone", {}),
    "late": ("-delayed", {"delay": "1h"}), "cancelled": ("-delayed", {"delay": "1h"}),
    "deduped": ("-delayed", {"dedupe": {"key": "d", "window": "1s", "mode": "debounce", "longest": "9s"}}),
}  # fmt: skip
BEGUN = ("lost", "stopped", "waiting", "failed", "keyed", "ordered", "alone", "released", "joined", "overdue")
STOPPED = {"job_runs", "job_versions", "timers", "workflows", "works"}
"""Tables of which a damaged row still stops other jobs: claims by message, bulk work, the end of a thaw."""

Runs = dict[tuple[str, str], UUID]


def prepare(database: Database, names: Sequence[str]) -> None:
    """Bring jobs and runs of each name before each duty of the services."""
    send(database, {"type": "calendar.put", "name": "none", "days": ["2020-01-01"]})
    send(database, *(job for name in names for job in jobs(name)))
    wanted = [(name, act) for name in names for act in RUNS]
    runs = dict(zip(wanted, send(database, *(trigger(*each) for each in wanted)), strict=True))
    begun = claim(database, runs, *BEGUN)
    claim(database, runs, "keyed behind", "alone behind")
    end(database, RunState.FAILED, begun["failed"])
    end(database, RunState.SUCCEEDED, [*begun["joined"], *begun["overdue"]])
    drain_some(database, never())
    left = database.rows("SELECT run_id FROM job_runs JOIN jobs USING (job_id) WHERE key LIKE '%%-left'", [])
    end(database, RunState.SUCCEEDED, database.claim(*(run_id for (run_id,) in left), executor_id=GONE).started)
    drain_some(database, never())
    end(database, RunState.SUCCEEDED, begun["released"])
    with database.transaction() as connection:
        wait_runs(
            connection,
            [Wait(one.run_id, one.attempt, GONE, timedelta(milliseconds=1)) for one in begun["waiting"]],
        )
        connection.execute(EXECUTOR, [GONE])
        connection.execute(DUE, [[job_id("default", f"{name}-skipped") for name in names]])
        connection.execute(OVERDUE, [[runs[name, "overdue"] for name in names]])
        connection.execute(LATE, [[runs[name, "late"] for name in names]])
        connection.execute(EFFECTS, [[job_id("default", f"{name}-alone") for name in names]])
        connection.execute(PENDING, [[runs[name, "cancelled"] for name in names]])
    send(database, *(each for name in names for each in requests(database, name, runs)))
    with Client(database.url) as client:
        for name in names:
            client.dead_letters.redrive(key=f"{name}-failed")


EXECUTOR: LiteralString = """
INSERT INTO executors (executor_id, name, queues, handlers, slots, last_heartbeat_at, started_at)
VALUES (%s, 'gone', '{default}', '{acts.echo}', 9, tidewheel_now(), tidewheel_now())
"""
DUE: LiteralString = "UPDATE timers SET due_at = tidewheel_now() WHERE job_id = ANY (%s)"
LATE: LiteralString = "UPDATE job_runs SET deadline_at = tidewheel_now() WHERE run_id = ANY (%s)"
OVERDUE: LiteralString = "UPDATE workflows SET deadline_at = tidewheel_now() WHERE root_run_id = ANY (%s)"
EFFECTS: LiteralString = """
INSERT INTO deferred_effects (run_id, job_id, tenant, ended_at, inputs_at, reset_failures, release_job)
SELECT gen_random_uuid(), job_id, 'default', tidewheel_now(), tidewheel_now(), true, true FROM unnest(%s) AS e (job_id)
"""
PENDING: LiteralString = """
INSERT INTO pending_cancels (run_id, tenant, reason) SELECT run_id, 'default', 'cancelled' FROM unnest(%s) AS c (run_id)
"""


def jobs(name: str) -> Iterator[dict[str, object]]:
    for part, fields in PARTS.items():
        given: dict[str, object] = {
            "target": "acts.echo", "payload": {"name": name}, "labels": {"name": name},
            "retry": {"backoff": "fixed", "initial": "1ms"}, **fields,
        }  # fmt: skip
        schedule = given.get("schedule")
        if isinstance(schedule, dict) and "after" in schedule:
            parents = cast("list[str]", schedule["after"])
            given["schedule"] = {"after": [name + parent for parent in parents]}
        yield submission(name + part, **given)


def trigger(name: str, act: str) -> dict[str, object]:
    part, fields = RUNS[act]
    return about("job.trigger", name + part, payload={"name": name, "act": act}, **fields)


def requests(database: Database, name: str, runs: Runs) -> list[dict[str, object]]:
    second = database.now().replace(microsecond=0)
    past = [(second - timedelta(seconds=each)).isoformat() for each in (100, 99)]
    batch = [{"ref": "a", "key": f"{name}-delayed"}, {"ref": "b", "key": f"{name}-delayed", "after": ["a"]}]
    scope: dict[str, object] = {"scope": "tenant", "key_prefix": f"{name}-frozen"}
    return [
        {"type": "run.cancel", "run_id": str(runs[name, "stopped"]), "request_id": f"{name}-cancel"},
        about("job.backfill", name, **{"from": past[0], "to": past[1]}, what="all", versions="current"),
        {"type": "batch.submit", "runs": batch, "on": {"finished": {"key": f"{name}-delayed"}}},
        {"type": "runs.cancel", "labels": {"name": name}, "cause": "backfill", "created_before": past[0]},
        about("job.skip", f"{name}-skipped", at="2199-01-01T08:00:00Z"),
        {"type": "freeze", **scope},
        {"type": "thaw", **scope},
    ]


def send(database: Database, *documents: Mapping[str, object]) -> list[UUID]:
    """Apply requests; return the ids of the triggered runs."""
    replies = database.apply_batch(*documents)
    assert {reply.status for reply in replies} == {ReplyStatus.ACCEPTED}, replies
    return [UUID(reply.run_id) for reply in replies if reply.run_id]


def claim(database: Database, runs: Runs, *acts: str) -> dict[str, list[Started]]:
    """Claim the runs of acts; return the attempts of each act."""
    wanted = {run_id: act for (_, act), run_id in runs.items() if act in acts}
    found: dict[str, list[Started]] = {act: [] for act in acts}
    for one in database.claim(*wanted, executor_id=GONE).started:
        found[wanted[one.run_id]].append(one)
    return found


def end(database: Database, state: RunState, begun: Sequence[Started]) -> None:
    error = {} if state is RunState.SUCCEEDED else {"error_type": "ValueError", "trace": "at line 1"}
    database.end(*(ending(one, state, executor_id=GONE, **error) for one in begun))


NAMED = SQL("to_jsonb(r)::text LIKE ANY (%s)")


def tokens(database: Database, *names: str) -> list[str]:
    """Return patterns that the rows of these names have: their keys and ids, as text or within bytes."""
    jobs = [job_id("default", name + part) for name in names for part in PARTS]
    runs = database.rows("SELECT run_id FROM runs WHERE job_id = ANY (%s)", [jobs])
    found = [*names, *map(str, jobs), *(str(run_id) for (run_id,) in runs)]
    return [f"%{each}%" for text in found for each in (text, text.encode().hex())]


def named(database: Database, table: str, *names: str, condition: LiteralString = "true") -> int:
    """Return the number of rows of a table that these names have."""
    counting = SQL("SELECT count(*) FROM {} AS r WHERE {} AND {}").format(Identifier(table), SQL(condition), NAMED)
    [(count,)] = database.rows(counting, [tokens(database, *names)])
    return int(count)


def damage(database: Database, name: str, each: Damage) -> None:
    """Damage the rows of a name, unless the constraints of the table refuse it."""
    statement = SQL("UPDATE {} AS r SET {} = {} WHERE {}").format(
        Identifier(each.table), Identifier(each.column), each.value, NAMED
    )
    found = tokens(database, name)
    with suppress(IntegrityError, DataError), database.transaction() as connection:
        connection.execute("SET LOCAL session_replication_role = replica")  # the log of changes refuses changes
        connection.execute(statement, [found])


UNDONE: Mapping[str, LiteralString] = {
    **dict.fromkeys(("workflows", "works", "backfills", "cancellations"), "finished_at IS NULL"),
    **dict.fromkeys(("job_runs", "releases", "joins", "active_runs", "order_keys", "frozen_jobs"), "true"),
    **dict.fromkeys(("deferred_effects", "pending_cancels"), "true"),
    "outbox": "publish_at <= tidewheel_now()",
}
"""The rows that services work off, by table."""
Outcome = Mapping[tuple[str, str, str], int]


def left(database: Database) -> dict[str, int]:
    """Return what the whole names have left, by table."""
    found = {table: named(database, table, *WHOLE, condition=undone) for table, undone in UNDONE.items()}
    return {table: count for table, count in found.items() if count}


def is_over(database: Database) -> bool:
    """Return True if the whole names have nothing left."""
    jobs = [job_id("default", name + part) for name in WHOLE for part in PARTS]
    runs = database.rows("SELECT FROM job_runs WHERE job_id = ANY (%s) LIMIT 1", [jobs])  # first, for it costs least
    return not runs and not left(database)


def outcome(database: Database, name: str) -> Outcome:
    """Return the number of runs of a name by job, cause and state."""
    parts = {job_id("default", name + part): part for part in PARTS}
    rows = database.rows(
        "SELECT job_id, cause, state, count(*) FROM runs WHERE job_id = ANY (%s) GROUP BY 1, 2, 3", [[*parts]]
    )
    return {(parts[job], cause, state): count for job, cause, state, count in rows}


@dataclass(frozen=True)
class Walks:
    """Services that run beside damaged rows, on topics of their own."""

    template: Template
    kafka: Mapping[str, str]
    topics: Topics

    def walk(self, found: Sequence[Damage]) -> tuple[Mapping[str, int], list[Outcome]]:
        """Run the services beside damages; return what the whole jobs have left, and their outcomes."""
        with contextmanager(lend)(self.template, Database) as database:
            executing = Executing(database, self.kafka, self.topics)
            names = [f"damaged-{number:03}" for number, _ in enumerate(found)]
            prepare(database, sorted([*names, *WHOLE], key=lambda name: name[::-1]))
            for name, each in zip(names, found, strict=True):
                damage(database, name, each)
            relaying = Relaying(database, self.kafka, self.topics.prefix)
            with (
                scheduling(database, lookahead=timedelta(0), scheduler_poll=timedelta(milliseconds=100)),
                relaying.running(topic_prefix=self.topics.prefix),
                executing.running(sweep=timedelta(milliseconds=200), slots=50),
                reaping(database),
                suppress(WaitRanOut),
            ):
                until(lambda: is_over(database), "nothing is left", seconds=SECONDS)
            return left(database), [outcome(database, name) for name in WHOLE]


@contextmanager
def reaping(database: Database) -> Generator[None]:
    """A reaper that waits for no heartbeat of an executor without a lease of its own."""
    stop, session = Shutdown(), Session(database.url_of("executor"), "reaper")
    reaper = Reaper(session, database.installation, lease=timedelta(0), max_lost=10, stop=stop)
    reaper.start()
    try:
        yield
    finally:
        stop.request()
        reaper.join()


@pytest.fixture(scope="module")
def walks(template: Template, info: StackInfo) -> Walks:
    topics = Topics(f"t{uuid4().hex[:10]}")
    make_topics(info.kafka, [topic.name for topic in topics.plan()])
    return Walks(template, info.kafka, topics)


UNUSED = {
    "activity", "api_keys", "archived_days", "calendars", "executors", "intake_offsets", "job_days", "job_rooms",
    "key_limits", "members", "message_keys", "order_failures", "processes", "quarantine",
    "retention_state", "run_days", "sign_ins", "skips", "standby", "standby_changes", "standby_records", "standby_rows",
    "task_token_keys", "tenant_deletions", "tenant_locks", "tenant_periods", "tenant_rates", "tenant_roles", "tenants",
    "unhandled_announcements",
}  # fmt: skip
"""Tables without a row of a job, or with one that no service reads to fire, claim or end."""


def test_each_table_has_a_row_of_a_job(database: Database) -> None:
    prepare(database, WHOLE[:1])
    assert {each.table for each in damages(database) if not named(database, each.table, WHOLE[0])} == UNUSED


@pytest.mark.slow
def test_a_damaged_row_of_a_job_stops_no_other_job(walks: Walks, database: Database) -> None:
    nothing, [right, *others] = walks.walk([])
    assert (nothing, others) == ({}, [right] * len(others))
    found = [each for each in damages(database, numbers=True) if each.table not in UNUSED | STOPPED]

    def stopped(some: Sequence[Damage]) -> object:
        still, outcomes = walks.walk(some)
        return still or [dict(each) for each in outcomes if each != right]

    faults: list[object] = []
    for first in range(0, len(found), TOGETHER):
        some = found[first : first + TOGETHER]
        if why := stopped(some):
            alone = [(each, fault) for each in some if (fault := stopped([each]))]
            faults += alone or [(some, why)]
    assert not faults, "\n".join(map(str, faults))
