"""Attempts keep the lease under which they were claimed, and call no target once it is over."""

import asyncio
import json
import math
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

import pytest

from tests.executor.attempting import attempt_of, run_attempt
from tests.executor.handlers import handlers
from tests.executor.http_target import pretend_aws, serving
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.relay.topics import make_topics
from tidewheel.clock import boot_seconds
from tidewheel.errors import AttemptOver
from tidewheel.executor.attempt import LOSSES
from tidewheel.executor.lease import Heartbeat, Lease, OnSignal
from tidewheel.executor.outcome import NOT_STARTED, RELEASED
from tidewheel.executor.runners.aws import LambdaRunner
from tidewheel.executor.runners.http import HttpRunner
from tidewheel.executor.runners.kafka import KafkaRunner
from tidewheel.executor.runners.python import PythonRunner
from tidewheel.executor.runners.runner import Runner
from tidewheel.executor.runners.shell import ShellRunner
from tidewheel.jobs.allow_lists import AllowLists
from tidewheel.local.stack import StackInfo
from tidewheel.message_signatures import MessageKeys
from tidewheel.postgres.session import Conn
from tidewheel.process.clock_skew import ClockSkew
from tidewheel.process.service import Shutdown
from tidewheel.runs import AttemptOutcome
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.transitions.cancellation import Signal

OVER = Lease(-math.inf)


def accept(run_id: UUID, attempt: int, signal: Signal) -> bool:
    del run_id, attempt, signal
    return True


def heart(
    database: Database,
    *,
    executor_id: UUID | None = None,
    every: timedelta = timedelta(milliseconds=50),
    lease: timedelta = timedelta(seconds=15),
    on_signal: OnSignal = accept,
    busy: bool = True,
    on_reentry: Callable[[Conn], None] = lambda _: None,
) -> Heartbeat:
    return Heartbeat(
        database.session(), executor_id=executor_id or uuid4(), name="mine", queues=["default"], handlers=[], slots=1,
        group_protocol="classic", every=every, lease=lease, on_signal=on_signal, busy=lambda: busy, keys=MessageKeys(),
        skew=ClockSkew(timedelta(seconds=60)), on_reentry=on_reentry,
    )  # fmt: skip


def test_late_heartbeat_starts_another_lease_and_the_old_one_stays_over(database: Database) -> None:
    seen: list[bool] = []

    beat = heart(database, lease=timedelta(seconds=2), on_reentry=lambda _: seen.append(old.is_over()))
    beat.start(Shutdown())
    old = beat.lease()
    first_end = old.until
    until(lambda: old.until > first_end, "it is renewed")
    assert beat.lease() is old
    holding = database.connection()
    holding.execute("SELECT FROM executors FOR UPDATE")
    until(old.is_over, "no heartbeat is written")
    holding.rollback()
    until(lambda: not beat.lease().is_over(), "the executor has another lease")
    beat.leave(clean=True)
    assert seen[0], "what waits is released while the lease is over"
    assert beat.lease() is not old
    assert old.is_over()
    assert old.until < boot_seconds()


@pytest.mark.slow
def test_lease_that_ended_before_the_heartbeats_commit_stays_over(database: Database) -> None:
    """A reaper sees the old counter until then, and takes the attempts.

    The read of the signals waits for a lock.
    """
    reentries: list[bool] = []
    beat = heart(
        database,
        lease=timedelta(seconds=3),
        busy=False,
        on_reentry=lambda _: reentries.append(old.is_over()),
    )
    beat.start(Shutdown())
    old = beat.lease()
    holding = database.connection()
    holding.execute("LOCK TABLE signals IN ACCESS EXCLUSIVE MODE")
    until(old.is_over, "no heartbeat is committed")
    holding.rollback()
    until(lambda: not beat.lease().is_over(), "the executor has a lease again")
    beat.leave(clean=True)
    assert beat.lease() is not old
    assert old.is_over()
    assert reentries == [True]


def test_context_of_a_lost_attempt_refuses() -> None:
    attempt = attempt_of()
    attempt.heartbeat(None, None)
    attempt.lose()
    for refused in (lambda: attempt.heartbeat(b"1", None), attempt.completing):
        with pytest.raises(AttemptOver, match="stopped for longer than its lease"):
            refused()
    assert attempt.cancelled.is_set()


@pytest.mark.process
@pytest.mark.parametrize("lost", [0, LOSSES])
def test_no_handler_is_called_after_the_lease(lost: int) -> None:
    """On a thread, and in a worker process."""
    known = handlers()
    plain = next(one for one in known.values() if not one.is_async and not one.own_process)
    attempt = attempt_of({"target": plain.name}, lease=OVER)
    attempt.started = attempt.started._replace(lost_attempts=lost)
    assert run_attempt(lambda: PythonRunner(known, threads=1), attempt) == NOT_STARTED


@pytest.mark.process
def test_no_target_is_called_after_the_lease(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = tmp_path / "made"
    program: dict[str, object] = {"type": "shell", "argv": ["/bin/sh", "-c", f"touch {made}"]}
    with serving() as target:
        pretend_aws(monkeypatch, target.url(""))
        cases: list[tuple[Callable[[], Runner], dict[str, object]]] = [
            (lambda: HttpRunner(allow_private=True), {"type": "http", "url": target.url()}),
            (lambda: LambdaRunner(AllowLists(enforces=True, functions=("*",))), {"type": "lambda", "function": "echo"}),
            (lambda: ShellRunner(ExecutorSettings.load(shell_allow="*", shell_cwd="/")), program),
        ]
        for make, described in cases:
            for payload in ({"a": 1}, None):
                attempt = attempt_of({"target": described, "payload": payload}, lease=OVER)
                assert run_attempt(make, attempt) is NOT_STARTED
    assert target.received == []
    assert not made.exists()


@pytest.mark.kafka
def test_message_is_neither_produced_nor_left_in_the_client_after_the_lease(
    database: Database, info: StackInfo
) -> None:
    topic, lease = f"orders-{uuid4().hex[:8]}", timedelta(seconds=15)
    allowed = AllowLists(enforces=True, topics=("*",), topic_prefix=database.installation.topics.prefix)
    make_topics(info.kafka, [topic])
    target = {"target": {"type": "kafka", "topic": topic}}
    known = info.kafka
    assert (
        run_attempt(lambda: KafkaRunner(known, database.installation, lease, allowed), attempt_of(target, lease=OVER))
        is NOT_STARTED
    )

    async def recalled() -> object:
        runner = KafkaRunner(
            {"bootstrap.servers": "127.0.0.1:1"}, database.installation, lease, allowed
        )  # nothing is there
        mine = Lease(math.inf)
        task = asyncio.create_task(runner.run(attempt_of(target, lease=mine)))
        async with asyncio.timeout(30):
            while runner._producer is None or not len(runner._producer):  # pyright: ignore[reportPrivateUsage]
                await asyncio.sleep(0.01)
        mine.end()
        await asyncio.to_thread(runner.recall)
        outcome = await task
        await runner.close()
        return outcome

    assert asyncio.run(recalled()) is RELEASED


@pytest.mark.slow
async def test_recalled_message_that_was_sent_without_a_response_may_have_been_written(database: Database) -> None:
    """The client counts it as queued while it waits to be sent again: no at-most-once run may start again.

    The broker is the client's own. Its connection is lost after the message was sent, and before the response.
    """
    broker = {"bootstrap.servers": "unused", "test.mock.num.brokers": "1", "test.mock.broker.rtt": "700"}
    waits = {"retry.backoff.ms": "60000", "retry.backoff.max.ms": "60000", "statistics.interval.ms": "20"}
    sent_to: list[int] = []

    def note(statistics: str) -> None:
        brokers = json.loads(statistics)["brokers"].values()
        sent_to.extend(int(one["nodename"].rpartition(":")[2]) for one in brokers if one["req"].get("Produce"))

    config = cast("dict[str, str]", {**broker, **waits, "stats_cb": note})
    allowed = AllowLists(enforces=True, topics=("*",))
    runner = KafkaRunner(config, database.installation, timedelta(seconds=60), allowed)
    mine = Lease(math.inf)
    task = asyncio.create_task(runner.run(attempt_of({"target": {"type": "kafka", "topic": "orders"}}, lease=mine)))
    async with asyncio.timeout(60):
        while not sent_to:
            await asyncio.sleep(0.01)
    assert lose_connections(sent_to[0])
    await asyncio.sleep(1.0)
    mine.end()
    await asyncio.to_thread(runner.recall)
    outcome = await task
    await runner.close()
    assert (outcome.kind, outcome.not_started) == (AttemptOutcome.RELEASED, False)


def lose_connections(port: int) -> int:
    """Shut down this process's connections to a port; return their number."""
    lost = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(each.name))) as connection:
            if connection.getpeername()[1:] == (port,):
                connection.shutdown(socket.SHUT_RDWR)
                lost += 1
    return lost
