"""The oracle flags every altered history, and not the real one."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import LiteralString
from uuid import uuid4

import pytest

from tests.faults.workload import ATTEMPTS, DOOMED, Workload, now
from tests.fixtures.oracle import Oracle
from tests.fixtures.reader import Seen
from tests.fixtures.services import LONG_LEASE, Fleet
from tidewheel.schemas.codec import decode, encode
from tidewheel.schemas.generated.records import Cause, ReplyStatus, RunCompleted, RunStatus

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

LEFT: LiteralString = "INSERT INTO active_runs VALUES (gen_random_uuid(), 'default', gen_random_uuid())"


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

    def repeat(self, key: str, **fields: object) -> None:
        """Complete the run of a job once more, with other fields."""
        seen, event = self.completion(key)
        self.add(seen, encode(replace(event, **fields)))  # type: ignore[arg-type]

    def alter(self, key: str, **fields: object) -> None:
        """Replace the completion of a job's run by one with other fields."""
        seen, _ = self.completion(key)
        self.repeat(key, **fields)
        self.drop(seen)

    def effect(self, **fields: object) -> str:
        """Return the first effect with other fields."""
        return json.dumps({**json.loads(self.effects[0]), **fields})


def new_ids() -> dict[str, str]:
    return {"run_id": str(uuid4()), "event_id": str(uuid4())}


def an_occurrence_is_invented(history: History) -> None:
    _, event = history.completion("tick")
    history.repeat("tick", **new_ids(), scheduled_at=event.scheduled_at + timedelta(milliseconds=500))


def an_event_comes_again_altered(history: History) -> None:
    _, event = history.completion("errand")
    history.repeat("errand", finished_at=event.finished_at + timedelta(seconds=1))


def an_effect_is_missing(history: History) -> None:
    run_id = history.completion("errand")[1].run_id
    gone = next(line for line in history.effects if json.loads(line)["run_id"] == run_id)
    history.write([line for line in history.effects if line is not gone])


def an_effect_came_early(history: History) -> None:
    early = json.loads(history.effects[0])["at"] - 3600
    history.write([history.effect(at=early), *history.effects[1:]])


def a_request_was_answered_twice(history: History) -> None:
    reply = next(iter(history.oracle.replies().values()))
    history.add(history.find(history.fleet.topics.replies), encode(replace(reply, job_version=7)))


def a_request_was_rejected(history: History) -> None:
    reply = history.oracle.replies()["r-0"]
    history.add(history.find(history.fleet.topics.replies), encode(replace(reply, status=ReplyStatus.REJECTED)))


DOCTORED: dict[Callable[[History], object], str] = {
    lambda h: h.drop(h.completion("errand")[0]): "is lost",
    lambda h: h.drop(h.completion("tick")[0]): "tick at .* is lost",
    lambda h: h.repeat("tick", **new_ids()): "has 2 runs",
    an_occurrence_is_invented: "which is no occurrence",
    lambda h: h.repeat("errand", **new_ids()): "no request led to run",
    lambda h: h.repeat("errand", event_id=str(uuid4())): "2 different completions",
    an_event_comes_again_altered: "in 2 different forms",
    lambda h: h.alter("errand", status=RunStatus.FAILED): "ended failed",
    lambda h: h.alter("shaky", result=b'{"number": -1}'): "was given",
    lambda h: h.write([*h.effects, h.effects[0]]): "took effect twice",
    an_effect_is_missing: r"effects: \[\]",
    lambda h: h.write([*h.effects, h.effect(run_id=str(uuid4()))]): "which never completed",
    an_effect_came_early: "took effect early",
    lambda h: h.write(h.effects[::-1]): "out of order",
    lambda h: h.alter("errand", attempt=2): "ended in attempt 2, not 1",
    lambda h: h.drop(h.find(h.fleet.topics.runs("default", "standard"))): "messages ask for",
    a_request_was_answered_twice: "2 different answers",
    a_request_was_rejected: "was rejected",
    lambda h: h.drop(h.find(h.fleet.topics.dead_letters)): "has no dead letter",
    lambda h: h.fleet.database.execute(LEFT): "active_runs has 1 rows left",
}


def test_oracle_flags_altered_histories_only(fleet: Fleet, oracle: Oracle, work: Workload) -> None:
    work.submit()
    fleet.start_all(LEASE=LONG_LEASE)
    work.wait_recovered(now())
    findings = work.finish_and_check(attempts=ATTEMPTS)
    assert findings.runs > 10
    assert findings.repeated_messages == 0
    assert any(completion.cause is Cause.TIMER for completion in oracle.completions())
    history = History(fleet, oracle)
    for doctor, said in DOCTORED.items():
        doctor(history)
        with pytest.raises(AssertionError, match=said):
            oracle.judge(failures=DOOMED, attempts=ATTEMPTS)
        history.restore()
