"""Isolated handlers: their crashes are reported and harm no other attempt."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import tidewheel
from tests.executor import isolated_handlers
from tests.executor.attempting import NOON, RUN, attempt_of
from tests.executor.handlers import handlers
from tests.executor.running import Executing
from tests.executor.test_run_queue import until_async
from tests.executor.test_shell_runner import gone
from tests.fixtures.services import until
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.context import Context
from tidewheel.executor.context_parts import Previous
from tidewheel.executor.isolation.pool import WorkerPool
from tidewheel.executor.isolation.process import Setup
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.runners.python import PythonRunner, modules_of
from tidewheel.jobs.values import MAX_ERROR_CHARACTERS, MAX_RESULT_BYTES
from tidewheel.redaction import protect
from tidewheel.runs import AttemptOutcome

pytestmark = pytest.mark.process

HANDLERS = handlers(isolated_handlers)
ONCE = {"max_attempts": 1}


@asynccontextmanager
async def runner(
    processes: int = 1, *, modules: str | None = None, memory_bytes: int | None = None
) -> AsyncGenerator[PythonRunner]:
    isolated = WorkerPool(Setup(modules or modules_of(HANDLERS), memory_bytes), processes=processes)
    made = PythonRunner(HANDLERS, threads=1, pool=isolated)
    try:
        yield made
    finally:
        await made.close()


def attempt(handler: str, payload: object = None, **given: Any) -> Attempt:  # noqa: ANN401
    return attempt_of({"target": f"alone.{handler}", "payload": payload}, **given)


def run(handler: str, payload: object = None, *, memory_bytes: int | None = None) -> Outcome:
    """Run one attempt; what follows it finds a worker that works."""

    async def work() -> Outcome:
        async with runner(memory_bytes=memory_bytes) as made:
            outcome = await made.run(attempt(handler, payload))
            after = await made.run(attempt("echo", "still there"))
            assert after.result == b'"still there"'
            return outcome

    return asyncio.run(work())


def test_worker_processes_have_no_secret_of_http_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_SECRET_BILLING", "api.example.org=hunter2")
    monkeypatch.setenv("TIDEWHEEL_WEBHOOK_SECRETS", "api.example.org=whsec_hunter2")
    monkeypatch.setenv("OTHER", "seen")
    result = run("environment").result or b""
    assert b"seen" in result
    assert b"hunter2" not in result


def read_written(path: Path) -> str:
    until(path.exists, f"{path} is written")
    return path.read_text()


@pytest.mark.landing
async def test_isolated_handler_runs_in_a_warm_worker_process() -> None:
    async with runner() as made:
        one = await made.run(attempt("where", {"to": "ann"}, labels={"a": "1"}, checkpoint=b'{"next":2}'))
        two = await made.run(attempt("where", number=2))
    first, second = json.loads(one.result or b""), json.loads(two.result or b"")
    assert first["group"] == first["session"] != os.getpgid(0)
    assert first["pid"] != os.getpid()
    assert second["pid"] == first["pid"]
    assert first | {"pid": 0, "group": 0, "session": 0} == {
        "pid": 0,
        "group": 0,
        "session": 0,
        "main_thread": True,
        "run_id": str(RUN),
        "attempt": 1,
        "labels": {"a": "1"},
        "scheduled_at": NOON.isoformat(),
        "checkpoint": {"next": 2},
        "payload": "{'to': 'ann'}",
    }
    assert (second["attempt"], second["checkpoint"], second["payload"]) == (2, None, "None")


@pytest.mark.landing
async def test_dead_worker_fails_its_attempt_and_is_replaced() -> None:
    cases = {
        "exit": "exit code 3",
        "segfault": "killed by SIGSEGV",
        "kill": "killed by SIGKILL; the system does so when memory runs out",
        "close": "closed the pipe to the executor",
        "garbage": "wrote invalid data",
    }
    async with runner() as made:
        for payload, message in cases.items():
            dying = attempt("die", payload)
            outcome = await made.run(dying)
            found = (outcome.kind, outcome.error_type, outcome.permanent)
            assert found == (AttemptOutcome.FAILED, "ProcessDied", False), payload
            assert message in (outcome.error_message or ""), payload
            assert (await made.run(attempt("echo", payload))).result == f'"{payload}"'.encode(), payload
            if payload == "segfault":
                assert dying.output is not None
                assert b"isolated_handlers.py" in (dying.output.tail() or b""), "its stack is in the output"


@pytest.mark.landing
async def test_failure_within_a_worker_is_reported_and_the_worker_goes_on() -> None:
    cases = [
        ("die", "sys-exit", "SystemExit", False),
        ("eat", None, "MemoryError", False),
        ("return", "object", "ResultNotSerializable", True),
        ("return", "huge", "ResultTooLarge", True),
    ]
    async with runner() as made:
        for handler, payload, error_type, permanent in cases:
            outcome = await made.run(attempt(handler, payload))
            assert (outcome.error_type, outcome.permanent) == (error_type, permanent), (handler, payload)
            if payload == "sys-exit":
                assert outcome.error_message == "the handler tried to end the process: 3"
        largest = await made.run(attempt("echo", "x" * (MAX_RESULT_BYTES - 2)))
    assert len(largest.result or b"") == MAX_RESULT_BYTES


def test_limits_are_set_and_no_core_is_left() -> None:
    most = 2 << 30
    assert json.loads(run("limits", memory_bytes=most).result or b"") == [0, most]


async def test_output_of_a_worker_is_kept_and_bounded() -> None:
    async with runner() as made:
        printing = attempt("print", 20_000_000)
        assert (await made.run(printing)).kind is AttemptOutcome.SUCCEEDED
    output = printing.output
    assert output is not None
    *lines, error, logged, program, end = (output.tail() or b"").decode().splitlines()
    assert len(output.tail() or b"") == 64 * 1024
    assert output.written > 20_000_000
    assert set(lines[1:]) == {"x" * 99}
    assert (error, program, end) == ("an error", "a program", "the end")
    assert logged.endswith("WARNING tidewheel.handler: a log line")


def test_forked_child_does_not_become_a_second_worker() -> None:
    child = json.loads(run("fork", "come back").result or b"")
    until(lambda: gone(child), "the child has ended")


async def test_children_are_killed_with_the_worker() -> None:
    async with runner() as made:
        forked = await made.run(attempt("fork", "stay"))
        await made.run(attempt("die", "exit"))
        child = json.loads(forked.result or b"")
    until(lambda: gone(child), "the child has ended")


async def test_worker_may_stop_by_itself_when_requested(tmp_path: Path) -> None:
    async with runner() as made:
        for handler in ("hold", "await"):
            file = tmp_path / handler
            held = attempt(handler, {"file": str(file)} if handler == "hold" else str(file))
            task = asyncio.create_task(made.run(held))
            await until_async(file.exists, f"{handler} runs")
            held.cancelled.set()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await made.run(attempt("echo", 1))).result == b"1", handler
    assert read_written(tmp_path / "await") == "stopped True"


@pytest.mark.landing
async def test_attempt_queued_for_a_worker_can_be_cancelled(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    async with runner() as made:
        first = asyncio.create_task(made.run(attempt("hold", {"file": str(file)})))
        await until_async(file.exists, "the first runs")
        waiting = attempt("echo", 1)
        second = asyncio.create_task(made.run(waiting))
        while not (taken_back := waiting.cancel_queued()):
            await asyncio.sleep(0)
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
    assert taken_back


@pytest.mark.landing
async def test_other_workers_continue_when_one_dies(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    async with runner(processes=2) as made:
        neighbour = attempt("await", str(file))
        task = asyncio.create_task(made.run(neighbour))
        await until_async(file.exists, "the neighbour runs")
        for payload in ("segfault", "exit"):
            assert (await made.run(attempt("die", payload))).error_type == "ProcessDied"
        assert not task.done()
        neighbour.cancelled.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert read_written(file) == "stopped True"


async def test_heartbeats_and_previous_runs_use_the_pipe_and_leftover_tasks_do_not_act_for_the_next_attempt() -> None:
    class Listening(Attempt):
        """An attempt that records its heartbeats with its number."""

        def heartbeat(self, progress: bytes | None, checkpoint: bytes | None) -> None:
            beats.append((self.started.attempt, progress, checkpoint))

        def previous(self) -> Previous:
            gate.wait(10)
            return Previous(NOON, self.started.attempt, NOON)

    beats: list[tuple[int, bytes | None, bytes | None]] = []
    gate = threading.Event()

    def listening(handler: str, number: int) -> Listening:
        plain = attempt(handler, number, number=number)
        return Listening(plain.started, plain.request, plain.definition, plain.on_report, plain.on_release)

    async with runner() as made:
        assert (await made.run(listening("leave", 1))).kind is AttemptOutcome.SUCCEEDED
        gate.set()
        asked, beaten = await made.run(listening("ask", 2)), await made.run(listening("beat", 3))
    assert asked.result == b"2"
    assert json.loads(beaten.result or b"") == [3, NOON.isoformat()]
    assert {*beats} == {(1, b'"left"', b"1"), (3, b'{"done":1}', b'{"next":2}')}


async def test_run_that_lost_two_executors_runs_isolated() -> None:
    async with runner() as made:
        for losses, here in ((0, True), (1, True), (2, False), (7, False)):
            again = attempt("lost")
            again.started = again.started._replace(lost_attempts=losses)
            found = (await made.run(again)).result == str(os.getpid()).encode()
            assert found is here, losses


@pytest.mark.landing
@pytest.mark.parametrize(
    ("modules", "said"),
    [("no.such.module", "no.such.module"), ("tests.executor.handlers", "has no handler 'alone.echo'")],
)
async def test_unready_worker_reports_why_and_counts_as_not_started(modules: str, said: str) -> None:
    """So an at-most-once run starts again."""
    async with runner(modules=modules) as made:
        outcome = await made.run(attempt("echo"))
    assert (outcome.kind, outcome.error_type, outcome.not_started) == (AttemptOutcome.FAILED, "WorkerFailed", True)
    assert said in (outcome.error_message or "")


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[bytes]", list[int]]]:
    """A process that runs a deaf handler which leaves a child; with the processes of that."""
    file = tmp_path / "runs"
    code = (
        "import asyncio; from tests.executor import test_isolation as t\n"
        "async def work():\n"
        "    async with t.runner() as made:\n"
        f"        await made.run(t.attempt('hold', {{'file': {str(file)!r}, 'deaf': '1'}}))\n"
        "asyncio.run(work())"
    )
    made = subprocess.Popen([sys.executable, "-c", code])
    until(file.exists, "the handler runs")
    yield made, [int(pid) for pid in file.read_text().split()]
    made.kill()
    made.wait()


def test_killed_executor_leaves_no_process(parent: tuple["subprocess.Popen[bytes]", list[int]]) -> None:
    process, pids = parent
    process.send_signal(signal.SIGKILL)
    process.wait()
    for pid in pids:
        until(lambda pid=pid: gone(pid), f"{pid} has ended")


@pytest.mark.parametrize(("isolation", "words"), [("fork", "is unknown"), ("loop", "does not suit a plain function")])
def test_unknown_isolation_is_refused(isolation: Any, words: str) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match="isolation") as caught:

        @tidewheel.handler("alone-refused", isolation=isolation)
        def never(_: Context, payload: object) -> None:
            del payload

    said = f"isolation='{isolation}' {words}; leave it out (thread) or write 'process'"
    assert str(caught.value) == f"handler 'alone-refused': {said}"


@pytest.mark.landing
@pytest.mark.kafka
def test_executor_ends_timed_out_cancelled_and_leftover_workers(executing: Executing, tmp_path: Path) -> None:
    """With their children, those that listen and those that are deaf."""
    pids: list[int] = []

    def held(name: str, **job: object) -> list[UUID]:
        files = {deaf: tmp_path / f"{name}{deaf}" for deaf in ("", "deaf")}
        runs = [
            executing.trigger("alone.hold", {"file": str(file), "deaf": deaf}, **job) for deaf, file in files.items()
        ]
        for file in files.values():
            pids.extend(int(pid) for pid in read_written(file).split())
        return runs

    with executing.running(known=HANDLERS, drain_timeout=0, worker_processes=2, cancel_grace=1):
        for late in held("late", start_to_close="2s", retry=ONCE):
            ended = executing.ended(late)
            assert (ended.state, ended.reason) == ("timed_out", "start_to_close")
        cancelled = held("cancelled")
        executing.database.apply_batch(*({"type": "run.cancel", "run_id": str(run_id)} for run_id in cancelled))
        assert {executing.ended(run_id).state for run_id in cancelled} == {"cancelled"}
        assert executing.run("alone.echo", 1).result == b"1"
        left = held("left")
    for run_id in left:
        run = executing.database.open_run(run_id)
        assert (run.state, run.failed_attempts, run.lost_attempts) == ("queued", 0, 0)
    for pid in pids:
        until(lambda pid=pid: gone(pid), f"{pid} has ended")


@pytest.mark.landing
@pytest.mark.parametrize("shown", [5, 20])
def test_secret_at_the_cut_of_an_isolated_handlers_error_is_redacted(shown: int) -> None:
    """The worker process does not know the secret: a half of it would pass the executor's redaction."""
    secret = "K7qW2zP9mX4vB8nT1cR5yL3"  # no part of it is in a name of a file or a function
    protect(secret)
    outcome = run("refuse", f"{'x' * (MAX_ERROR_CHARACTERS - shown)}{secret}{'y' * 32_768}")
    assert outcome.error_message is not None
    assert len(outcome.error_message) == MAX_ERROR_CHARACTERS
    assert outcome.trace is not None
    assert "isolated_handlers.py" in outcome.trace, "the message pushes no frame out"
    # The cut of a traceback without a long message is at its beginning.
    of_trace = run("refuse", f"{secret}{'y' * (32_768 - len('ValueError: ') - shown)}").trace
    for text in (outcome.error_message, outcome.trace, of_trace or ""):
        assert not any(secret[at : at + 5] in text for at in range(len(secret) - 4))
