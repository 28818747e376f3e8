"""Jobs that together have every field, in every state, and requests with every field of theirs.

Their values are unusual: at a bound, in the longest form, or with characters that a path or a page must escape. A new
field of a model makes `test_every_field_is_written_out` fail until it has a value here.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, LiteralString, get_args
from uuid import UUID, uuid4

from pydantic import BaseModel

from tests.control.client.test_dead_letters import redrive
from tests.fixtures.acts import EXECUTOR, HANDLER, ending
from tests.fixtures.database import ClockedDatabase
from tests.intake.waiting import completing, wait_for
from tests.scheduler.firing import fire_due
from tests.transitions.graphs import drain_some, never
from tidewheel.control.client.client import Client
from tidewheel.jobs.batches import BatchCallbacks, BatchRun
from tidewheel.jobs.keys import ConcurrencyKey, JobDedupe, OrderingKey, TriggerDedupe
from tidewheel.jobs.requests import AnyRequest
from tidewheel.jobs.retry import RetryPolicy
from tidewheel.jobs.schedule import ParentSpec, ScheduleSpec
from tidewheel.jobs.spec import JobSpec, WorkflowSpec
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.jobs.targets import TARGETS
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.schemas.generated.records import Reply, ReplyStatus

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
QUEUE = "reports-é".encode().hex()
ROOT, MANUAL, KAFKA, SHELL, DELAY, CHILD = "root of/all 50%", "manual ünï", "k.1", "shell", "delay", "child/of it"
SKIPPED = "skipped"
DELETED = "deleted/job"
TENANT = "default"

JOBS: Mapping[str, Mapping[str, object]] = {
    ROOT: {
        "schedule": {
            "cron": ["30 2 29 2 *", "0 0 1 1 0"], "timezone": "Australia/Lord_Howe", "dst_gap": "skip",
            "dst_overlap": "both",
        },
        "start_at": "1970-01-01T00:00:00Z", "end_at": "9999-12-31T23:59:59.999999Z", "max_runs": 100_000,
        "jitter": "33.333333%", "target": {"type": "handler", "name": "send-email"}, "lane": "critical", "priority": 9,
        "queue": QUEUE, "overlap": "buffer_all", "catch_up": "fire_all", "on_resume": "fire_all", "window": "90d",
        "pause_on_failure": 1_000_000, "exclude_calendars": ["every-day"], "include_calendars": ["some-days"],
        "on_excluded": "next_business_day", "on_failure": MANUAL, "delivery": "at_most_once",
        "retry": {
            "max_attempts": 1000, "backoff": "exponential", "initial": "0.001s", "factor": 1000, "max": "30d",
            "jitter": "10%", "non_retryable": ["ValueError", "a/b"],
        },
        "concurrency_key": {"key": "{payload.customer.id}/x", "at_once": 100_000, "rate": "1/day", "burst": 100_000},
        "workflow": {"timeout": "90d", "overlap": "whole"}, "start_to_close": "24h", "schedule_to_start": "90d",
        "schedule_to_close": "2160h", "heartbeat": "24h",
        "labels": {"team": "<b>", "a/b": ""}, "description": "two\nlines \u202e", "paused": True,
        "payload": {"customer": {"id": 7}, "amount": 120.10, "deep": [[[None]]]},
    },
    MANUAL: {
        "schedule": {"manual": True},
        "target": {
            "type": "http", "url": "https://example.org:8443/a%20b?x=1#y", "method": "PATCH",
            "headers": {"X-One": "1", "Authorization": {"secret": "CRM"}}, "async": True, "async_timeout": "20d",
        },
        "retry": {"backoff": "intervals", "intervals": ["1ms", "30d"], "jitter": "0.000001%"},
        "dedupe": {"key": "d/{payload.id}", "window": "30d", "mode": "debounce", "longest": "300d"},
        "ordering_key": {"key": "o/{payload.id}", "on_failure": "skip"}, "payload": {"id": 1},
    },
    KAFKA: {
        "schedule": {"interval": "400d", "anchor": "1970-01-01T00:00:00Z"}, "jitter": "24h",
        "target": {
            "type": "kafka", "topic": "orders.1", "key": "k", "headers": {"a": "b"}, "await_reply": True,
            "reply_timeout": "20d",
        },
        "payload_base64": "AP8=", "overlap": "cancel_other",
    },
    SHELL: {
        "schedule": {"once": "2198-12-31T23:59:59.999999+14:00"},
        "target": {
            "type": "shell", "argv": ["/bin/echo", ""], "cwd": "/", "env": {"A": "1us"}, "memory_bytes": 1 << 20,
            "cpu_seconds": 86_400,
        },
        "retry": {"backoff": "fixed", "initial": "30d", "jitter": "100%"}, "ordering_key": "o/1", "payload": None,
    },
    DELAY: {
        "schedule": {"fixed_delay": "400d", "min": "1s", "max": "400d"}, "concurrency_key": "one",
        "target": {"type": "lambda", "function": "report", "qualifier": "$LATEST", "region": "eu-west-1"},
    },
    CHILD: {"schedule": {"after": [{"job": ROOT, "when": "always"}]}, "target": "send-email"},
    SKIPPED: {"schedule": {"after": [ROOT]}, "target": "send-email"},
}  # fmt: skip
"""The jobs by their keys, without `key`."""

_PARTS: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("job.trigger", "dedupe", TriggerDedupe), ("job.trigger", "ordering_key", OrderingKey),
    ("batch.submit", "runs", BatchRun), ("batch.submit", "on", BatchCallbacks),
)  # fmt: skip
_NESTED: Mapping[str, type[BaseModel]] = {
    "retry": RetryPolicy, "concurrency_key": ConcurrencyKey, "ordering_key": OrderingKey, "dedupe": JobDedupe,
    "workflow": WorkflowSpec,
}  # fmt: skip


def fields_of_jobs() -> set[str]:
    """Return the path of every field of a job, from the models that read it."""
    found = set(_names(JobSpec))
    for name, model in _NESTED.items():
        found |= {f"{name}.{field}" for field in _names(model)}
    for schedule in get_args(ScheduleSpec):
        found |= {f"schedule.{field}" for field in _names(schedule)}
    for kind, target in TARGETS.items():
        found |= {f"target.{kind}.{field}" for field in _names(target.model)}
    return found | {f"schedule.after.{field}" for field in _names(ParentSpec)}


def fields_written() -> set[str]:
    """Return the paths of the fields that `JOBS` has."""
    return {"key", *(path for job in JOBS.values() for path in _paths(job))}


def fields_of_requests() -> set[tuple[str, str]]:
    """Return each type of request with each of its fields."""
    return {
        (str(get_args(model.model_fields["type"].annotation)[0]), field)
        for model in get_args(AnyRequest)
        for field in _names(model)
    } | {(kind, f"{name}.{field}") for kind, name, model in _PARTS for field in _names(model)}


def _names(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield field.alias or name


def _paths(job: Mapping[str, object]) -> Iterator[str]:
    for name, value in job.items():
        yield name
        within = as_object(value) or {}
        if name == "schedule":
            yield from (f"schedule.after.{field}" for one in _parents(within) for field in as_object(one) or {})
        if name in {"target", "schedule", *_NESTED}:
            place = f"{name}.{within['type']}" if name == "target" and within else name
            yield from (f"{place}.{field}" for field in within)


def _parents(schedule: Mapping[str, Any]) -> list[object]:
    return schedule.get("after", [])


class Installation:
    """An installation that has `JOBS` in every state.

    Attributes:
        keys: The keys of its jobs.
        runs: A run of each job in each state, by key and state.
        sent: The types of the requests sent, each with each field that it had.
    """

    def __init__(self, database: ClockedDatabase) -> None:
        self.database = database
        self.keys: list[str] = []
        self.runs: dict[tuple[str, str], UUID] = {}
        self.roots: list[UUID] = []
        self.batches: list[UUID] = []
        self.backfills: list[UUID] = []
        self.redrives: list[UUID] = []
        self.limited: list[UUID] = []
        self.sent: set[tuple[str, str]] = set()

    def send(self, kind: str, **fields: object) -> Reply:
        """Send a request with an id, a tenant and a trace; fail unless it is accepted."""
        given: Mapping[str, object] = fields
        document = {"type": kind, "request_id": str(uuid4()), "tenant": TENANT, "traceparent": TRACE} | given
        self.sent |= {(kind, name) for name in document}
        for name, value in given.items():
            parts = [as_object(each) for each in as_list(value) or [value]]
            self.sent |= {(kind, f"{name}.{field}") for part in parts if part for field in part}
        [reply] = self.database.apply_batch(document)
        assert reply.status is ReplyStatus.ACCEPTED, (kind, reply.errors)
        return reply

    def trigger(self, key: str, name: str, **fields: object) -> UUID:
        """Trigger a job and keep the run by a name."""
        self.runs[key, name] = UUID(self.send("job.trigger", key=key, **fields).run_id)
        return self.runs[key, name]


def bring_into_every_state(database: ClockedDatabase) -> Installation:
    """Submit `JOBS`, and bring runs of each into every state."""
    made = Installation(database)
    made.send("calendar.put", name="every-day", days=["9999-12-31"], weekdays=["SAT", 0], source="<b>hand</b>")
    made.send("calendar.put", name="some-days", days=["2027-02-28"], weekdays=["MON", "TUE", "WED"])
    made.send("calendar.put", name="gone", days=["2027-01-01"])
    made.send("calendar.delete", name="gone")
    for key, job in JOBS.items():
        made.send("job.submit", job={"key": key, **job}, if_version=0)
        made.keys.append(key)
    for key in JOBS:
        _each_end(made, key)
    _gates(made)
    _times(made)
    _workflows(made)
    _scopes(made)
    return made


_FREE: Mapping[str, Mapping[str, object]] = {
    ROOT: {"overlap": "allow_all"}, KAFKA: {"overlap": "allow_all"}, DELAY: {"overlap": "allow_all"}
}  # fmt: skip


def _free(key: str, nth: int) -> Mapping[str, object]:
    """Return what makes a trigger of a job free of all its gates."""
    given = {**_FREE.get(key, {}), "payload": {"id": nth, "customer": {"id": nth}}}
    if "ordering_key" in JOBS[key]:
        given["ordering_key"] = {"key": f"{key[0]}{nth}", "on_failure": "skip"}
    if "concurrency_key" in JOBS[key]:
        given["concurrency_key"] = f"{key[0]}{nth}"
    return given


def _each_end(made: Installation, key: str) -> None:
    """Bring a run of a job into each state that an executor or a request gives it."""
    database = made.database
    free = (_free(key, nth) for nth in range(1, 100))

    def begun(name: str) -> Any:  # noqa: ANN401 - a claimed attempt
        return database.begin(made.trigger(key, name, **_without_dedupe(key, next(free))))

    database.requeue(begun("retrying"), AttemptOutcome.FAILED, timedelta(days=30))
    database.requeue(begun("lost"), AttemptOutcome.LOST, timedelta(days=30))
    database.requeue(begun("due again"), AttemptOutcome.TIMED_OUT)
    begun("running")
    database.begin(made.trigger(key, "silent", **_without_dedupe(key, next(free))), executor_id=uuid4())
    begun("cancelling")
    made.send("run.cancel", run_id=str(made.runs[key, "cancelling"]), reason="not\nneeded")
    for name in ("waiting", "completed", "refused"):
        wait_for(database, begun(name), timeout=timedelta(days=20), heartbeat=timedelta(seconds=90))
    for name in ("completed", "refused"):
        _complete(made, key, name)
    database.end(ending(begun("succeeded"), RunState.SUCCEEDED, result=b'{"n": 1.10}', output=b"\xff\x1b[1m<b>"))
    failed: dict[str, Any] = {
        "error_type": "ValueError",
        "error_message": "<b>no",
        "trace": "at line 1",
        "output": b"hello\r\n",
    }
    database.end(ending(begun("failed"), RunState.FAILED, **failed))
    database.end(ending(begun("timed out"), RunState.TIMED_OUT, reason="start_to_close", error_type="Late"))
    database.end(ending(begun("cancelled"), RunState.CANCELLED, reason="by its handler"))
    database.end(ending(begun("retried"), RunState.FAILED, **failed))
    retried = made.send("run.retry", run_id=str(made.runs[key, "retried"]), delay="30d", reason="again")
    made.runs[key, "retry"] = UUID(retried.run_id)
    made.send("run.retry", run_id=str(made.runs[key, "lost"]), attempt=2)
    made.trigger(key, "queued", **_without_dedupe(key, next(free)))
    made.trigger(key, "scheduled", delay="400d", **_without_dedupe(key, next(free)))


def _without_dedupe(key: str, fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a trigger with a dedupe of its own, if its job has one that would merge them."""
    if "dedupe" not in JOBS[key]:
        return dict(fields)
    return {**fields, "dedupe": {"key": str(uuid4()), "window": "1ms", "mode": "reject"}}


def _complete(made: Installation, key: str, name: str) -> None:
    run_id = made.runs[key, name]
    attempt = made.database.value("SELECT attempt FROM job_runs WHERE run_id = %s", [run_id])
    token = made.database.installation.task_tokens.sign(run_id, attempt)
    made.send("run.heartbeat", token=token, progress={"done": 1.10}, checkpoint=[1, None])
    ended: dict[str, object] = {"status": "succeeded", "result": {"n": 1.10}, "next_in": "90s"}
    if name == "refused":
        ended = {"status": "failed", "error_type": "A/B", "error_message": "no\n<b>", "permanent": True}
    given = completing(token, **ended)
    del given["type"]
    made.send("run.complete", **given)


def _gates(made: Installation) -> None:
    """Bring runs before each gate: overlap, concurrency key, order, and the limits of the tenant."""
    database = made.database
    made.trigger(ROOT, "active", overlap="buffer_all", concurrency_key="k1", priority=0, labels={"a": "b"})
    made.trigger(ROOT, "behind", overlap="buffer_all", concurrency_key="k1")
    for name in ("active", "behind"):
        made.trigger(CHILD, name, overlap="buffer_all")
        database.claim(made.runs[CHILD, name])
    for name in ("first of key", "second of key"):
        made.trigger(DELAY, name, overlap="allow_all", concurrency_key="one")
    database.claim(made.runs[DELAY, "first of key"])
    database.claim(made.runs[DELAY, "second of key"])
    for name in ("first", "second"):
        made.trigger(
            SHELL, f"{name} in order", run_at=database.now(), ordering_key={"key": "o/9", "on_failure": "block"}
        )
    blocked = database.begin(made.runs[SHELL, "first in order"])
    database.end(ending(blocked, RunState.FAILED, error_type="ValueError"))
    dedupe = {"key": "d/1", "window": "1h", "mode": "debounce", "longest": "10h"}
    for name in ("debounced", "debounced again"):
        made.trigger(MANUAL, name, dedupe=dedupe, payload_base64="AP8=", ordering_key="o/77")


def _times(made: Installation) -> None:
    """Skip, move and fire occurrences; pause, resume, roll back, backfill; delete a job."""
    now = made.database.now()
    made.send("job.submit", job={"key": "hourly/1", "schedule": {"cron": "0 * * * *"}, "target": "send-email"})
    made.keys.append("hourly/1")
    hour = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    at = [(hour + timedelta(hours=n)).isoformat() for n in range(5)]
    made.send("job.skip", key="hourly/1", at=at[2], reason="<b>")
    made.send("job.move", key="hourly/1", at=at[3], to=(hour + timedelta(hours=3, minutes=7)).isoformat(), reason="r")
    made.send("job.skip", key="hourly/1", at=at[4])
    made.send("job.unskip", key="hourly/1", at=at[4], reason="r")
    poll = {"fixed_delay": "1h", "min": "1s", "max": "1h"}
    made.send("job.submit", job={"key": "poll/1", "schedule": poll, "target": "send-email"})
    made.keys.append("poll/1")
    made.database.stop_clock(hour + timedelta(seconds=1))
    while fire_due(made.database):
        pass
    [(polled,)] = made.database.rows("SELECT run_id FROM job_runs JOIN jobs USING (job_id) WHERE key = 'poll/1'")
    made.database.succeed(made.database.begin(polled))
    made.send("job.reschedule", key="poll/1", next_in="90s", reason="r")
    made.send("job.submit", job={"key": "hourly/1", "schedule": {"cron": "30 * * * *"}, "target": "nobody/has it"})
    range_ = {"from": (hour - timedelta(days=2)).isoformat(), "to": (hour - timedelta(days=1)).isoformat()}
    ways = {"what": "all", "versions": "current", "overlap": "allow_all", "max_concurrent": 1000}
    for change in (None, "pause", "resume", "cancel"):
        reply = made.send(
            "job.backfill", key="hourly/1", reason="late", order="newest_first", dry_run=False, **range_, **ways
        )
        made.backfills.append(UUID(reply.backfill_id))
        if change == "resume":
            made.send("backfill.pause", backfill_id=reply.backfill_id, reason="r")
        if change is not None:
            made.send(f"backfill.{change}", backfill_id=reply.backfill_id, reason="r")
    made.trigger("hourly/1", "without an executor")
    made.send("job.rollback", key="hourly/1", version=1, if_version=2, reason="back")
    made.send("job.pause", key="hourly/1", until=(hour + timedelta(days=3)).isoformat(), reason="<b>")
    made.send("job.resume", key=KAFKA, reason="r")
    made.send("job.submit", job={"key": DELETED, **JOBS[MANUAL]})
    made.trigger(DELETED, "of a deleted job")
    made.send("job.delete", key=DELETED, if_version=1, reason="gone")
    made.keys.append(DELETED)


def _workflows(made: Installation) -> None:
    """A workflow in each of its states, and batches."""
    for change in ("", "failed", "pause", "cancel", "resume"):
        free = {"overlap": "allow_all", "concurrency_key": f"w{change}"}
        started = made.database.begin(made.trigger(ROOT, f"root {change}", **free))
        ended = RunState.FAILED if change == "failed" else RunState.SUCCEEDED
        made.database.end(ending(started, ended, error_type="ValueError" if change == "failed" else None))
        made.roots.append(started.run_id)
        if change == "resume":
            made.send("workflow.pause", run_id=str(started.run_id))
        if change not in {"", "failed"}:
            made.send(f"workflow.{change}", run_id=str(started.run_id), reason="<b>")
    while drain_some(made.database, never()):
        pass
    runs = [
        {"ref": "a/1", "key": "child-less", "payload": {"id": 70}, "delay": "1us"},
        {"ref": "b", "key": "child-less", "payload_base64": "AP8=", "after": [{"ref": "a/1", "when": "failure"}]},
    ]
    made.send("job.submit", job={"key": "child-less", "schedule": "manual", "target": "send-email"})
    made.keys.append("child-less")
    back = {"key": "child-less", "payload": {"x": "<b>"}}
    on = {"succeeded": back, "failed": back, "finished": {"key": "child-less"}}
    batch = made.send("batch.submit", runs=runs, on=on, open=True).batch_id
    from_run = made.database.value("SELECT run_id FROM job_runs WHERE workflow_run_id = %s LIMIT 1", [batch])
    made.send("batch.add", batch_id=batch, from_run_id=str(from_run), runs=[{"ref": "c", "key": "child-less"}])
    made.send("batch.close", batch_id=batch)
    made.batches.append(UUID(batch))
    made.runs["batch", "run of a batch"] = from_run


def _scopes(made: Installation) -> None:
    """Freeze, thaw and cancel by scopes; limit the tenant so that its runs wait."""
    made.send("freeze", scope="tenant", queue=QUEUE, labels={"team": "<b>"}, key_prefix=ROOT[:4], reason="r", by="me")
    made.send("freeze", scope="fleet", queue="none", reason="r", by="me")
    made.send("freeze", scope="tenant", queue="none", labels={"a": "b"}, key_prefix="z")
    made.send("thaw", scope="tenant", queue="none", labels={"a": "b"}, key_prefix="z")
    database = made.database
    now = database.now().isoformat()
    made.send(
        "runs.cancel", key=ROOT, labels={"team": "<b>"}, queue=QUEUE, lane="critical", handler="send-email",
        cause="backfill", created_before=now, include_started=False, reason="<b>",
    )  # fmt: skip
    with Client(database.url) as client:
        made.redrives.append(redrive(client, database, key=MANUAL, status="failed").work_id)
        client.limits.set("o*", at_once=1, rate="1/day", burst=1)
        client.tenants.create("limited")
        made.send("job.submit", tenant="limited", job={"key": "limited", "schedule": "manual", "target": HANDLER})
        for nth in range(20):
            if nth == 2:
                database.claim(made.limited[0])
                client.tenants.limit("limited", triggers_per_second=1, in_flight=1)
                database.installation.rates.forget()
            made.limited.append(UUID(made.send("job.trigger", tenant="limited", key="limited").run_id))
    database.execute(_EXECUTOR, {"executor_id": EXECUTOR, "queues": ["default", QUEUE], "handlers": [HANDLER]})
    database.execute(_CANCEL, [made.runs[MANUAL, "queued"]])


_EXECUTOR: LiteralString = """
INSERT INTO executors (executor_id, name, queues, handlers, slots, lease, last_heartbeat_at, started_at)
VALUES (%(executor_id)s, 'host:<b>', %(queues)s, %(handlers)s, 4, '1 d', tidewheel_now(), tidewheel_now())
ON CONFLICT (executor_id) DO UPDATE SET last_heartbeat_at = excluded.last_heartbeat_at, queues = excluded.queues
"""
_CANCEL: LiteralString = "INSERT INTO pending_cancels (run_id, tenant, reason) VALUES (%s, 'default', 'cancelled')"
