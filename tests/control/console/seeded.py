"""A seeded installation, and the pages that every test of all pages opens.

It has a job of each kind that pages must bear: none, one and many runs, failing, waiting, very long, hostile. Its clock
is stopped, so pictures of the same code are the same. A new page gets a line in `PAGES`; a function that `seed` calls
makes the page's jobs and runs.
"""

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import LiteralString
from uuid import UUID

from tests.control.client.test_dead_letters import garble
from tests.fixtures.acts import EXECUTOR, about, ending, submission
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tests.transitions.figures import forget_figures
from tests.transitions.graphs import after, drain_some, never, play, put
from tidewheel.activity import activity
from tidewheel.control.client.client import Client
from tidewheel.ids import job_id
from tidewheel.postgres.session import Conn, OwnConnection
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.transitions.attempts import ProgressReport, save_progress
from tidewheel.transitions.claim import Claim, claim_runs

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOSTILE = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">\u202e\u05d0\u05d1"
LONG = "billing-" + "very-long-" * 24
OUTPUT = b"page 1 of 7\r\n\x1b[31mred\x1b[0m <script>\xff\n" * 3
HOSTILE_KEY = "<script>document.title='run'</script>/../\u05d0\u05d1"

PAGES: Mapping[str, str] = {
    "overview": "/",
    "jobs": "/jobs",
    "jobs-many": "/jobs?prefix=many",
    "jobs-none": "/jobs?prefix=zzz",
    "jobs-unwell": "/jobs?status=unwell",
    "jobs-grid": "/jobs?view=grid",
    "jobs-grid-day": "/jobs?view=grid&window=24h",
    "jobs-nearest": "/jobs?prefix=hourlyx",
    "job": "/jobs/hourly",
    "job-never-ran": "/jobs/never",
    "job-week": "/jobs/hourly?window=7d",
    "job-second": "/jobs/second?window=1h",
    "job-skips": "/jobs/skips?window=24h",
    "job-settings": "/jobs/hourly/settings",
    "job-next": "/jobs/holidays/next?month=2027-03",
    "job-next-second": "/jobs/second/next",
    "job-next-never": "/jobs/charge/next",
    "skip": "/jobs/holidays/skip?at=2026-11-23T01:30:00Z",
    "move": "/jobs/holidays/move?at=2026-11-23T01:30:00Z",
    "unskip": "/jobs/holidays/unskip?at=2026-11-24T01:30:00Z",
    "job-failing": "/jobs/charge",
    "job-paused": "/jobs/paused",
    "job-new": "/jobs/new",
    "job-edit": "/jobs/hourly/edit",
    "job-edit-hostile": "/jobs/{hostile_job}/edit",
    "versions": "/jobs/hourly/versions",
    "rollback": "/jobs/hourly/rollback?version=1",
    "trigger": "/jobs/hourly/trigger",
    "backfill": "/jobs/hourly/backfill",
    "release": "/jobs/hourly/release",
    "delete": "/jobs/hourly/delete",
    "restore": "/jobs/hourly/restore",
    "pause": "/jobs/hourly/pause",
    "resume": "/jobs/paused/resume",
    "job-hostile": "/jobs/{hostile_job}",
    "job-long": "/jobs/{long_job}",
    "job-unknown": "/jobs/unknown",
    "runs": "/runs",
    "runs-failed": "/runs?status=failed&last=24h",
    "runs-refused": "/runs?label=a%3Db",
    "run-queued": "/runs/{queued}",
    "run-running": "/runs/{running}",
    "run-retrying": "/runs/{retrying}",
    "run-succeeded": "/runs/{succeeded}",
    "run-failed": "/runs/{failed}",
    "run-hostile": "/runs/{hostile}",
    "runs-cancel": "/runs/cancel?run={queued}&run={running}",
    "runs-retry-failed": "/runs/retry-failed?status=failed",
    "runs-cancel-all": "/runs/cancel-all?job=slow",
    "dead-letters": "/dead-letters",
    "dead-letters-failing": "/dead-letters?job=charge",
    "dead-letters-none": "/dead-letters?kind=message&queue=none",
    "dead-letter-run": "/dead-letters/{run_letter}",
    "dead-letter-message": "/dead-letters/{message_letter}",
    "redrive": "/dead-letters/redrive?kind=run&job=charge",
    "purge": "/dead-letters/purge?kind=run",
    "bulk": "/bulk",
    "bulk-backfill": "/bulk/backfill/{backfill}",
    "bulk-cancellation": "/bulk/cancellation/{cancellation}",
    "bulk-redrive": "/bulk/redrive/{redrive}",
    "bulk-pause": "/bulk/redrive/{redrive}/pause",
    "freeze": "/freeze",
    "freeze-queue": "/freeze/scope?queue=reports",
    "runs-cancel-matching": "/runs/cancel-all?queue=reports",
    "run-unknown": "/runs/unknown",
    "run-cancel": "/runs/{running}/cancel",
    "run-retry": "/runs/{failed}/retry",
    "runs-slow": "/runs/slow",
    "workflows": "/workflows",
    "workflow": "/workflows/{workflow}",
    "workflow-resume": "/workflows/{workflow}/resume",
    "workflow-cancel": "/workflows/{workflow}/cancel",
    "batches": "/batches",
    "batch": "/batches/{batch_id}",
    "batch-all": "/batches/{batch_id}?show=all",
    "batch-open": "/batches/{open_batch}",
    "batch-close": "/batches/{open_batch}/close",
    "batch-resume": "/batches/{batch_id}/resume",
    "batch-cancel": "/batches/{open_batch}/cancel",
    "ask": "/ask?q=hou",
    "ask-nothing": "/ask?q=hourli",
    "fleet": "/fleet?executor={executor}",
    "tenants": "/admin/tenants",
    "tenant": "/admin/tenants/acme",
    "limits": "/admin/tenants/acme/limits",
    "tenant-delete": "/admin/tenants/acme/delete",
    "keys": "/admin/keys",
    "key-new": "/admin/new-key",
    "key-revoke": "/admin/keys/bbbbbbbbbb/revoke",
    "audit": "/admin/audit",
    "calendars": "/calendars",
    "calendar": "/calendars/holidays?year=2026",
    "calendar-edit": "/calendars/holidays/edit",
    "calendar-new": "/new-calendar",
    "calendar-delete": "/calendars/holidays/delete",
}
"""Each page by a name: its path, with the ids of the seeds in braces."""

Ids = dict[str, object]


def paths(ids: Mapping[str, object]) -> Mapping[str, str]:
    """Return the path of each page by its name."""
    return {name: path.format_map(ids) for name, path in PAGES.items()}


EMPTY: Mapping[str, str] = {
    name: PAGES[name] for name in ("overview", "jobs", "runs", "runs-failed", "dead-letters", "bulk", "freeze")
}
"""The pages that an installation without a job has."""


class _Counted(ClockedDatabase):
    """A database whose commits count ended runs, as those of a service do."""

    @contextmanager
    def transaction(self) -> Generator[Conn]:
        with super().transaction() as connection:
            yield connection
        assert isinstance(connection, OwnConnection)
        connection.committed()


def seed(empty: ClockedDatabase) -> Ids:
    """Fill an empty database; return the ids that paths name."""
    database = _Counted(empty.url, empty.installation)
    forget_figures(database)
    database.stop_clock(NOW - timedelta(hours=6))
    ids: Ids = {}
    _ended(database, ids)
    _workflow(database, ids)
    _last_hour(database)
    _failing(database, ids)
    _hard_text(database, ids)
    _batches(database, ids)
    _waiting(database, ids)
    _on_the_axis(database)
    _administered(database, ids)
    _bulk(database, ids)
    for statement in (_LIVES, _MEMBERS, _RELAYED):
        database.execute(statement)
    database.within(activity.write)
    database.close()
    return ids


def later(database: ClockedDatabase, seconds: float) -> None:
    """Move the clock on."""
    database.stop_clock(database.now() + timedelta(seconds=seconds))


def fail(database: ClockedDatabase, key: str, message: str, output: bytes | None = None) -> UUID:
    """Run a job that fails after two seconds."""
    started = database.begun(key)
    later(database, 2)
    ended = ending(started, RunState.FAILED, error_type="ConnectionError", error_message=message, output=output)
    database.end(ended)
    return started.run_id


def _ended(database: ClockedDatabase, ids: Ids) -> None:
    many = [submission(f"many-{at:03}", labels={"team": f"team-{at % 5}"}) for at in range(60)]
    database.apply_batch(*many)
    database.submit("never", schedule={"cron": "30 2 * * *", "timezone": "Europe/Berlin"})
    schedule = {"cron": "0 * * * *", "timezone": "America/New_York"}
    database.submit(
        "hourly", schedule=schedule, labels={"team": "billing"}, description="Sum up the hour",
        payload={"amount": 120.10, "to": ["a@example.org", None, True]},
    )  # fmt: skip
    for at in range(24):
        started = database.begun("hourly")
        later(database, 4.2 + at / 3)
        database.end(ending(started, RunState.SUCCEEDED))
        ids["succeeded"] = started.run_id
        later(database, 600)
    database.submit("paused", schedule=schedule)
    database.apply_batch(about("job.pause", "paused"))


def _failing(database: ClockedDatabase, ids: Ids) -> None:
    database.submit("charge", retry={"max_attempts": 1}, labels={"team": "payments"})
    message = "connection to db-2.internal:5432 refused: too many clients already"
    for _ in range(3):
        fail(database, "charge", message)
        later(database, 60)
    started = database.begun("charge")
    ids["failed"] = started.run_id
    with database.transaction() as connection:
        save_progress(connection, [ProgressReport(started.run_id, 1, EXECUTOR, checkpoint=_checkpoint(database.now()))])
    output = "".join(f"{_after(database.now(), ms)} {text}\n" for ms, text in _LINES).encode() + b"no time\n"
    later(database, 2)
    database.end(ending(started, RunState.FAILED, error_type="ConnectionError", error_message=message, output=output))
    later(database, 60)


def _workflow(database: ClockedDatabase, ids: Ids) -> None:
    """A graph of four jobs, of which one failed."""
    graph = {"load": [], "check": after("load"), "enrich": after("load"), "publish": after("check", "enrich")}
    put(database, graph, retry={"max_attempts": 1})
    later(database, 1)
    ids["workflow"] = _play_graph(database)


def _play_graph(database: ClockedDatabase) -> UUID:
    root = database.trigger("load")
    later(database, 1)
    play(database, lambda key: RunState.FAILED if key == "check" else RunState.SUCCEEDED, **_NO_ROW)
    return root


def _hard_text(database: ClockedDatabase, ids: Ids) -> None:
    labels, once = {"<i>x": HOSTILE[:60]}, {"max_attempts": 1}

    database.submit(HOSTILE_KEY, retry=once, labels=labels, description=HOSTILE, payload={"a": HOSTILE})
    ids["hostile"] = fail(database, HOSTILE_KEY, HOSTILE, OUTPUT)
    ids["hostile_job"] = f"id:{job_id('default', HOSTILE_KEY)}"
    key = LONG[:255]
    long = {"description": "a word " * 100, "payload": {"text": "x" * 12_000}, "labels": {"a" * 63: "b" * 63}}
    database.submit(key, retry=once, **long)
    fail(database, key, "y" * 10_000)
    ids["long_job"] = f"id:{job_id('default', key)}"


def _last_hour(database: ClockedDatabase) -> None:
    """Runs of each half minute, with a peak each five minutes, failures at last, and failing workflows."""
    before, once = database.now(), {"max_attempts": 1}
    database.submit("send-mail", retry=once, overlap="allow_all", labels={"team": "shop"})
    for nth in range(119, -1, -1):
        database.stop_clock(NOW - nth * timedelta(seconds=30) - timedelta(seconds=10))
        ends = [RunState.SUCCEEDED] * (4 + nth * 7 % 5 + (8 if nth % 10 == 1 else 0))
        ends += [RunState.FAILED] * (1 + nth % 2 if nth < 24 and nth % 3 else 0)
        _play_batch(database, "send-mail", ends, took=1 + nth % 7 / 2)
        if nth in _FAILING_WORKFLOWS:
            _play_graph(database)
    database.stop_clock(before)


def _play_batch(database: ClockedDatabase, key: str, ends: Sequence[RunState], took: float) -> None:
    """Trigger runs of a job, begin each up to a second after its time, and end them."""
    delays = (f"{900 - nth * 899 // len(ends)}ms" for nth, _ in enumerate(ends))
    runs = database.apply_batch(*({"type": "job.trigger", "key": key, "delay": each} for each in delays))
    later(database, 1)
    _end_runs(database, [UUID(run.run_id) for run in runs], ends, took, _NO_ANSWER)


def _end_runs(
    database: ClockedDatabase, runs: Sequence[UUID], ends: Sequence[RunState], took: float, error: Mapping[str, str]
) -> None:
    """Begin runs, and end them; failures with this error."""
    claims = [Claim(run, 1, 1, "test/0/0@0") for run in runs]
    started = database.within(claim_runs, database.installation, claims, executor_id=EXECUTOR).started
    later(database, took)
    started = sorted(started, key=lambda run: runs.index(run.run_id))
    ended = [ending(run, state) for run, state in zip(started, ends, strict=True)]
    database.end(*(each if each.state is RunState.SUCCEEDED else each._replace(**error) for each in ended))


def _batches(database: ClockedDatabase, ids: Ids) -> None:
    """A batch with three failed runs and its callbacks, and an open one that goes on."""
    once = {"max_attempts": 1}
    database.apply_batch(submission("price", retry=once, overlap="allow_all"), submission("import-done", retry=once))
    rows = [{"ref": f"row-{at:02}", "key": "price"} for at in range(12)]
    tomorrow = [row | {"delay": "24h"} for row in rows[5:]]
    report = {"ref": "report", "key": "price", "after": ["row-03"]}
    on = {"failed": {"key": "import-done"}, "finished": {"key": "import-done"}}
    with Client(database.url) as client:
        ids["batch_id"] = batch = client.batches.submit([*rows, report], on=on, request_id="import-prices")
        ids["open_batch"] = other = client.batches.submit(
            [*rows[:5], *tomorrow], open=True, on=on, request_id="import-stock"
        )
        runs, others = (
            [run.run_id for run in client.batches.get(each).runs if not run.parents] for each in (batch, other)
        )
    ends = [RunState.FAILED if at in {3, 7, 8} else RunState.SUCCEEDED for at in range(len(runs))]
    _end_runs(database, runs, ends, 2, _NO_PRICE)
    _end_runs(database, others[:5], ends[4:9], 3, _NO_PRICE)
    while drain_some(database, never()):
        pass
    name = f"batch/{batch}/finished"
    [called] = database.apply_batch({"type": "job.trigger", "key": "import-done", "request_id": name})
    _end_runs(database, [UUID(called.run_id)], [RunState.SUCCEEDED], 1, _NO_PRICE)


def _on_the_axis(database: ClockedDatabase) -> None:
    """Make a job of each second, one with a pause and skips, and one with holidays, a skip and a move."""
    database.stop_clock(NOW - timedelta(minutes=9))
    database.apply_batch({"type": "calendar.put", "name": "holidays-de", "days": ["2027-03-26", "2027-03-29"]})
    nightly = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
    database.submit("holidays", schedule=nightly, exclude_calendars=["holidays-de"])
    database.apply_batch(about("job.skip", "holidays", at="2026-11-24T01:30:00Z", reason="stock-taking"))
    database.apply_batch(about("job.move", "holidays", at="2027-03-10T01:30:00Z", to="2027-03-11T05:00:00Z"))
    database.submit("second", schedule={"cron": "* * * * * *"}, overlap="allow_all", catch_up="fire_all", window="1h")
    database.submit("skips", schedule={"cron": "* * * * *"}, retry={"max_attempts": 1})
    database.apply_batch(about("job.pause", "skips"))
    database.stop_clock(NOW - timedelta(minutes=2))
    database.apply_batch(about("job.resume", "skips"))
    for seconds in range(60, -1, -5):  # what is missed is caught up a minute ago: its runs wait since then
        database.stop_clock(NOW - timedelta(seconds=seconds))
        while fire_due(database):
            pass


def _waiting(database: ClockedDatabase, ids: Ids) -> None:
    database.submit("slow", queue="reports", retry={"max_attempts": 4}, overlap="allow_all")
    ids["running"] = database.begun("slow").run_id
    later(database, 0.001)  # ids of one millisecond have no order
    retried = database.begun("slow")
    database.requeue(retried, AttemptOutcome.FAILED, timedelta(minutes=90))
    later(database, 0.001)
    ids["retrying"], ids["queued"] = retried.run_id, database.trigger("slow")


def _bulk(database: ClockedDatabase, ids: Ids) -> None:
    """Dead letters of each kind, and one of each kind of bulk work."""
    garble(database, value=b'\xff{"key": "<script>", \x00\x01}' * 12)
    ids["message_letter"] = database.value("SELECT max(id) FROM dead_letters")
    ids["run_letter"] = database.value("SELECT id FROM dead_letters WHERE run_id = %s", [ids["failed"]])
    now = database.now()
    with Client(database.url) as client:
        ids["redrive"] = client.dead_letters.redrive(key="charge", rate=0.5, reason=HOSTILE[:60]).work_id
        made = client.backfill("hourly", now - timedelta(days=3), now, versions="current", max_concurrent=4)
        ids["backfill"] = made.backfill_id
        ids["cancellation"] = client.runs.cancel_matching(
            queue="none", labels=None, reason="wrong data"
        ).cancellation_id


def _administered(database: ClockedDatabase, ids: Ids) -> None:
    with Client(database.url) as client:
        client.tenants.create("acme", jobs=100, in_flight=5, triggers_per_second=2.5)
        client.tenants.create("paused")
        client.tenants.pause("paused", reason=HOSTILE[:60])
        client.calendars.put("holidays", days=_HOLIDAYS, weekdays=["SAT", "SUN"], source="ministry, 2026")
    database.apply_batch(*(submission(f"acme-{at:02}") | {"tenant": "acme"} for at in range(93)))
    database.execute(_EXECUTORS)
    ids["executor"] = database.value("SELECT executor_id FROM executors WHERE name LIKE 'host-1%'")
    database.execute(_KEYS)


def _after(at: datetime, milliseconds: int) -> str:
    return (at + timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _checkpoint(began: datetime) -> bytes:
    """The checkpoint of an attempt that failed in its third step."""
    at = round(began.timestamp() * 1000)
    times = [[name, 1, at + since, at + until, error] for name, since, until, error in _STEPS]
    return json.dumps({"tidewheel.steps": {"reserve": 2, "charge": {"id": "ch_7"}}, "tidewheel.times": times}).encode()


_STEPS = (("reserve", 20, 82, None), ("charge", 90, 518, None), ("print-label", 530, 1990, "ConnectionError"))
_LINES = (
    (15, "INFO tidewheel.handler: order 84113, 2 items"), (81, "INFO tidewheel.handler: reserved"),
    (92, "INFO shop.payments: POST /v1/charges"), (515, "INFO shop.payments: 201 in 398 ms"),
    (900, "WARNING shop.labels: db-2.internal is slow, using the limit of 1 s"),
    (1_985, "ERROR shop.labels: connection to db-2.internal:5432 refused"),
)  # fmt: skip
_HOLIDAYS = ("2026-01-01", "2026-04-03", "2026-04-06", "2026-05-01", "2026-10-03", "2026-12-25", "2026-12-26")
_EXECUTORS: LiteralString = """
INSERT INTO executors (executor_id, name, queues, handlers, slots, lease, last_heartbeat_at, started_at)
VALUES ('00000000-0000-4000-8000-00000000000e', 'host-1:4711', '{default,reports}',
        '{send-email,render-pdf,count-stock,tidy}', 4, '1 d',
        tidewheel_now() - interval '1 s', tidewheel_now() - interval '5 h'),
       ('00000000-0000-4000-8000-00000000000f', 'host-2:<b>17', '{default}', '{send-email}', 100, '1 d',
        tidewheel_now() - interval '25 h', tidewheel_now() - interval '2 d')
ON CONFLICT (executor_id) DO UPDATE
   SET name = excluded.name, queues = excluded.queues, handlers = excluded.handlers, slots = excluded.slots,
       lease = excluded.lease, last_heartbeat_at = excluded.last_heartbeat_at
"""
_KEYS: LiteralString = """
INSERT INTO api_keys (key_id, tenant, name, secret_hash, scopes, rate, created_at, expires_at, last_used_at, revoked_at)
SELECT key_id, tenant, name, sha256('secret'), scopes::text[], rate, tidewheel_now() - age, tidewheel_now() + rest,
       tidewheel_now() - used, tidewheel_now() - gone
  FROM (VALUES ('aaaaaaaaaa', '*', 'ops', '{admin}', NULL, interval '90 d', NULL, interval '3 min', NULL),
               ('bbbbbbbbbb', 'acme', 'ci-deploy', '{read,write}', 5, '9 d', interval '80 d', NULL, NULL),
               ('cccccccccc', 'default', repeat('long-', 40), '{read}', NULL, '4 d', NULL, NULL, interval '2 h'))
    AS k (key_id, tenant, name, scopes, rate, age, rest, used, gone)
"""
_LIVES: LiteralString = """
INSERT INTO processes (process_id, role, host, pid, version, settings, sent_at, last_heartbeat_at, started_at)
SELECT gen_random_uuid(), role, 'host-1', 7, '0.1.0', '{}', at, at, at - interval '5 h'
  FROM unnest('{intake,scheduler,relay}'::text[]) AS r (role), tidewheel_now() AS at
"""
_MEMBERS: LiteralString = """
INSERT INTO members (member_id, role, name, last_heartbeat_at, started_at)
SELECT process_id, role, 'host-1:7', last_heartbeat_at, started_at FROM processes WHERE role IN ('scheduler', 'relay')
"""
_RELAYED: LiteralString = "DELETE FROM outbox WHERE publish_at <= tidewheel_now()"
_NO_ANSWER = {"error_type": "TimeoutError", "error_message": "the mail server did not answer within 10 s"}
_NO_ROW = {"error_type": "ValueError", "error_message": "row 4410 has no date"}
_NO_PRICE = {"error_type": "ValueError", "error_message": "the row has no price"}
_FAILING_WORKFLOWS = (90, 71, 70)  # half minutes ago
