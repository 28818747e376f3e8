"""The context of a handler: its checkpoints, its parents, and runs that it adds to its batch."""

import asyncio
import json
import logging
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import LiteralString
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.executor import parent_handlers
from tests.executor.attempting import NOON, RUN
from tests.executor.handlers import handlers
from tests.executor.running import Executing
from tests.fixtures.acts import EXECUTOR, submission
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.graphs import drain_some, never, workflow
from tests.transitions.stepping import in_background
from tests.transitions.test_batches import of, started, states
from tidewheel.clock import SystemClock
from tidewheel.errors import AttemptOver, InvalidInput, Permanent
from tidewheel.executor.context import Context, Flag
from tidewheel.executor.context_parts import ADDERS, NoChannel, Previous, RunBatch, own_checkpoint, step_times
from tidewheel.executor.handler_services import BatchAdds
from tidewheel.local.stack import StackInfo
from tidewheel.postgres.session_kinds import SessionPool
from tidewheel.runs import AttemptOutcome

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


class Wire:
    def __init__(self) -> None:
        self.told: list[tuple[bytes | None, bytes | None]] = []

    def heartbeat(self, progress: bytes | None, checkpoint: bytes | None) -> None:
        self.told.append((progress, checkpoint))

    def wait_saved(self) -> None:
        self.told.append((b"wait", None))

    def previous(self) -> Previous:
        return Previous(NOON, {"seen": 3}, NOON)


class Place(BaseModel):
    page: int


def context_of(**fields: object) -> Context:
    known: dict[str, object] = {
        "run_id": RUN,
        "attempt": 1,
        "job_key": "job",
        "tenant": "default",
        "scheduled_at": NOON,
        "deadline_seconds": 60.0,
        "labels": {},
        "idempotency_key": str(RUN),
        "traceparent": None,
        "logger": logging.LoggerAdapter(logging.getLogger("test"), {}),
        "_cancelled": Flag(),
    }
    return Context(**(known | fields))  # type: ignore[arg-type]  # each by its name


def wired(**fields: object) -> tuple[Context, Wire]:
    wire = Wire()
    return context_of(_channel=wire, **fields), wire


def test_heartbeat_is_json_with_given_fields_only() -> None:
    context, wire = wired()
    context.heartbeat()
    context.heartbeat("half")
    context.heartbeat(checkpoint=Place(page=4))
    context.heartbeat({"share": 0.5}, [1, None])
    assert wire.told == [
        (None, None),
        (b'"half"', None),
        (None, b'{"page":4}'),
        (b'{"share":0.5}', b"[1,null]"),
    ]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"progress": "x" * 4095}, r"progress has 4097 bytes as JSON, more than 4096; report a count"),
        ({"checkpoint": "x" * 65535}, r"checkpoint has 65537 bytes as JSON, more than 65536; store the data elsewhere"),
        ({"progress": object()}, r"progress cannot be serialized to JSON .*; use numbers"),
        ({"checkpoint": {"a": {1, object()}}}, r"checkpoint cannot be serialized to JSON"),
        ({"progress": {"share": math.inf}}, r"progress cannot be serialized to JSON \(share is inf, .*\)"),
        ({"progress": "\ud800"}, r"progress cannot be serialized to JSON"),
    ],
)
def test_unstorable_heartbeat_raises_in_the_handler(told: dict[str, object], message: str) -> None:
    context, wire = wired()
    with pytest.raises(ValueError, match=message):
        context.heartbeat(**told)
    assert wire.told == []


def test_largest_heartbeat_is_accepted() -> None:
    context, wire = wired()
    context.heartbeat("x" * 4094, "x" * 65534)
    assert [(len(progress or b""), len(checkpoint or b"")) for progress, checkpoint in wire.told] == [(4096, 65536)]


def test_remaining_time_decreases_and_the_deadline_is_an_instant() -> None:
    context = context_of()
    first = context.remaining_seconds
    assert 0 < context.remaining_seconds < first <= 60
    assert timedelta(0) < context.deadline - SystemClock().now() <= timedelta(seconds=60)
    assert replace(context, deadline_seconds=0.0).remaining_seconds == 0


def test_context_without_an_executor_works_in_unit_tests() -> None:
    context = context_of()
    context.heartbeat(1, 2)
    assert (context.checkpoint, context.previous()) == (None, Previous())


def test_previous_run_is_read_on_a_thread_or_awaited_on_the_loop() -> None:
    context, _ = wired()
    assert context.previous() == Previous(NOON, {"seen": 3}, NOON)
    assert asyncio.run(context.previous_async()) == Previous(NOON, {"seen": 3}, NOON)


async def test_blocking_read_on_the_loop_is_refused_with_the_async_call() -> None:
    context, _ = wired()
    with pytest.raises(RuntimeError, match=r"write `await ctx\.previous_async\(\)`"):
        context.previous()


STEPPED = b'{"tidewheel.steps":{"charge":{"cents":9}},"checkpoint":4}'


def saved_in(checkpoint: bytes | None) -> object:
    """Return a checkpoint without the times of steps, in its order."""
    return [each for each in json.loads(checkpoint or b"").items() if each[0] != "tidewheel.times"]


def test_finished_step_is_saved_before_it_returns() -> None:
    context, wire = wired()
    assert context.step("charge", lambda: Place(page=4)) == {"page": 4}
    [(_, saved), waited] = wire.told
    assert saved_in(saved) == [("tidewheel.steps", {"charge": {"page": 4}})]
    assert waited == (b"wait", None)


def test_later_attempt_gets_the_saved_result_of_a_step() -> None:
    context, wire = wired(_checkpoint=STEPPED)
    assert context.step("charge", lambda: pytest.fail("it ran again")) == {"cents": 9}
    assert wire.told == []
    assert context.step("receipt", lambda: None) is None
    steps = {"charge": {"cents": 9}, "receipt": None}
    assert saved_in(wire.told[0][1]) == [("tidewheel.steps", steps), ("checkpoint", 4)]


def test_steps_and_the_handlers_own_checkpoint_keep_each_other() -> None:
    context, wire = wired(_checkpoint=STEPPED)
    assert context.checkpoint == 4
    context.heartbeat("half", checkpoint=5)
    context.step("receipt", lambda: [1])
    assert wire.told[0] == (b'"half"', b'{"tidewheel.steps":{"charge":{"cents":9}},"checkpoint":5}')
    steps = {"charge": {"cents": 9}, "receipt": [1]}
    assert saved_in(wire.told[1][1]) == [("tidewheel.steps", steps), ("checkpoint", 5)]
    again = context_of(_checkpoint=wire.told[1][1])
    assert (again.checkpoint, again.step("receipt", dict)) == (5, [1])
    assert context_of(_checkpoint=b'{"tidewheel.steps":{"charge":1}}').checkpoint is None


def test_step_that_raises_is_not_saved_and_its_error_reaches_the_handler() -> None:
    context, wire = wired()

    def fails() -> None:
        message = "the card was refused"
        raise LookupError(message)

    with pytest.raises(LookupError, match="the card was refused"):
        context.step("charge", fails)
    [(_, saved)] = wire.told
    assert saved_in(saved) == [("tidewheel.steps", {})]
    assert context_of(_checkpoint=saved).step("charge", lambda: "again") == "again"


def test_times_of_the_newest_steps_are_kept_over_attempts_as_far_as_they_fit() -> None:
    context, wire = wired(attempt=1)
    before = SystemClock().now() - timedelta(milliseconds=1)
    context.step("charge", lambda: 1)
    with pytest.raises(ZeroDivisionError):
        context.step("label", lambda: 1 // 0)
    later, wire = wired(attempt=2, _checkpoint=wire.told[-1][1])
    later.step("charge", lambda: pytest.fail("it ran again"))
    later.step("label", lambda: 2)
    found = step_times(wire.told[0][1])
    assert [(each.name, each.attempt, each.error_type) for each in found] == [
        ("charge", 1, None), ("label", 1, "ZeroDivisionError"), ("label", 2, None),
    ]  # fmt: skip
    assert before <= found[0].began_at <= found[0].ended_at <= found[2].began_at <= SystemClock().now()
    for number in range(100):
        later.step(f"page-{number}", dict)
    found = step_times(wire.told[-2][1])
    assert (len(found), found[0].name, found[-1].name) == (100, "page-0", "page-99")
    later.heartbeat(checkpoint="x" * 63_000)
    assert step_times(wire.told[-1][1]) == []
    assert own_checkpoint(wire.told[-1][1]) == "x" * 63_000


def test_names_of_steps_are_unique_in_an_attempt() -> None:
    context, _ = wired(_checkpoint=STEPPED)
    context.step("charge", dict)
    with pytest.raises(ValueError, match=r"step 'charge' was already used in this attempt; give each step"):
        context.step("charge", dict)
    for name in ("", "x" * 256):
        with pytest.raises(ValueError, match=r"name must have 1 to 255 characters"):
            context.step(name, dict)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("x" * 65536, r"step 'big' has 65538 bytes as JSON, and brings .* more than 65536; store it elsewhere"),
        (object(), r"step 'big' cannot be serialized to JSON"),
    ],
)
def test_result_of_a_step_that_does_not_fit_is_no_reason_to_repeat_it(result: object, message: str) -> None:
    context, wire = wired()
    with pytest.raises(Permanent, match=message):
        context.step("big", lambda: result)
    assert all(saved_in(saved) == [("tidewheel.steps", {})] for _, saved in wire.told)
    context.step("small", lambda: 1)
    with pytest.raises(ValueError, match=r"checkpoint and finished steps have \d+ bytes"):
        context.heartbeat(checkpoint="x" * 65500)


async def test_coroutine_awaits_its_steps() -> None:
    context, wire = wired()

    async def charge() -> dict[str, int]:
        await asyncio.sleep(0)
        return {"cents": 9}

    with pytest.raises(RuntimeError, match=r"block the event loop; write `await ctx.step_async\('charge', …\)`"):
        context.step("charge", dict)
    one, two = await asyncio.gather(context.step_async("charge", charge), context.step_async("plain", lambda: 2))
    assert (one, two) == ({"cents": 9}, 2)
    saved = [told for told in wire.told if told != (b"wait", None)]
    assert json.loads(saved[-1][1] or b"")["tidewheel.steps"] == {"charge": {"cents": 9}, "plain": 2}


@given(results=st.dictionaries(st.text(min_size=1, max_size=20), JSON, max_size=5), own=st.none() | JSON)
def test_any_results_of_steps_come_back_as_they_were(results: dict[str, object], own: object) -> None:
    context, wire = wired()
    for name, result in results.items():
        context.step(name, lambda result=result: result)
    if own is not None:
        context.heartbeat(checkpoint=own)
    saved = next((told for _, told in reversed(wire.told) if told is not None), None)
    again = context_of(_checkpoint=saved)
    assert again.checkpoint == own
    assert {name: again.step(name, lambda: pytest.fail("it ran again")) for name in results} == results


READERS = ("flow.read", "flow.read-async", "flow.read-isolated")
GROWERS = ("flow.grow", "flow.grow-async", "flow.grow-isolated")


@pytest.mark.kafka
def test_handlers_of_every_kind_read_their_parents_results_and_add_to_their_batch(
    database: Database, info: StackInfo
) -> None:
    executing = Executing(database, info.kafka).with_topics()
    parents = ["a", {"job": "large", "when": "always"}, {"job": "none", "when": "failure"}]
    database.apply_batch(
        submission("root", target="flow.give", payload=0),
        submission("a", target="flow.give", payload="xx", schedule={"after": ["root"]}),
        submission("large", target="flow.give", payload="x" * 65_531, schedule={"after": ["root"]}),
        submission("none", target="flow.give", schedule={"after": ["root"]}),
        *(submission(each, target=each, schedule={"after": parents}) for each in READERS),
        submission("alone", target="flow.read", retry={"max_attempts": 1}),
        submission("leaf", target="flow.give", payload=1, overlap="allow_all"),
        *(submission(each, target=each, retry={"initial": "10ms", "max_attempts": 2}) for each in GROWERS),
    )
    with executing.running(known=handlers(parent_handlers), worker_processes=1):
        root = database.trigger("root")
        [reply] = database.apply_batch(
            {"type": "batch.submit", "runs": [{"ref": each, "key": each, "payload": each} for each in GROWERS]},
        )
        batch = UUID(reply.batch_id)
        until(lambda: drain_some(database, never()), "the root has ended")

        def over() -> bool:
            drain_some(database, never())
            return workflow(database, root)[1] == workflow(database, batch)[1] == 0

        until(over, "the occurrences end")
        alone = executing.ended(database.trigger("alone"))
    results = database.rows(
        "SELECT j.key, x.result FROM finished_runs r JOIN jobs j USING (job_id) JOIN attempt_outputs x USING (run_id)"
        " WHERE j.key = ANY (%s) AND x.result IS NOT NULL",
        [[*READERS, *GROWERS]],
    )
    expected = {
        "a": ["succeeded", "left out", False],
        "large": ["succeeded", "left out", False],
        "none": ["failed", 4, False],
        "one": ["succeeded", 2, False],
    }
    second = [2, False]  # the first attempt has added the runs
    found = {key: json.loads(result) for key, result in results}
    assert found == dict.fromkeys(READERS, expected) | dict.fromkeys(GROWERS, second)
    assert workflow(database, batch) == ("succeeded", 0, 0)
    assert database.count("batch_runs") == 9
    assert (alone.error_type, alone.state) == ("LookupError", "failed")
    assert "has no parent 'a'" in str(alone.error_message)


WAITING: LiteralString = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
MORE = [{"ref": "b", "key": "job", "after": ["a"]}, {"ref": "c", "key": "job", "payload": {"n": 1}}]


@pytest.fixture
def adds(database: Database) -> Iterator[BatchAdds]:
    database.submit(overlap="allow_all")
    made = BatchAdds(SessionPool(database.session, ADDERS), database.installation, EXECUTOR, lambda: None)
    yield made
    made.close()


def add(adds: BatchAdds, run: UUID, attempt: int, runs: object = MORE, tenant: str = "default") -> bool:
    return adds.add(tenant, run, attempt, json.dumps({"runs": runs}).encode(), None)


def run_of(database: Database, ref: str) -> UUID:
    return database.value("SELECT run_id FROM batch_runs WHERE ref = %s", [ref])


def test_a_later_attempt_adds_nothing_twice_and_an_earlier_one_nothing_at_all(
    database: Database, adds: BatchAdds
) -> None:
    batch = started(database, of("a"))
    run = run_of(database, "a")
    first = database.begin(run)
    assert add(adds, run, 1)
    assert states(database, batch) == {"a": "running", "b": "blocked", "c": "queued"}
    database.requeue(first, AttemptOutcome.LOST)
    with pytest.raises(AttemptOver):
        add(adds, run, 1, of("z"))  # between two attempts
    database.execute("UPDATE job_runs SET publish_at = tidewheel_now() WHERE run_id = %s", [run])
    other = BatchAdds(SessionPool(database.session, 2), database.installation, uuid4(), lambda: None)
    database.begin(run)
    for zombie, attempt in ((adds, 1), (other, 2)):
        with pytest.raises(AttemptOver, match="no run was added"):
            add(zombie, run, attempt, of("z"))
    other.close()
    both = [in_background(lambda: add(adds, run, 2, of("d"))) for _ in range(2)]
    assert sorted(each.result(30.0) for each in both) == [False, True]
    assert not add(adds, run, 2), "the first attempt has added them"
    database.apply_batch({"type": "run.cancel", "run_id": str(run)})
    with pytest.raises(AttemptOver):
        add(adds, run, 2, of("z"))
    assert set(states(database, batch)) == set("abcd")
    assert b'{"n":1}' in [one.payload for one in database.requests()]


def test_runs_that_do_not_fit_are_refused_by_their_path(database: Database, adds: BatchAdds) -> None:
    database.apply_batch(submission("root"), submission("child", schedule={"after": ["root"]}))
    started(database, of("a"))
    run = run_of(database, "a")
    database.begin(run)
    database.execute("UPDATE tenants SET max_payload_bytes = 4")
    refused = {
        "runs": [],
        "runs.0.key": of("x", key="gone"),
        "runs.0.after.0.ref": [{"ref": "x", "key": "job", "after": ["z"]}],
        "runs.0.ref": of("a", "x"),
        "runs.1.payload": [*of("x"), {"ref": "y", "key": "job", "payload": "long"}],
        "runs.0.run_at": [{"ref": "x", "key": "job", "run_at": "2027-01-01T00:00:00Z"}],
    }
    for path, runs in refused.items():
        with pytest.raises(InvalidInput) as error:
            add(adds, run, 1, runs)
        assert error.value.errors[0].path == path
    for key in ("job", "root"):
        [reply] = database.apply_batch({"type": "job.trigger", "key": key})
        alone = UUID(reply.run_id)
        [one] = database.claim(alone).started
        with pytest.raises(InvalidInput, match="batch: the run does not belong to a batch"):
            add(adds, alone, one.attempt)
    assert database.count("batch_runs") == 1


def test_calls_that_wait_for_their_batch_keep_no_other_tenant_from_adding(database: Database, adds: BatchAdds) -> None:
    first, _ = started(database, of("a")), started(database, of("b"))
    runs = [run_of(database, ref) for ref in "ab"]
    for run in runs:
        database.begin(run)
    with database.transaction() as holding:
        holding.execute("SELECT FROM workflows WHERE root_run_id = %s FOR UPDATE", [first])
        waiting = [in_background(lambda: add(adds, runs[0], 1, of("x"))) for _ in range(2 * ADDERS)]
        until(lambda: database.value(WAITING) == ADDERS // 2, "half of the sessions wait for the batch")
        assert in_background(lambda: add(adds, runs[1], 1, of("y"), "acme")).result(5.0)
        assert database.value(WAITING) == ADDERS // 2
        assert not any(each.done() for each in waiting)
    assert sorted(each.result(30.0) for each in waiting) == [False] * (2 * ADDERS - 1) + [True]


class Added(NoChannel):
    def add_runs(self, document: bytes) -> bool:
        return bool(document)


async def test_coroutines_that_add_leave_threads_to_other_tenants_and_to_the_loop() -> None:
    go_on = threading.Event()

    class Waiting(Added):
        def add_runs(self, document: bytes) -> bool:
            return super().add_runs(document) and go_on.wait(10.0)

    adding = [asyncio.create_task(RunBatch(Waiting(), "default").add_async([])) for _ in range(100)]
    await asyncio.sleep(0)  # all of them have begun
    assert await asyncio.wait_for(RunBatch(Added(), "acme").add_async([]), 5.0)
    await asyncio.wait_for(asyncio.to_thread(go_on.set), 5.0)
    assert all(await asyncio.gather(*adding))


async def test_coroutines_that_wait_for_a_save_leave_threads_to_other_tenants() -> None:
    go_on = threading.Event()

    class Waiting(NoChannel):
        def wait_saved(self) -> None:
            assert go_on.wait(10.0)

    greedy = [context_of(_channel=Waiting()).step_async("one", lambda: 1) for _ in range(100)]
    waiting = [asyncio.create_task(each) for each in greedy]
    await asyncio.sleep(0)  # all of them have begun
    assert await asyncio.wait_for(context_of(tenant="acme").previous_async(), 5.0) == Previous()
    go_on.set()
    assert await asyncio.gather(*waiting) == [1] * 100
