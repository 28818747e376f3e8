"""For every kind of end of an attempt, log, metrics, rows, event and `explain` say the same."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from itertools import count
from uuid import UUID, uuid4

import pytest
from prometheus_client import REGISTRY

from tests.control.api.answering import answering, enter
from tests.control.explain.explaining import explanation_of
from tests.executor import ending_handlers
from tests.executor.ends import ENDS, STOPPED, End
from tests.executor.handlers import handlers
from tests.executor.http_target import Answer, HttpTarget, pretend_aws, serving
from tests.executor.running import ENTER, Executing
from tests.executor.test_attempt_output import Lines
from tests.fixtures.database import Database, Template
from tests.fixtures.services import until
from tests.relay.topics import make_topics
from tests.scheduler.firing import fire_due
from tidewheel.control.client.client import Client
from tidewheel.control.client.own_runs import status
from tidewheel.local.stack import StackInfo
from tidewheel.runs import FINAL, MOVES, AttemptOutcome, Move, RunState
from tidewheel.scheduler.deadlines import Deadlines
from tidewheel.schemas.generated.records import ReplyStatus, RunCompleted
from tidewheel.transitions.finished import timeout_of

pytestmark = pytest.mark.kafka

TOPIC, NO_TOPIC = (f"{name}-{uuid4().hex[:8]}" for name in ("ends", "nowhere"))
FAILURE = {"error_type": "NoSuchOrder", "error_message": "no such order"}
ANSWERS = {
    "200": Answer(),
    "202": Answer(202),
    "500": Answer(500),
    "broken": Answer(
        200, b'{"errorType": "KeyError", "errorMessage": "no order"}', {"x-amz-function-error": "Unhandled"}
    ),
}
numbers = count(1)
CASES = [pytest.param(end, way, id=f"{name}-{way}") for name, end in ENDS.items() for way in end.ways]


@pytest.fixture(scope="module")
def lines() -> Iterator[Lines]:
    """The log of the executors, and of the scheduler, intake and API that end runs for them."""
    kept, log = Lines(), logging.getLogger("tidewheel")
    before = log.level
    log.addHandler(kept)
    log.setLevel(logging.INFO)
    yield kept
    log.removeHandler(kept)
    log.setLevel(before)


@pytest.fixture(scope="module")
def server() -> Iterator[HttpTarget]:
    with serving() as made, pytest.MonkeyPatch.context() as environment:
        pretend_aws(environment, made.url(""))
        yield made


@pytest.fixture(scope="session")
def topic(info: StackInfo) -> None:
    make_topics(info.kafka, [TOPIC])  # once: a worker that takes tests of another sets a module up again


@pytest.fixture(scope="module")
def executing(
    template: Template, info: StackInfo, lines: Lines, server: HttpTarget, topic: None
) -> Iterator[Executing]:
    """One executor for all cases but those that stop one."""
    del lines, server, topic
    database = Database(template.copy(), template.installation)
    made = Executing(database, info.kafka).with_topics()
    with serving_runs(made, "default"):
        yield made
    database.close()


def serving_runs(executing: Executing, queue: str) -> AbstractContextManager[None]:
    return executing.running(
        known=handlers(ending_handlers),
        queues=queue,
        targets="handler,http,kafka,lambda,shell",
        log_runs=True,
        drain_timeout=timedelta(0),
        http_allow_private=True,
        kafka_topics=f"{TOPIC},{NO_TOPIC}",
        lambda_functions="ends",
        shell_allow="/bin/true,/bin/false",
    )


def counted() -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for family in REGISTRY.collect():
        for sample in family.samples:
            if sample.name in {"tidewheel_attempts_total", "tidewheel_runs_ended_total"}:
                [label] = sample.labels.values()
                found[sample.name, label] = int(sample.value)
    return found


def fired(executing: Executing, end: End, target: object) -> UUID:
    database, key = executing.database, f"job-{next(numbers)}"
    retry = {"max_attempts": 3, "backoff": "fixed", "initial": "10ms", "jitter": "0%"}
    payload = {"do": end.do, "url": database.url}
    at = {"once": (database.now() + timedelta(milliseconds=20)).isoformat()}
    queue = STOPPED if end.act in {"stop", "lose"} else "default"
    database.submit(key, target=target, payload=payload, schedule=at, **({"queue": queue, "retry": retry} | end.job))
    until(lambda: fire_due(database), "it fires")
    return database.value("SELECT run_id FROM runs JOIN jobs USING (job_id) WHERE key = %s", [key])


def target_of(way: str, end: End, url: str) -> object:
    limit = "1s" if end.act == "overdue" else "1h"
    waits = end.do[:1] == ("202",)
    match way:
        case "http":
            return {"type": "http", "url": url} | ({"async": True, "async_timeout": limit} if waits else {})
        case "kafka":
            topic = NO_TOPIC if end.do == ("nowhere",) else TOPIC
            return {"type": "kafka", "topic": topic} | ({"await_reply": True, "reply_timeout": limit} if waits else {})
        case "lambda":
            return {"type": "lambda", "function": "ends"}
        case "shell":
            return {"type": "shell", "argv": [f"/bin/{end.do[0]}"]}
        case _:
            return f"ends.{way}"


def request(executing: Executing, run_id: UUID, end: End) -> None:
    """Request the end of a run, by its id or by its attempt's token."""
    database = executing.database
    until(lambda: executing.state(run_id) is end.source, f"it is {end.source}")
    document = {"type": "run.complete", "token": database.installation.task_tokens.sign(run_id, 1)}
    if end.act == "cancel":
        document = {"type": "run.cancel", "run_id": str(run_id), "reason": "the order was withdrawn"}
    elif end.act == "fail":
        document |= {"status": "failed"} | FAILURE
    with database.lent_session() as session:
        [reply] = session.within(database.apply_batch_within, document)
    assert reply.status is ReplyStatus.ACCEPTED, reply.errors


def let_pass(executing: Executing, run_id: UUID, end: End) -> None:
    """Let a scheduler act on the deadline of a run that no executor owns."""
    until(lambda: executing.state(run_id) is end.source, f"it is {end.source}")
    with executing.database.lent_session() as session:
        deadlines = Deadlines(session, executing.database.installation)
        until(lambda: deadlines.step()[0], "its deadline passes")


def report(executing: Executing, run_id: UUID, end: End) -> None:
    facts = {"failed": FAILURE, "timed_out": {"timeout": "start_to_close"}}
    with answering(executing.database) as client:
        executor = enter(client, handlers=("ends.rest",), queues=("remote",))
        for number, status in enumerate(end.do, 1):
            until(executor.sweep, "it starts")
            if status == "cancelled":
                request(executing, run_id, replace(end, act="cancel"))
                until(executor.heartbeat, "the executor knows")
            assert executor.finish(run_id, status, attempt=number, **facts.get(status, {})) == "recorded"


def stop(executing: Executing, run_id: UUID, end: End) -> None:
    del end
    saved = "SELECT count(progress) FROM run_inputs WHERE run_id = %s"
    with serving_runs(executing, STOPPED):
        until(lambda: executing.database.value(saved, [run_id]), "its handler has started")
    with serving_runs(executing, STOPPED):
        until(lambda: executing.state(run_id) in FINAL, "it ends")


def lose(executing: Executing, run_id: UUID, end: End) -> None:
    """Let an executor own it that sends no heartbeat."""
    del end
    ghost = uuid4()
    executing.database.execute(ENTER, [ghost])
    executing.database.execute("UPDATE executors SET lease = '100ms' WHERE executor_id = %s", [ghost])
    executing.database.begin(run_id, ghost)
    quick = {"lease": timedelta(milliseconds=600)}
    with executing.running(known=handlers(ending_handlers), queues=STOPPED, log_runs=True, **quick):
        until(lambda: executing.state(run_id) in FINAL, "it ends")


ACTS: dict[str, Callable[[Executing, UUID, End], None]] = {
    **dict.fromkeys(("cancel", "complete", "fail"), request),
    "overdue": let_pass,
    "report": report,
    "stop": stop,
    "lose": lose,
}


@pytest.mark.parametrize(("end", "way"), CASES)
def test_log_metrics_rows_event_and_explanation_of_an_end_agree(
    executing: Executing, server: HttpTarget, lines: Lines, end: End, way: str
) -> None:
    database, before = executing.database, counted()
    server.answers = [ANSWERS[word] for word in end.do if word in ANSWERS]
    run_id = fired(executing, end, target_of(way, end, server.url()))
    if end.act:
        ACTS[end.act](executing, run_id, end)
    ended = executing.ended(run_id)
    until(lambda: len(lines.about(run_id)) >= len(end.lines), f"the log: {lines.about(run_id)}")
    assert (ended.state, ended.attempt) == (end.state, len(end.outcomes))
    assert database.attempts(run_id) == list(enumerate(end.outcomes, 1))
    if end.do[-1:] and end.do[-1].startswith("complete"):
        assert ended.result == b'"completed"', "what the handler returned or raised later changes nothing"
    written = lines.about(run_id)
    assert all(re.fullmatch(line, text) for line, text in zip(end.lines, written, strict=True)), written
    [event] = [one for one in database.completions() if one.run_id == str(run_id)]
    assert (event.status, event.attempt) == (end.state, len(end.outcomes))
    assert (event.error and event.error.type) == ended.error_type
    expected = Counter({("tidewheel_attempts_total", outcome.value): 1 for outcome in end.outcomes})
    expected["tidewheel_runs_ended_total", end.state.value] = 1
    assert counted() - before == expected
    error = (event.error.type, event.error.message) if event.error else (None, None)
    with Client(database.url) as client:
        detail, polled = client.runs.detail(run_id), client.runs.get(run_id)
    own = database.within(status, run_id)
    assert (detail.summary.error_type, detail.error_message) == error
    assert (polled.error_type, polled.error_message) == (own.error_type, own.error_message) == error
    explained = explanation_of(database, detail.summary.scheduled_at, detail.summary.key)
    assert re.search(sentence(end, event), explained.words), explained.words
    assert explained.run is not None
    for attempts in (detail.attempts, explained.run.attempts):
        assert [one.outcome for one in attempts] == list(end.outcomes)


def sentence(end: End, event: RunCompleted) -> str:
    """Return what `explain` writes of the end that an event reports."""
    last = f" in attempt {event.attempt}"
    if end.between:
        last = f" after attempt {event.attempt}" if event.attempt else " before its first attempt"
    verb = f"{'was ' if end.state is RunState.CANCELLED else ''}{end.state.replace('_', ' ')}"
    causes = dict.fromkeys(each for each in (event.error and timeout_of(event.error.type), event.reason) if each)
    why = f" ({', '.join(causes)})" if causes else ""
    return rf"Its run {verb}{last} at \S+Z{re.escape(why)}\."


def test_table_has_every_outcome_state_and_move() -> None:
    """A new kind of end fails here until it has its row."""
    assert {outcome for end in ENDS.values() for outcome in end.outcomes} == set(AttemptOutcome)
    assert {end.state for end in ENDS.values()} == FINAL - {RunState.SKIPPED}
    begins = {Move.CLAIM, Move.BUFFER, Move.WAIT, Move.SKIP}
    sources = {RunState.QUEUED, RunState.RUNNING, RunState.WAITING, RunState.RETRYING}
    ends = {(source, move) for move, row in MOVES.items() if move not in begins for source in row.sources & sources}
    assert {(end.source, end.move) for end in ENDS.values()} == ends
