"""The database is lost and restored from a base backup, and Kafka is ahead of it.

`tidewheel admin restore` is killed in each of its steps and repeated. Executors of the lost database live meanwhile.
"""

import signal
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest
from confluent_kafka import TopicPartition

from tests.faults.backed_up_server import Server, backed_up_server, restore, services_on
from tests.faults.workload import Workload, now
from tests.fixtures.oracle import Oracle
from tests.fixtures.services import LONG_LEASE, Fleet, admin_of, until
from tests.relay.topics import set_topic_config
from tidewheel.control.client.client import Client
from tidewheel.control.occurrence_audit.result import run_audit
from tidewheel.errors import Unavailable
from tidewheel.ids import run_id
from tidewheel.local.stack import StackInfo
from tidewheel.runs import Cause
from tidewheel.schemas.codec import encode
from tidewheel.schemas.generated.records import Cause as RecordedCause
from tidewheel.schemas.generated.records import RunRequest

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

SKIPPING = ("frozen", "rested")
SKIPPED: LiteralString = """
    SELECT j.key, at FROM skips AS s JOIN jobs AS j ON j.job_id = s.job_id
     CROSS JOIN LATERAL generate_series(s.first_at, s.last_at, interval '1 second') AS at
     WHERE j.key = ANY (%s) AND s.reason IN ('frozen', 'paused')
       AND NOT EXISTS (SELECT FROM runs AS r WHERE r.job_id = s.job_id AND r.scheduled_at = at)
"""
_STEPS = ("begun", "request:exit:4", "timers", "runs", "ends", "messages", "unknown", "open")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of this test's own."""
    with backed_up_server(tmp_path) as made:
        yield made


@pytest.fixture
def fleet(server: Server, info: StackInfo, tmp_path: Path) -> Iterator[Fleet]:
    """Services on a database of that server."""
    with services_on(server, info, tmp_path) as made:
        yield made


@contextmanager
def expired_before(fleet: Fleet, since: datetime, bound: str, value: str, unbound: str) -> Generator[None]:
    """Let Kafka keep completions for five minutes or by size, and drop the first of each partition.

    The restore reads from ten minutes before the backup.
    """
    admin, topic = admin_of(fleet.kafka), fleet.topics.completions
    assert since > now() - timedelta(minutes=5)
    set_topic_config(fleet.kafka, topic, {bound: value})
    firsts = [TopicPartition(topic, each, 1) for each in admin.list_topics(topic, timeout=30).topics[topic].partitions]
    dropped = [drop.exception(30) is None for drop in admin.delete_records(firsts).values()]
    assert any(dropped)  # a partition without a message has none to drop
    try:
        yield
    finally:
        set_topic_config(fleet.kafka, topic, {bound: unbound})


def test_restored_database_continues_where_kafka_ends(server: Server, fleet: Fleet, oracle: Oracle) -> None:
    first = now()
    work = Workload(fleet, oracle)
    work.submit()
    at_most_once = {"key": "once-only", "schedule": "manual", "target": "gated", "delivery": "at_most_once"}
    gate = fleet.folder / "never"
    fleet.ask({"type": "job.submit", "job": {**at_most_once, "payload": str(gate)}})
    fleet.start_all(LEASE=LONG_LEASE)
    work.wait_recovered(now())
    stalled = fleet.folder / "stalled"
    submit_changing(fleet, oracle, stalled)
    submit_skipping(fleet, oracle)
    server.back_up()

    # After the backup: triggers, a new job, an edit, a pause with its end, a cancel, and runs that begin.
    work.trigger("errand", 20)
    work.trigger("shaky", 2)
    chain = {"key": "chain", "schedule": {"fixed_delay": "1s"}, "target": "note"}
    follower = {"key": "follower", "schedule": {"after": [{"job": "late"}]}, "target": "note"}
    for job in ({"key": "late", "schedule": {"interval": "1s"}, "target": "note"}, chain, follower):
        fleet.ask({"type": "job.submit", "job": job})
    fleet.ask({"type": "job.submit", "job": {"key": "tock", "schedule": {"interval": "2s"}, "target": "note-sync"}})
    cancelled = fleet.ask({"type": "job.trigger", "key": "errand", "delay": "1h"})
    fleet.flush()
    held = work.hold()
    once = fleet.ask({"type": "job.trigger", "key": "once-only"})
    fleet.flush()
    oracle.wait_answered()
    fleet.ask({"type": "run.cancel", "run_id": oracle.replies()[cancelled].run_id})
    batch = fleet.ask({"type": "batch.submit", "runs": [{"ref": ref, "key": "errand"} for ref in ("a", "b")]})
    over = next(each.run_id for each in oracle.completions() if each.job_key == "errand")
    retry = fleet.ask({"type": "run.retry", "run_id": over})
    fleet.flush()
    oracle.wait_answered()
    held.wait_begun(1)
    changed_at = change_jobs(fleet, oracle)
    skipped = skip_occurrences(fleet)
    run_of_once = str(oracle.replies()[once].run_id)
    fleet.until(lambda: any(each.run_id == run_of_once for each in oracle.effects()), "the at-most-once run has begun")
    done_by = now() + timedelta(seconds=3)
    again = {"tick", "tock", "late", "chain", *SKIPPING}
    fleet.until(lambda: _has_fired(oracle, again, done_by), "jobs fire after the backup")

    old = next(each for each in fleet.services if each.role == "executor")
    old.pause()
    for each in fleet.services:
        if each is not old:
            each.kill()
    old.meant_to_die = True
    fleet.database.close()
    server.lose()
    oracle.reader.read_to_end()
    unended = {each.run_id for each in oracle.effects()} - oracle.completed().keys()  # in flight, and begin again
    forged = forge_run(fleet, oracle)
    server.bring_back()
    other = psycopg.connect(fleet.database.url)
    for bound in (("retention.ms", "300000", str(30 * 86_400_000)), ("retention.bytes", "1000000000", "-1")):
        with expired_before(fleet, first, *bound):
            refused = restore(fleet, "--dry-run")
            assert refused.returncode != 0, refused.stdout
            assert f"{fleet.topics.completions}: Kafka may have dropped messages" in refused.stderr
    for option, wrong in (("--since", "+1h"), ("--since", "1s"), ("--stopped-at", "+1h"), ("--stopped-at", "1d")):
        refused = restore(fleet, "--yes", option, wrong)
        assert (refused.returncode, refused.stderr.split(":")[1].strip()) == (5, option), refused
    counted = restore(fleet, "--dry-run", "--output", "json")
    assert counted.returncode == 0, counted.stderr
    for step in _STEPS:
        killed = restore(fleet, "--yes", failpoint=step)
        assert killed.returncode == -signal.SIGKILL, f"{step}: {killed.returncode} {killed.stderr} {killed.stdout}"
        if step == "begun":
            old.resume()
            differs = restore(fleet, "--yes", "--since", "1d")
            assert differs.returncode != 0, differs
            assert "has begun with" in differs.stderr
        else:
            with pytest.raises(psycopg.OperationalError):
                other.execute("SELECT")  # each call ends the sessions of others
            other.close()
            other = psycopg.connect(fleet.database.url)
        if step != "open":
            with pytest.raises(Unavailable, match="read-only"), Client(fleet.database.url) as client:
                client.pause("tick")
    until(lambda: not old.alive, f"the old executor has ended: {old.log_tail()}")
    assert old.has_logged("the database was restored"), old.log_tail()
    ended = restore(fleet, "--yes")
    assert ended.returncode == 0, ended.stderr
    other.close()
    assert fleet.database.value("SHOW default_transaction_read_only") == "off"
    assert fleet.database.value("SELECT count(*) FROM runs WHERE run_id = %s", [forged]) == 0

    restarted = now()
    fleet.start_all(LEASE=LONG_LEASE)
    held.wait_begun(7)  # five attempts are left out: a sweep may have claimed them, and no message of them is known
    held.let_go()
    stalled.touch()
    work.trigger("errand", 5)
    work.recurring = ("tick", "tock", "late", "chain", "edited", *SKIPPING)
    fleet.until(lambda: _has_fired(oracle, {"tick", "tock", "late", "chain"}, restarted), "jobs fire after the restore")
    work.finish()
    fleet.stop()
    oracle.reader.read_to_end()
    begun = {each.run_id for each in oracle.completions() if each.job_key == "stalled"}
    assert begun
    cancel = str(oracle.replies()[cancelled].run_id)
    check(fleet, oracle, in_flight={held.run_id} | begun | unended, failed={run_of_once}, cancelled=cancel)
    changed = [each for each in oracle.completions() if each.job_key in {"gone", "stalled"}]
    assert not [each for each in changed if each.scheduled_at > changed_at]
    assert skipped <= skipped_instants(fleet)
    assert fleet.database.rows("SELECT batch_id FROM batches") == [(UUID(oracle.replies()[batch].batch_id),)]
    retries = fleet.database.rows("SELECT run_id FROM runs WHERE cause = 'retry'")
    assert retries == [(UUID(oracle.replies()[retry].run_id),)]
    assert fleet.database.value("SELECT count(*) FROM runs AS r JOIN batch_runs AS b USING (run_id)") == 2
    audit = run_audit(fleet.database.url, first, now())
    assert audit.passed, audit.findings


def submit_changing(fleet: Fleet, oracle: Oracle, gate: Path) -> None:
    """Submit jobs that change after the backup; the runs of one wait for the gate."""
    note = {"schedule": {"interval": "1s"}, "target": "note"}
    stalled = {"schedule": {"interval": "1s"}, "target": "gated", "payload": str(gate), "overlap": "allow_all"}
    for job in ({"key": "edited", **note}, {"key": "gone", **note}, {"key": "stalled", **stalled}):
        fleet.ask({"type": "job.submit", "job": job})
    fleet.flush()
    oracle.wait_answered()


def change_jobs(fleet: Fleet, oracle: Oracle) -> datetime:
    """Edit, delete and pause these jobs once each has fired; return a time after their last occurrences."""
    since = now()
    fleet.until(lambda: _has_fired(oracle, {"edited", "gone"}, since), "they fire after the backup")
    fleet.until(
        lambda: any(each.job_key == "stalled" and each.at > since for each in oracle.effects()), "a run is stalled"
    )
    fleet.ask({"type": "job.submit", "job": {"key": "edited", "schedule": {"interval": "2s"}, "target": "note-sync"}})
    fleet.ask({"type": "job.delete", "key": "gone"})
    fleet.ask({"type": "job.pause", "key": "stalled"})
    fleet.flush()
    oracle.wait_answered()
    return now()


def submit_skipping(fleet: Fleet, oracle: Oracle) -> None:
    """Submit jobs of which a freeze and a pause skip occurrences after the backup."""
    for key in SKIPPING:
        fleet.ask({"type": "job.submit", "job": {"key": key, "schedule": {"interval": "1s"}, "target": "note"}})
    fleet.flush()
    oracle.wait_answered()
    fleet.ask({"type": "job.pause", "key": "rested", "until": (now() + timedelta(seconds=8)).isoformat()})
    fleet.flush()
    oracle.wait_answered()


def skip_occurrences(fleet: Fleet) -> set[tuple[str, datetime]]:
    """Freeze one job, and wait for the end of the pause of the other; return the skipped occurrences."""
    held = "SELECT count(*) FROM timers WHERE hold_reason = 'freeze'"
    with Client(fleet.database.url) as client:
        client.freezes.freeze(key_prefix="frozen")
        fleet.until(lambda: fleet.database.value(held) == 1, "the timer is held")
        held_at = now()
        fleet.until(lambda: now() > held_at + timedelta(seconds=2), "occurrences come due under the freeze")
        client.freezes.thaw(key_prefix="frozen")
    fleet.until(lambda: {key for key, _ in skipped_instants(fleet)} == {*SKIPPING}, "occurrences are skipped")
    return skipped_instants(fleet)


def skipped_instants(fleet: Fleet) -> set[tuple[str, datetime]]:
    """Return key and instant of each occurrence that is recorded as skipped, and that has no run."""
    return {(str(key), at) for key, at in fleet.database.rows(SKIPPED, [[*SKIPPING]])}


def forge_run(fleet: Fleet, oracle: Oracle) -> UUID:
    """Produce the message of a run that no relay has signed; return the run."""
    end = next(each for each in oracle.completions() if each.job_key == "errand")
    job = UUID(end.job_id)
    request = RunRequest(
        run_id=str(run_id(job, now(), Cause.TRIGGER)),
        job_id=end.job_id,
        job_version=end.job_version,
        attempt=1,
        cause=RecordedCause.TRIGGER,
        shard=0,
        scheduled_at=now(),
        publish_at=now(),
        definition=b"",
    )
    fleet.produce(fleet.topics.runs("default", end.lane.value), request.run_id.encode(), encode(request))
    fleet.flush()
    return UUID(request.run_id)


def _has_fired(oracle: Oracle, keys: set[str], since: datetime) -> bool:
    oracle.look()
    return keys <= {each.job_key for each in oracle.completions() if each.scheduled_at > since}


def check(fleet: Fleet, oracle: Oracle, *, in_flight: set[str], failed: set[str], cancelled: str) -> None:
    """Compare effects, messages and rows: nothing is lost, and only what was in flight repeats."""
    problems: list[str] = []
    completed, events = oracle.completed(), defaultdict[str, set[str]](set)
    for each in oracle.completions():
        events[each.run_id].add(each.event_id)
    problems += [f"{run} has several completions: {ids}" for run, ids in events.items() if len(ids) > 1]
    attempts = Counter((each.run_id, each.attempt) for each in oracle.effects())
    problems += [f"{run} attempt {attempt} took effect {n} times" for (run, attempt), n in attempts.items() if n > 1]
    effects = Counter(each.run_id for each in oracle.effects())
    for run, end in completed.items():
        wanted = {"shaky": 2, "lost-cause": 2}.get(end.job_key, 1)
        if end.status.value in ("skipped", "cancelled"):
            wanted = 0
        if effects[run] != wanted and not (run in in_flight and effects[run] == wanted + 1):
            problems.append(f"{end.job_key} {run} took effect {effects[run]} times, not {wanted}: {end}")
    problems += [f"{run} took effect and never ended" for run in effects if run not in completed]
    for request, asked in fleet.asked.items():
        if asked.document["type"] == "job.trigger" and oracle.replies()[request].run_id not in completed:
            problems.append(f"{request} is lost: {asked.document}")
    for run in failed:
        if completed[run].reason != "unknown_outcome":
            problems.append(f"{run} ended {completed[run]}")
    if completed[cancelled].status.value != "cancelled":
        problems.append(f"{cancelled} ended {completed[cancelled].status}")
    states = {str(run): str(state) for run, state in fleet.database.rows("SELECT run_id, state FROM runs")}
    told = {run: end.status.value for run, end in completed.items()}
    if states != told:
        problems.append(f"table and topic differ: {set(states.items()) ^ set(told.items())}")
    instants = Counter((each.job_key, each.scheduled_at) for each in completed.values() if each.cause.value == "timer")
    problems += [f"{key} at {at} has {n} runs" for (key, at), n in instants.items() if n > 1]
    assert not problems, "\n".join(problems)
