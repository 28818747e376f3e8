"""A runner that is loaded with its first attempt: HTTP's, whose library most executors never need."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from tests.executor.attempting import Reports, attempt_of
from tests.executor.http_target import serving
from tests.executor.running import Executing
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.stepping import in_background
from tidewheel.clock import monotonic_seconds
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.dispatch import TargetDispatcher
from tidewheel.executor.outcome import CANCELLED, Outcome, succeeded
from tidewheel.executor.runners import http
from tidewheel.executor.runners.runner import DeferredRunner, Runner
from tidewheel.executor.runners.secret_store import SecretStore
from tidewheel.local.stack import StackInfo
from tidewheel.runs import AttemptOutcome
from tidewheel.schemas.generated.records import TargetKind
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.transitions.installation import Installation


class Loaded:
    """A runner whose attempts succeed."""

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
    """A deferred runner as long as the block."""
    runner = DeferredRunner(load)
    try:
        yield runner
    finally:
        load.let_go.set()
        await runner.close()


async def begun(load: Loading) -> None:
    """Wait until it loads."""
    assert await asyncio.to_thread(load.begun.acquire, timeout=30)


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
    """Dispatch an attempt whose time is over unless its clock restarts; return its reports."""
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
    executing = Executing(database, info.kafka)
    executing.make_topics()
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
