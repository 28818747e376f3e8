"""The executor: consumers, sweep, heartbeat and reaper on threads, attempts on the event loop."""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from uuid import UUID, uuid4

from confluent_kafka import Consumer

from tidewheel.db import Session
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.claim import Claimer
from tidewheel.executor.consume import LaneConsumer
from tidewheel.executor.finish import Finisher
from tidewheel.executor.handlers import Handler
from tidewheel.executor.heartbeat import Heartbeat
from tidewheel.executor.outcome import CANCELLED, HANDED_BACK, NOT_BEGUN, Outcome, failed, from_exception, timed_out
from tidewheel.executor.reaper import Reaper
from tidewheel.executor.runners.contract import Runner
from tidewheel.executor.runners.http import HttpRunner
from tidewheel.executor.runners.python import PythonRunner
from tidewheel.executor.slots import Slots
from tidewheel.executor.sweep import Sweep
from tidewheel.failpoint import failpoint
from tidewheel.kafka import consumer, group_protocol
from tidewheel.metrics import metrics
from tidewheel.runs import Lane
from tidewheel.schemas.records import JobDefinition, RunRequest, TargetKind
from tidewheel.service import Stop
from tidewheel.settings import ExecutorSettings
from tidewheel.skew import Skew
from tidewheel.topics import Topics
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.signal import Signal
from tidewheel.transitions.start import Started
from tidewheel.wakeup import Channel, Listener, Notifier

_LOG = logging.getLogger("tidewheel.executor")

_DEFAULT_SLOTS = 100
_CROWD = 2000  # outcomes waiting to be written, above which no more is claimed
_FLUSH_SECONDS = 10.0


class Executor:
    """One executor process."""

    def __init__(
        self,
        settings: ExecutorSettings,
        url: str,
        kafka: Mapping[str, str],
        *,
        installation: Installation,
        handlers: Mapping[str, Handler],
        stop: Stop,
    ) -> None:
        self.executor_id = uuid4()
        self._settings, self._url, self._installation, self._stop = settings, url, installation, stop
        self._names = frozenset(handlers)
        self._queues = [queue.strip() for queue in settings.queues.split(",") if queue.strip()]
        self._slots = Slots(settings.slots or _DEFAULT_SLOTS)
        self._running: dict[tuple[UUID, int], Attempt] = {}
        self._notifier = Notifier(url, "tidewheel-executor-notify")
        self._finisher = Finisher(
            Session(url, "tidewheel-executor-finish"),
            installation,
            self.executor_id,
            lambda: self._notifier.poke(Channel.OUTBOX),
        )
        self._heartbeat = Heartbeat(
            Session(url, "tidewheel-executor-heartbeat"),
            executor_id=self.executor_id,
            name=f"{socket.gethostname()}:{os.getpid()}",
            queues=self._queues,
            handlers=sorted(handlers),
            slots=self._slots.total,
            every=settings.heartbeat,
            on_signal=self._on_signal,
            busy=lambda: bool(self._running),
            skew=Skew(settings.max_clock_skew),
        )
        self._reaper = Reaper(
            Session(url, "tidewheel-executor-reap"),
            installation,
            lease=settings.lease,
            max_lost=settings.max_lost,
            stop=stop,
        )
        self._consumers = self._make_consumers(kafka)
        self._sweep = self._make_sweep()
        self._runners: dict[TargetKind, Runner] = {
            TargetKind.HANDLER: PythonRunner(handlers, threads=settings.threads),
            TargetKind.HTTP: HttpRunner(allow_private=settings.http_allow_private),
        }
        self._loop: asyncio.AbstractEventLoop
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Work until asked to stop, then drain and hand back."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._heartbeat.start, self._stop)
        listener = Listener(self._url, "tidewheel-executor-listen", (Channel.SIGNALS,), self._heartbeat.wake)
        _LOG.info("executor %s serves %s with %d slots", self.executor_id, self._queues, self._slots.total)
        for each in self._consumers:
            each.start()
        self._sweep.start()
        self._reaper.start()
        asked = asyncio.Event()
        threading.Thread(target=self._tell_when_asked, args=(asked,), daemon=True).start()
        await asked.wait()
        listener.close()
        await self._drain()

    def _tell_when_asked(self, asked: asyncio.Event) -> None:
        event = threading.Event()
        self._stop.wakes(event)
        while not self._stop.asked():
            event.wait(1.0)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(asked.set)

    async def _drain(self) -> None:
        """Leave the group, let attempts end, hand back the rest without charge."""
        self._heartbeat.stopping()
        await asyncio.gather(*(asyncio.to_thread(each.join) for each in self._consumers))
        await asyncio.to_thread(self._sweep.join)
        await asyncio.to_thread(self._reaper.join)
        timeout = self._settings.drain_timeout.total_seconds()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout)
        for attempt in list(self._running.values()):
            if attempt.report(HANDED_BACK if attempt.begun else NOT_BEGUN):
                _LOG.info("handed back", extra={"run_id": str(attempt.run_id), "attempt": attempt.started.attempt})
            self._stop_cooperatively(attempt)
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=1.0)
        clean = await asyncio.to_thread(self._finisher.drain, _FLUSH_SECONDS)
        self._finisher.close()
        await asyncio.to_thread(lambda: self._heartbeat.leave(clean=clean))
        self._notifier.close()
        for runner in self._runners.values():
            await runner.close()

    def _begin(self, items: Sequence[tuple[Started, RunRequest, JobDefinition]]) -> None:
        """Start attempts whose slots are taken; called from the claiming threads."""
        attempts = [Attempt(*item, on_report=self._on_report, on_release=self._on_release) for item in items]
        for attempt in attempts:
            self._running[attempt.key] = attempt
            lateness = (attempt.started.started_at - attempt.started.publish_at).total_seconds()
            metrics.observe("start_lateness_seconds", lateness, attempt.definition.lane)
        if attempts:
            self._loop.call_soon_threadsafe(self._start_tasks, attempts)

    def _start_tasks(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            self._spawn(self._work(attempt))

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, attempt: Attempt) -> None:
        """Run one attempt within its time and report how it ended."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine of a task
        attempt.cancel_cooperatively = task.cancel
        runner = self._runners.get(attempt.definition.target.kind)
        if attempt.cancelled.is_set() or self._heartbeat.silent_seconds() > self._settings.lease.total_seconds():
            # Asked to stop already; or this process stood still since its claim, and others may have taken it for lost.
            attempt.report(CANCELLED if attempt.cancelled.is_set() else NOT_BEGUN)
            attempt.release()
            return
        failpoint("attempt.before_effect")
        attempt.begun = True
        watches = self._watch(attempt)
        try:
            outcome = await self._within_time(attempt, runner)
        except asyncio.CancelledError as error:
            # A timeout, asked for by us, or raised by the handler's own code, which is a failure like any other.
            asked = CANCELLED if attempt.cancelled.is_set() else from_exception(error)
            outcome = attempt.struck or asked
        except BaseException as error:  # noqa: BLE001 - a runner's fault is its attempt's outcome, never the executor's end
            outcome = from_exception(error)
        for watch in watches:
            watch.cancel()
        failpoint("attempt.after_effect")
        attempt.report(outcome)
        if not attempt.on_thread:
            attempt.release()

    async def _within_time(self, attempt: Attempt, runner: Runner | None) -> Outcome:
        seconds = attempt.start_to_close_seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                # Queueing for a thread is not the attempt's time: the runner stops the clock until it has one.
                attempt.stop_clock = lambda: limit.reschedule(None)
                attempt.restart_clock = lambda: limit.reschedule(self._loop.time() + seconds)
                return await runner.run(attempt) if runner else _unsupported(attempt)
        except TimeoutError:
            attempt.cancelled.set()
            return timed_out("start_to_close", seconds)

    def _watch(self, attempt: Attempt) -> list[asyncio.TimerHandle]:
        """Let the timeouts strike that few attempts have."""
        watches: list[asyncio.TimerHandle] = []
        if (closes := attempt.schedule_to_close_seconds) is not None:
            outcome = timed_out("schedule_to_close", (attempt.definition.schedule_to_close_ms or 0) / 1000)
            watches.append(self._loop.call_later(closes, self._strike, attempt, outcome))
        if (beats := attempt.heartbeat_seconds) is not None:
            attempt.last_beat = self._loop.time()
            watches.append(self._loop.call_later(beats, self._miss_beats, attempt, watches, beats))
        return watches

    def _miss_beats(self, attempt: Attempt, watches: list[asyncio.TimerHandle], beats: float) -> None:
        left = attempt.last_beat + beats - self._loop.time()
        if left <= 0:
            self._strike(attempt, timed_out("heartbeat", beats))
        else:
            watches.append(self._loop.call_later(left, self._miss_beats, attempt, watches, beats))

    def _strike(self, attempt: Attempt, outcome: Outcome) -> None:
        """End an attempt whose time is over."""
        attempt.struck = outcome
        attempt.cancelled.set()
        if attempt.cancel_cooperatively:
            attempt.cancel_cooperatively()

    def _on_report(self, attempt: Attempt, outcome: Outcome) -> None:
        if outcome.error_type:
            known = {"run_id": str(attempt.run_id), "attempt": attempt.started.attempt}
            told = {"job_key": attempt.definition.job_key, "trace": outcome.trace}
            _LOG.warning("%s: %s", outcome.error_type, outcome.error_message, extra={**known, **told})
        self._finisher.add(attempt, outcome)

    def _on_release(self, attempt: Attempt) -> None:
        self._running.pop(attempt.key, None)
        self._slots.give_back(1)

    def _on_signal(self, run_id: UUID, number: int, kind: Signal) -> bool:
        """An attempt is to stop: tell it, and fence it off if it does not listen; returns whether it is here.

        To cancel, it has a grace period; where it is terminated, its run has ended already.
        """
        attempt = self._running.get((run_id, number))
        if attempt is None:
            return False
        if not attempt.cancelled.is_set():
            _LOG.info("asked to %s", kind, extra={"run_id": str(run_id), "attempt": number})
            attempt.cancelled.set()
            self._loop.call_soon_threadsafe(self._stop_cooperatively, attempt)
            grace = self._settings.cancel_grace.total_seconds()
            self._loop.call_soon_threadsafe(self._loop.call_later, grace, attempt.report, CANCELLED)
        if kind is Signal.TERMINATE:
            attempt.report(CANCELLED)
        return True

    def _stop_cooperatively(self, attempt: Attempt) -> None:
        attempt.cancelled.set()
        # A thread only sees the flag; cancelling its task would report before it has had its grace.
        if attempt.cancel_cooperatively and not attempt.on_thread:
            attempt.cancel_cooperatively()

    def _make_consumers(self, kafka: Mapping[str, str]) -> list[LaneConsumer]:
        protocol = group_protocol(kafka, self._settings.executor_group)
        topics: Topics = self._installation.topics
        made: list[LaneConsumer] = []
        for queue in self._queues:
            for lane in Lane:
                topic = topics.runs(queue, lane)
                client: Consumer = consumer(
                    kafka, group=f"{topic}.executors", role=f"executor-{lane}", protocol=protocol
                )
                made.append(
                    LaneConsumer(
                        client,
                        topic,
                        lane,
                        claimer=self._claimer(f"tidewheel-executor-{lane}"),
                        slots=self._slots,
                        handlers=self._names,
                        begin=self._begin,
                        crowded=self._crowded,
                        stop=self._stop,
                    )
                )
        return made

    def _make_sweep(self) -> Sweep:
        return Sweep(
            Session(self._url, "tidewheel-executor-sweep"),
            claimer=self._claimer("tidewheel-executor-sweep"),
            slots=self._slots,
            queues=self._queues,
            handlers=self._names,
            begin=self._begin,
            idle=lambda: all(each.idle for each in self._consumers),
            every=self._settings.sweep,
            stop=self._stop,
        )

    def _claimer(self, name: str) -> Claimer:
        session = Session(self._url, name)
        return Claimer(
            session,
            self._installation,
            self.executor_id,
            self._stop,
            lease_lost=lambda: self._heartbeat.beat_now(),
            poke=self._notifier.poke,
        )

    def _crowded(self) -> bool:
        return self._finisher.backlog() > _CROWD


def _unsupported(attempt: Attempt) -> Outcome:
    kind = attempt.definition.target.kind
    return failed("UnsupportedTarget", f"this executor's release has no target {kind}; upgrade it", permanent=True)
