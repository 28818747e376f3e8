"""The oracle flags every altered history, and not the real one."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from tests.faults.workload import ATTEMPTS, DOOMED, Workload, now
from tests.fixtures.oracle import Oracle
from tests.fixtures.reader import Seen
from tests.fixtures.services import LONG_LEASE, Fleet
from tidewheel.schemas.codec import decode, encode
from tidewheel.schemas.generated.records import Cause, ReplyStatus, RunCompleted, RunStatus

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]


class History:
    """Observations of an oracle, to alter and restore."""

    def __init__(self, fleet: Fleet, oracle: Oracle) -> None:
        self.fleet, self.oracle = fleet, oracle
        self.seen, self.effects = list(oracle.reader.seen), fleet.effects.read_text().splitlines()

    def restore(self) -> None:
        self.oracle.reader.seen[:] = self.seen
        self.write(self.effects)

    def write(self, effects: list[str]) -> None:
        self.fleet.effects.write_text("".join(f"{line}\n" for line in effects))

    def find(self, topic: str) -> Seen:
        return next(seen for seen in self.seen if seen.topic == topic)

    def completion(self, key: str) -> tuple[Seen, RunCompleted]:
        found = [seen for seen in self.seen if seen.topic == self.fleet.topics.completions]
        read = [(seen, decode(seen.value or b"", RunCompleted)) for seen in found]
        return next((seen, event) for seen, event in read if event.job_key == key)

    def drop(self, seen: Seen) -> None:
        self.oracle.reader.seen.remove(seen)

    def add(self, seen: Seen, value: bytes) -> None:
        self.oracle.reader.seen.append(replace(seen, offset=seen.offset + 1_000_000, value=value))

    def line_of(self, run_id: str) -> int:
        return next(n for n, line in enumerate(self.effects) if json.loads(line)["run_id"] == run_id)


def a_completion_is_lost(history: History) -> None:
    history.drop(history.completion("errand")[0])


def an_occurrence_is_lost(history: History) -> None:
    history.drop(history.completion("tick")[0])


def an_occurrence_is_doubled(history: History) -> None:
    seen, event = history.completion("tick")
    history.add(seen, encode(replace(event, run_id=str(uuid4()), event_id=str(uuid4()))))


def an_occurrence_is_invented(history: History) -> None:
    seen, event = history.completion("tick")
    at = event.scheduled_at + timedelta(milliseconds=500)
    history.add(seen, encode(replace(event, run_id=str(uuid4()), event_id=str(uuid4()), scheduled_at=at)))


def a_run_is_invented(history: History) -> None:
    seen, event = history.completion("errand")
    history.add(seen, encode(replace(event, run_id=str(uuid4()), event_id=str(uuid4()))))


def an_event_comes_again_under_another_id(history: History) -> None:
    seen, event = history.completion("errand")
    history.add(seen, encode(replace(event, event_id=str(uuid4()))))


def an_event_comes_again_altered(history: History) -> None:
    seen, event = history.completion("errand")
    history.add(seen, encode(replace(event, finished_at=event.finished_at + timedelta(seconds=1))))


def a_run_failed(history: History) -> None:
    seen, event = history.completion("errand")
    history.drop(seen)
    history.add(seen, encode(replace(event, status=RunStatus.FAILED)))


def a_payload_was_another(history: History) -> None:
    seen, event = history.completion("shaky")
    history.drop(seen)
    history.add(seen, encode(replace(event, result=b'{"number": -1}')))


def an_attempt_took_effect_twice(history: History) -> None:
    history.write([*history.effects, history.effects[0]])


def an_effect_is_missing(history: History) -> None:
    gone = history.line_of(history.completion("errand")[1].run_id)
    history.write([line for number, line in enumerate(history.effects) if number != gone])


def an_effect_is_nobodys(history: History) -> None:
    history.write([*history.effects, json.dumps({**json.loads(history.effects[0]), "run_id": str(uuid4())})])


def an_effect_came_early(history: History) -> None:
    first = json.loads(history.effects[0])
    history.write([json.dumps({**first, "at": first["at"] - 3600}), *history.effects[1:]])


def attempts_are_swapped(history: History) -> None:
    history.write(history.effects[::-1])


def an_attempt_was_lost(history: History) -> None:
    seen, event = history.completion("errand")
    history.drop(seen)
    history.add(seen, encode(replace(event, attempt=2)))


def a_message_was_never_sent(history: History) -> None:
    history.drop(history.find(history.fleet.topics.runs("default", "standard")))


def a_request_was_answered_twice(history: History) -> None:
    seen = history.find(history.fleet.topics.replies)
    reply = next(iter(history.oracle.replies().values()))
    history.add(seen, encode(replace(reply, job_version=7)))


def a_request_was_rejected(history: History) -> None:
    seen = history.find(history.fleet.topics.replies)
    reply = history.oracle.replies()["r-0"]
    history.add(seen, encode(replace(reply, status=ReplyStatus.REJECTED)))


def a_dead_letter_is_missing(history: History) -> None:
    history.drop(history.find(history.fleet.topics.dead_letters))


def an_active_run_was_left(history: History) -> None:
    history.fleet.database.execute("INSERT INTO active_runs VALUES (gen_random_uuid(), 'default', gen_random_uuid())")


DOCTORED: dict[Callable[[History], None], str] = {
    a_completion_is_lost: "is lost",
    an_occurrence_is_lost: "tick at .* is lost",
    an_occurrence_is_doubled: "has 2 runs",
    an_occurrence_is_invented: "which is no occurrence",
    a_run_is_invented: "no request led to run",
    an_event_comes_again_under_another_id: "2 different completions",
    an_event_comes_again_altered: "in 2 different forms",
    a_run_failed: "ended failed",
    a_payload_was_another: "was given",
    an_attempt_took_effect_twice: "took effect twice",
    an_effect_is_missing: r"effects: \[\]",
    an_effect_is_nobodys: "which never completed",
    an_effect_came_early: "took effect early",
    attempts_are_swapped: "out of order",
    an_attempt_was_lost: "ended in attempt 2, not 1",
    a_message_was_never_sent: "messages ask for",
    a_request_was_answered_twice: "2 different answers",
    a_request_was_rejected: "was rejected",
    a_dead_letter_is_missing: "has no dead letter",
    an_active_run_was_left: "active_runs has 1 rows left",
}


def test_oracle_flags_altered_histories_only(fleet: Fleet, oracle: Oracle, work: Workload) -> None:
    work.submit()
    fleet.start_all(LEASE=LONG_LEASE)
    work.wait_recovered(now())
    work.finish()
    fleet.stop()
    findings = oracle.check(failures=DOOMED, attempts=ATTEMPTS)
    assert findings.runs > 10
    assert findings.repeated_messages == 0
    assert any(completion.cause is Cause.TIMER for completion in oracle.completions())
    history = History(fleet, oracle)
    for doctor, said in DOCTORED.items():
        doctor(history)
        with pytest.raises(AssertionError, match=said):
            oracle.judge(failures=DOOMED, attempts=ATTEMPTS)
        history.restore()
