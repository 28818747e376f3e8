"""Orders of events before the loss of a database that is restored from a base backup.

One installation is lost and restored. Each test looks at one job, of which Kafka has other messages than of the others.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import LiteralString
from uuid import UUID

import pytest

from tests.faults.backed_up_server import Server, backed_up_server, restore, services_on
from tests.faults.workload import Held, Workload, now
from tests.fixtures.oracle import Oracle
from tests.fixtures.services import Fleet
from tidewheel.control.client.client import Client
from tidewheel.control.occurrence_audit.result import run_audit
from tidewheel.local.stack import StackInfo
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import Reply

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

MEMBERS: LiteralString = "SELECT ref, run_id FROM batch_runs"
STATES: LiteralString = "SELECT r.run_id, r.state FROM runs AS r JOIN jobs AS j USING (job_id) WHERE j.key = %s"
OPEN: LiteralString = """
    SELECT r.run_id FROM job_runs AS r JOIN jobs AS j USING (job_id) WHERE j.key = %s AND r.scheduled_at <= now()
"""
STORED: LiteralString = "SELECT reply FROM requests WHERE request_id = %s"
RETRIES: LiteralString = """
    SELECT count(*) = 1 FROM job_runs WHERE run_id = %s AND state = 'retrying' AND attempt = %s
"""
PUBLISHED: LiteralString = "SELECT NOT EXISTS (SELECT FROM outbox WHERE publish_at <= now())"
SETTLED: LiteralString = f"{PUBLISHED} AND NOT EXISTS (TABLE job_runs) AND NOT EXISTS (TABLE releases)"
RECURRING = ("chained", "rested", "filtered", "resumed", "root")


@dataclass
class Story:
    """An installation that is lost and restored, and what the tests need of its past."""

    server: Server
    fleet: Fleet
    oracle: Oracle
    first: datetime = field(default_factory=now)
    known: dict[str, str] = field(default_factory=dict[str, str])
    members: Mapping[object, object] = field(default_factory=dict[object, object])
    resumed: set[str] = field(default_factory=set[str])
    filtered: set[object] = field(default_factory=set[object])
    held: Held | None = None
    hastened: list[str] = field(default_factory=list[str])  # requests
    before: int = 0  # effects before the loss
    in_flight: set[str] = field(default_factory=set[str])

    def gate(self, key: str) -> Path:
        """The file that lets the runs of a job end."""
        return self.fleet.folder / f"gate-of-{key}"

    def request(self, document: Mapping[str, object]) -> Reply:
        """Produce a request, and return its reply."""
        request = self.ask(document)
        return self.oracle.replies()[request]

    def ask(self, document: Mapping[str, object]) -> str:
        """Produce a request, and wait for its reply; return its id."""
        request = self.fleet.ask(document)
        self.fleet.flush()
        self.fleet.until(lambda: self._is_answered(request), f"{document} is answered")
        return request

    def run_of(self, document: Mapping[str, object]) -> str:
        """Produce a request; return the run of its reply."""
        reply = self.request(document)
        assert reply.run_id is not None, reply
        return reply.run_id

    def until_begun(self, key: str, count: int = 1) -> str:
        """Wait for further effects of a job, and return the run of the last."""
        seen = len(self.begun(key))
        self.fleet.until(lambda: len(self.begun(key)) >= seen + count, f"{key} begins")
        return self.begun(key)[-1]

    def until_ended(self, run: str) -> None:
        """Wait for the completion of a run."""
        self.fleet.until(lambda: self._is_completed(run), f"{run} ends")

    def begun(self, key: str) -> list[str]:
        """Return the runs of a job's effects."""
        return [each.run_id for each in self.oracle.effects() if each.job_key == key]

    def runs(self, key: str) -> set[str]:
        """Return the ids of a job's runs in the database."""
        return {str(run) for run, _ in self.fleet.database.rows(STATES, [key])}

    def _is_answered(self, request: str) -> bool:
        self.oracle.look()
        return request in self.oracle.replies()

    def _is_completed(self, run: str) -> bool:
        self.oracle.look()
        return run in self.oracle.completed()


@pytest.fixture(scope="module")
def story(info: StackInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """The installation after its restore; all runs have ended."""
    folder = tmp_path_factory.mktemp("orders")
    with backed_up_server(folder) as server, services_on(server, info, folder) as fleet:
        oracle = Oracle(fleet)
        made = Story(server, fleet, oracle)
        prepare(made)
        server.back_up()
        act(made)
        lose(made)
        recover(made)
        yield made
        oracle.close()


def prepare(story: Story) -> None:
    """Submit the jobs, before the backup."""
    story.gate("chained").touch()

    def job(key: str, schedule: object, target: str, **more: object) -> None:
        payload = {} if target == "note" else {"payload": str(story.gate(key))}
        document = {"key": key, "schedule": schedule, "target": target, **payload, **more}
        story.fleet.ask({"type": "job.submit", "job": document})

    for key in ("unreplied", "member", "past", "rest", "single", "late"):
        job(key, "manual", "note")
    for key in ("unreplied-open", "refused"):
        job(key, "manual", "gated")
    job("filled", {"cron": "* * * * *"}, "note", overlap="allow_all")
    job("chained", {"fixed_delay": "1s"}, "gated")
    job("rested", {"fixed_delay": "1s"}, "note")
    one = {"concurrency_key": {"key": "one", "at_once": 1}, "overlap": "allow_all"}
    job("filtered", {"interval": "1s"}, "gated", **one)
    job("resumed", {"interval": "1s"}, "gated", overlap="allow_all")
    job("root", {"interval": "1s"}, "note")
    job("stubborn", "manual", "stubborn-process")
    job("called", "manual", "note")
    job("alarm", "manual", "note")
    story.fleet.start_all(LEASE="PT30S")
    story.request({"type": "job.pause", "key": "resumed"})
    story.oracle.wait_answered()
    job("leaf", {"after": [{"job": "root"}]}, "note")
    job("hastened", "manual", "lost-cause", retry={"max_attempts": 9, "initial": "1h"})
    job("doomed", "manual", "lost-cause", on_failure="alarm", retry={"max_attempts": 1})
    story.until_begun("leaf")
    story.until_begun("rested")
    story.request({"type": "job.pause", "key": "rested", "until": (now() + timedelta(seconds=8)).isoformat()})
    story.held = Workload(story.fleet, story.oracle).hold()
    story.held.wait_begun(1)
    story.known["stubborn"] = story.run_of({"type": "job.trigger", "key": "stubborn"})
    story.fleet.until(lambda: story.begun("stubborn"), "it has begun")
    run = story.known["hastened"] = story.run_of({"type": "job.trigger", "key": "hastened"})
    story.fleet.until(lambda: story.fleet.database.value(RETRIES, [run, 1]), "it retries")


def act(story: Story) -> None:
    """Let the events come that the backup lacks."""
    refused = story.run_of({"type": "job.trigger", "key": "refused"})
    story.fleet.until(lambda: story.begun("refused"), "it has begun")
    assert story.request({"type": "run.retry", "run_id": refused}).status.value == "rejected"
    story.gate("refused").touch()
    story.until_ended(refused)

    call = {"finished": {"key": "called"}}
    first = {"type": "batch.submit", "open": True, "runs": [{"ref": "a", "key": "member"}], "on": call}
    batch = story.request(first).batch_id
    story.request({"type": "batch.add", "batch_id": batch, "runs": [{"ref": "b", "key": "member"}]})
    after = {"ref": "c", "key": "member", "after": [{"ref": "b"}]}
    story.request({"type": "batch.add", "batch_id": batch, "runs": [after]})
    story.fleet.until(lambda: len(story.begun("member")) == 3, "the runs of the batch have begun")
    story.members = dict(story.fleet.database.rows(MEMBERS))
    story.request({"type": "batch.close", "batch_id": batch})
    story.until_ended(story.run_of({"type": "job.trigger", "key": "doomed"}))
    for key in ("called", "alarm"):
        story.fleet.until(lambda key=key: story.begun(key), f"{key} has begun")

    hasten(story)
    past = {"type": "job.trigger", "key": "past", "run_at": (now() - timedelta(hours=1)).isoformat()}
    story.known["past"] = story.run_of(past)
    with Client(story.fleet.database.url) as client:
        rest = str(client.trigger("rest"))
        story.until_ended(rest)
        client.resume("resumed")
    story.known["retry"] = story.run_of({"type": "run.retry", "run_id": rest, "delay": "1h"})
    for key, mode in (("single", "reject"), ("late", "debounce")):
        dedupe = {"key": "k", "window": "1h", "mode": mode}
        runs = {story.run_of({"type": "job.trigger", "key": key, "dedupe": dedupe}) for _ in range(2)}
        [story.known[key]] = runs
    span = {"from": (now() - timedelta(minutes=10)).isoformat(), "to": (now() - timedelta(minutes=5)).isoformat()}
    story.request({"type": "job.backfill", "key": "filled", **span, "what": "all", "versions": "current"})
    story.fleet.until(lambda: len(story.begun("filled")) >= 5, "the backfill has begun")

    story.request({"type": "run.cancel", "run_id": story.known["stubborn"]})
    story.until_begun("leaf", 2)
    story.until_begun("chained", 2)
    story.request({"type": "runs.cancel", "handler": "absent"})  # may be about each job
    story.gate("chained").unlink()
    story.known["chained"] = story.until_begun("chained")
    story.until_begun("rested", 2)
    story.until_begun("resumed", 2)
    story.resumed = {*story.begun("resumed")}
    unreply(story)
    story.fleet.until(lambda: len(story.fleet.database.rows(OPEN, ["filtered"])) > 3, "runs wait for the key")
    next(each for each in story.fleet.services if each.role == "scheduler").kill()
    story.fleet.until(lambda: story.fleet.database.value(PUBLISHED), "all is published")
    story.filtered = {run for (run,) in story.fleet.database.rows(OPEN, ["filtered"])}
    story.request({"type": "runs.cancel", "key": "filtered"})


def hasten(story: Story) -> None:
    """Start the next attempts of a run that retried before the backup; each is due in an hour."""
    run = story.known["hastened"]
    for attempt in (2, 3):
        story.hastened.append(story.ask({"type": "run.retry", "run_id": run, "attempt": attempt}))
        story.fleet.until(lambda n=attempt: story.fleet.database.value(RETRIES, [run, n]), "it retries")


def unreply(story: Story) -> None:
    """Let two triggers have runs on Kafka, but no replies, as if the relay had died between the two."""
    next(each for each in story.fleet.services if each.role == "relay").kill()
    for key in ("unreplied", "unreplied-open"):
        story.fleet.ask({"type": "job.trigger", "key": key})
    story.fleet.flush()
    for key in ("unreplied", "unreplied-open"):
        story.fleet.until(lambda key=key: story.runs(key), f"{key} has a run")
    story.fleet.database.execute("DELETE FROM outbox WHERE topic = %s", [story.fleet.topics.replies])
    story.fleet.start("relay")
    story.until_ended(story.until_begun("unreplied", 0 if story.begun("unreplied") else 1))
    story.fleet.until(lambda: story.begun("unreplied-open"), "the other has begun")


def lose(story: Story) -> None:
    """Kill all processes and the server, and bring the backup up to what Kafka has."""
    for each in story.fleet.services:
        each.kill()
    story.before = len(story.oracle.effects())
    story.oracle.reader.read_to_end()
    story.in_flight = {each.run_id for each in story.oracle.effects()} - story.oracle.completed().keys()
    story.fleet.database.close()
    story.server.lose()
    story.server.bring_back()
    done = restore(story.fleet, "--yes")
    assert done.returncode == 0, done.stderr


def recover(story: Story) -> None:
    """Start services, let all runs end, and wait until nothing is left."""
    assert story.held is not None
    story.fleet.start_all(LEASE="PT30S")
    story.fleet.until(lambda: story.held and len(story.held.begun()) > 1, "the held run begins again")
    story.held.let_go()
    story.until_begun("rested")
    story.until_begun("leaf", 2)
    for key in ("chained", "unreplied-open", "filtered", "resumed", "stubborn"):
        story.gate(key).touch()
    for key in RECURRING:
        story.fleet.ask({"type": "job.pause", "key": key})
    for key in ("retry", "late", "hastened"):
        story.fleet.ask({"type": "run.cancel", "run_id": story.known[key]})
    story.fleet.flush()
    story.oracle.wait_answered()
    story.fleet.until(lambda: story.fleet.database.value(SETTLED), "no run is open")
    story.fleet.stop()
    story.oracle.reader.read_to_end()


def test_no_attempt_takes_effect_twice(story: Story) -> None:
    attempts = Counter((each.run_id, each.attempt) for each in story.oracle.effects())
    assert not [each for each, count in attempts.items() if count > 1]


def test_runs_that_had_ended_take_effect_once(story: Story) -> None:
    """The runs that were in flight are those of the gated jobs."""
    for key in (
        "unreplied",
        "refused",
        "member",
        "past",
        "rest",
        "single",
        "filled",
        "rested",
        "root",
        "leaf",
        "called",
        "alarm",
    ):
        assert max(Counter(run for run in story.begun(key) if run not in story.in_flight).values()) == 1, key


@pytest.mark.parametrize("key", ["unreplied", "unreplied-open"])
def test_trigger_without_a_reply_keeps_its_run(story: Story, key: str) -> None:
    assert len(story.runs(key)) == len({*story.begun(key)}) == 1


def test_refused_request_stays_refused(story: Story) -> None:
    assert len(story.runs("refused")) == 1


def test_runs_that_are_added_to_a_batch_keep_their_ids(story: Story) -> None:
    assert dict(story.fleet.database.rows(MEMBERS)) == story.members
    assert story.runs("member") == {str(run) for run in story.members.values()}


def test_accepted_requests_for_attempts_stay_accepted(story: Story) -> None:
    assert {*story.begun("hastened")} == {story.known["hastened"]}
    stored = [story.fleet.database.value(STORED, [request]) for request in story.hastened]
    assert [decode(reply, Reply).status.value for reply in stored] == ["accepted", "accepted"]


def test_trigger_in_the_past_keeps_its_run(story: Story) -> None:
    assert story.runs("past") == {story.known["past"]}


def test_fixed_delay_run_in_flight_begins_again(story: Story) -> None:
    assert Counter(story.begun("chained"))[story.known["chained"]] == 2
    assert story.known["chained"] in story.runs("chained")


def test_pause_of_a_fixed_delay_job_ends(story: Story) -> None:
    begun = {each.run_id for each in story.oracle.effects()[story.before :]}
    assert begun.intersection(story.begun("rested"))


def test_filter_cancels_timer_runs_of_its_time(story: Story) -> None:
    states = dict(story.fleet.database.rows(STATES, ["filtered"]))
    assert story.filtered
    assert {states[run] for run in story.filtered} == {"cancelled"}


def test_retry_of_a_run_that_was_triggered_over_rest_is_kept(story: Story) -> None:
    assert story.known["retry"] in story.runs("rest")
    assert len(story.runs("rest")) == 2


@pytest.mark.parametrize("key", ["called", "alarm"])
def test_end_triggers_another_job_once(story: Story, key: str) -> None:
    assert len(story.runs(key)) == 1


@pytest.mark.parametrize("key", ["single", "late"])
def test_deduplicated_triggers_keep_their_run(story: Story, key: str) -> None:
    assert story.runs(key) == {story.known[key]}


def test_backfilled_runs_keep_their_ids(story: Story) -> None:
    filled = {*story.begun("filled")}
    ended = {str(UUID(run)) for run, each in story.oracle.completed().items() if each.job_key == "filled"}
    assert filled == story.runs("filled") & filled
    assert len([run for run in ended if story.oracle.completed()[run].cause.value == "backfill"]) in (5, 6)


def test_open_runs_of_a_job_whose_resumption_is_lost_begin_again(story: Story) -> None:
    begun = Counter(story.begun("resumed"))
    assert story.resumed <= story.runs("resumed")
    assert {begun[run] for run in story.resumed} == {2}


def test_run_that_had_begun_before_the_backup_skips_attempts(story: Story) -> None:
    assert story.held is not None
    assert story.held.begun() == [1, 7]


def test_cancel_of_a_running_run_is_kept(story: Story) -> None:
    assert story.begun("stubborn") == [story.known["stubborn"]]
    assert story.oracle.completed()[story.known["stubborn"]].status.value == "cancelled"


def test_occurrences_of_a_workflow_end(story: Story) -> None:
    assert story.fleet.database.rows("SELECT root_run_id, state FROM workflows WHERE finished_at IS NULL") == []
    assert story.runs("leaf") == {*story.begun("leaf")}


def test_audit_finds_nothing(story: Story) -> None:
    audit = run_audit(story.fleet.database.url, story.first, now())
    assert audit.passed, audit.findings
