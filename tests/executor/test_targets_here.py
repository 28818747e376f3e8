"""Runners: which targets an executor runs, loaded when they are first needed."""

import asyncio
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest

from tests.executor.attempting import Reports, attempt_of
from tests.executor.handlers import handlers
from tests.executor.http_target import serving
from tests.executor.running import Executing
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.strict_types import ROOT
from tests.transitions.stepping import in_background
from tidewheel.clock import monotonic_seconds
from tidewheel.errors import SettingsError
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import CANCELLED, Outcome, succeeded
from tidewheel.executor.runners import http
from tidewheel.executor.runners.runner import DeferredRunner, Runner, TargetDispatcher, target_kinds
from tidewheel.executor.runners.secret_store import SecretStore
from tidewheel.local.stack import StackInfo
from tidewheel.runs import AttemptOutcome
from tidewheel.scheduler.backlog import UnhandledWatch
from tidewheel.schemas.generated.records import TargetKind
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.transitions.installation import Installation

PROGRAM = {"type": "shell", "argv": [shutil.which("echo"), "here"]}
PROGRAMS: dict[str, Any] = {"targets": "handler,shell", "shell_allow": "*"}


@pytest.mark.landing
@pytest.mark.kafka
def test_run_waits_uncounted_for_an_executor_with_its_handler_or_target(executing: Executing) -> None:
    """By message and by sweep, as in a rolling deploy: the message is left."""
    with executing.running(known={name: found for name, found in handlers().items() if name == "acts.echo"}):
        program, order = executing.trigger(PROGRAM), executing.trigger("acts.order", {"to": "ann"})
        executing.publish(program, order)
        assert executing.run("acts.echo", 1).state == "succeeded"
        for case, run_id in (("program", program), ("handler", order)):
            run = executing.database.open_run(run_id)
            assert (run.state, run.attempt, run.failed_attempts) == ("queued", 0, 0), case
        assert names(executing) == [False]
        with executing.running(**PROGRAMS):
            ended, ordered = executing.ended(program), executing.ended(order)
            assert sorted(names(executing)) == [False, True]
            by_message = executing.trigger(PROGRAM)
            executing.publish(by_message)
            executing.ended(by_message)
    assert (ordered.state, ordered.attempt) == ("succeeded", 1)
    assert (ended.state, ended.attempt, ended.result) == ("succeeded", 1, b'{"exit_code":0}')
    [(output,)] = executing.database.rows("SELECT output FROM attempt_outputs WHERE run_id = %s", [program])
    assert output == b"here\n"


@pytest.mark.kafka
@pytest.mark.slow
def test_run_of_a_type_that_is_off_waits_uncharged_with_an_alert(executing: Executing) -> None:
    """By message and by sweep; handlers run meanwhile, also where they alone are on."""
    targets: dict[str, dict[str, object]] = {
        "http": {"type": "http", "url": "http://127.0.0.1:9/"},
        "kafka": {"type": "kafka", "topic": "orders"},
        "lambda": {"type": "lambda", "function": "report"},
    }
    with executing.running(targets="handler"):
        waiting = {kind: executing.trigger(target) for kind, target in targets.items()}
        executing.publish(*waiting.values())
        assert executing.run("acts.echo", 1).state == "succeeded"
        for kind, run_id in waiting.items():
            run = executing.database.open_run(run_id)
            assert (run.state, run.attempt, run.failed_attempts) == ("queued", 0, 0), kind
        watch = UnhandledWatch(
            executing.database.session(), executing.database.installation, min_age=timedelta(microseconds=1)
        )
        assert {announced.reason for announced in watch.check()} == {
            f"no executor of queue default runs {kind} targets (TIDEWHEEL_TARGETS)" for kind in targets
        }
        with executing.running(targets="http", http_allow_private=True):
            assert executing.ended(waiting["http"]).error_type == "http_connect"


@pytest.mark.kafka
def test_executor_runs_handlers_and_http_unless_told() -> None:
    assert target_kinds(ExecutorSettings.load()) == [TargetKind.HANDLER, TargetKind.HTTP]


@pytest.mark.kafka
def test_executor_without_handler_targets_registers_no_handler(executing: Executing) -> None:
    with executing.running(targets="http"):
        until(lambda: executing.database.rows("SELECT 1 FROM executors"), "it has entered")
        assert executing.database.rows("SELECT handlers FROM executors") == [(["tidewheel.http"],)]


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"targets": "handler,htpp"}, "did you mean 'http'"),
        ({"targets": ","}, "the list is empty"),
        ({"targets": "kafka"}, "TIDEWHEEL_KAFKA_TOPICS is empty"),
        ({"targets": "shell"}, "TIDEWHEEL_SHELL_ALLOW is empty"),
        ({"targets": "lambda"}, "TIDEWHEEL_LAMBDA_FUNCTIONS is empty"),
    ],
)
def test_executor_does_not_start_with_a_type_that_it_could_not_run(settings: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        target_kinds(ExecutorSettings.load(**settings))


def names(executing: Executing) -> list[bool]:
    """Return for each executor whether it reports that it runs programs."""
    return ["tidewheel.shell" in handlers for (handlers,) in executing.database.rows("SELECT handlers FROM executors")]


@pytest.mark.kafka
def test_executor_hides_its_memory_from_its_programs() -> None:
    """A process of the same user can read neither its environment nor its memory; root's can."""
    source = (
        "import ctypes; from tidewheel.executor.programs.process import hide_from_programs as hide; hide();"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


_EXAMPLE = re.compile(r"^## A target of your own$.*?^```python\n(?P<source>.*?)^```$", re.MULTILINE | re.DOTALL)


def example(port: int) -> Runner:
    """The runner of the page, for a server of this test's."""
    found = _EXAMPLE.search((ROOT / "docs/targets.md").read_text(encoding="utf-8"))
    assert found is not None
    made: dict[str, object] = {}
    exec(found["source"].replace("7000", str(port)), made)  # noqa: S102 - it is the page that is tested
    return cast("Callable[[], Runner]", made["LineRunner"])()


def call(answer: bytes | None) -> Outcome:
    """Return the outcome of the page's runner for a response; None is no server."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b'{"a":1}\n'
        writer.write(answer or b"")
        writer.close()

    async def work() -> Outcome:
        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        if answer is None:
            server.close()
            await server.wait_closed()
        runner = example(port)
        outcome = await runner.run(attempt_of({"payload": {"a": 1}}))
        await runner.close()
        server.close()
        return outcome

    return asyncio.run(work())


def test_example_of_the_page_is_a_target() -> None:
    assert call(b"[1]\n") == Outcome(AttemptOutcome.SUCCEEDED, result=b"[1]")
    lost, unreached = call(b""), call(None)
    assert (lost.error_type, lost.not_started) == ("line_closed", False)
    assert (unreached.error_type, unreached.not_started) == ("line_connect", True)


class Loaded:
    closed = False

    async def run(self, attempt: Attempt) -> Outcome:
        del attempt
        return succeeded(None)

    async def close(self) -> None:
        self.closed = True


class Loading:
    """A load that waits until it is `let_go`, or raises the errors in turn."""

    def __init__(self, *errors: Exception) -> None:
        self.begun, self.let_go = threading.Semaphore(0), threading.Event()
        self.loaded: list[Loaded] = []
        self.calls, self._errors = 0, list(errors)

    def __call__(self) -> Runner:
        self.calls += 1
        self.begun.release()
        assert self.let_go.wait(30)
        if self._errors:
            raise self._errors.pop(0)
        self.loaded.append(Loaded())
        return self.loaded[-1]


@asynccontextmanager
async def using(load: Loading) -> AsyncGenerator[DeferredRunner]:
    runner = DeferredRunner(load)
    try:
        yield runner
    finally:
        load.let_go.set()
        await runner.close()


async def begun(load: Loading) -> None:
    assert await asyncio.to_thread(load.begun.acquire, timeout=30)


@pytest.mark.landing
@pytest.mark.process
def test_executor_without_http_runs_does_not_import_their_library() -> None:
    source = "import sys, tidewheel.executor.loop, tidewheel.control.services; print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


async def test_first_attempts_at_once_load_once() -> None:
    load = Loading()
    async with using(load) as runner:
        attempts = [asyncio.create_task(runner.run(attempt_of())) for _ in range(3)]
        await begun(load)
        load.let_go.set()
        outcomes = [*await asyncio.gather(*attempts), await runner.run(attempt_of())]
    assert outcomes == 4 * [succeeded(None)]
    assert (load.calls, [each.closed for each in load.loaded]) == (1, [True])


async def test_attempt_cancelled_during_the_load_leaves_it_to_the_next() -> None:
    load = Loading()
    async with using(load) as runner:
        first = asyncio.create_task(runner.run(attempt_of()))
        await begun(load)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(runner.run(attempt_of()))
        load.let_go.set()
        assert await second == succeeded(None)
    assert load.calls == 1


async def test_runner_whose_attempts_were_cancelled_is_closed() -> None:
    load = Loading()
    async with using(load) as runner:
        only = asyncio.create_task(runner.run(attempt_of()))
        await begun(load)
        only.cancel()
        await asyncio.gather(only, return_exceptions=True)
    assert [each.closed for each in load.loaded] == [True]


async def test_load_that_fails_fails_its_attempts_as_not_started_and_is_repeated() -> None:
    load = Loading(ImportError("no such library"))
    load.let_go.set()
    async with using(load) as runner:
        failures = await asyncio.gather(*(runner.run(attempt_of()) for _ in range(2)))
        later = await runner.run(attempt_of())
    for failure in failures:
        assert (failure.kind, failure.error_type, failure.error_message, failure.not_started, failure.permanent) == (
            AttemptOutcome.FAILED, "ImportError", "no such library", True, False
        )  # fmt: skip
    assert (later, load.calls) == (succeeded(None), 2)


async def dispatched(load: Loading, meanwhile: Callable[[Attempt], None], **job: object) -> list[Outcome]:
    reports = Reports()
    attempt = attempt_of(job, reports=reports)
    async with using(load) as runner:
        dispatcher = TargetDispatcher({TargetKind.HANDLER: runner}, grace_seconds=1)

        async def watched() -> None:
            task = asyncio.current_task()
            assert task is not None
            timeouts = dispatcher.watch(attempt, task, monotonic_seconds() - attempt.start_to_close_seconds)
            await dispatcher.run(attempt)
            timeouts.end()

        running = asyncio.create_task(watched())
        await begun(load)
        meanwhile(attempt)
        await running
    return reports


async def test_load_is_not_the_attempts_time() -> None:
    load = Loading()
    assert await dispatched(load, lambda _: load.let_go.set(), start_to_close="20s") == [succeeded(None)]


async def test_cancel_during_the_load_ends_the_attempt() -> None:
    assert await dispatched(Loading(), lambda attempt: attempt.stop()) == [CANCELLED]


@pytest.mark.kafka
def test_at_most_once_run_released_during_the_load_may_start_again(
    database: Database, info: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, real = Loading(), http.http_runner

    def slow(settings: ExecutorSettings, installation: Installation, store: SecretStore) -> Runner:
        load()
        return real(settings, installation, store)

    monkeypatch.setattr(http, "http_runner", slow)
    executing = Executing(database, info.kafka).with_topics()
    with serving() as target:
        with executing.running(drain_timeout=timedelta(0), http_allow_private=True):
            run_id = executing.trigger({"type": "http", "url": target.url()}, delivery="at_most_once")
            assert load.begun.acquire(timeout=30)
            # The executor waits for the load before it ends.
            released = in_background(lambda: until(lambda: database.open_run(run_id).state == "queued", "released"))
            released.add_done_callback(lambda _: load.let_go.set())
        run = database.open_run(run_id)
        assert (run.attempt, run.failed_attempts, target.received) == (1, 0, [])
        with executing.running(http_allow_private=True):
            ended = executing.ended(run_id)
    assert (ended.state, ended.attempt, len(target.received)) == ("succeeded", 2, 1)
