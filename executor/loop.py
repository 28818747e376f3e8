"""The executor: consumers, sweep, heartbeat and reaper on threads, attempts on the event loop."""

import asyncio
import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from uuid import UUID, uuid4

from tidewheel.executor.attempt import LET_GO_SECONDS, Attempt
from tidewheel.executor.claim import Claimer
from tidewheel.executor.claim_batch import Taking
from tidewheel.executor.complete_in import Completer
from tidewheel.executor.completer import Finisher
from tidewheel.executor.dispatch import Work, hand_back
from tidewheel.executor.handlers import Handler
from tidewheel.executor.heartbeat import Heartbeat
from tidewheel.executor.lanes import Lanes, choose_lanes
from tidewheel.executor.outcome import CANCELLED, NOT_BEGUN, RELEASED, Outcome
from tidewheel.executor.output_capture import Flusher, Stream
from tidewheel.executor.previous_run import Past
from tidewheel.executor.reaper import Reaper
from tidewheel.executor.run_queue import Line
from tidewheel.executor.runners.aws import LambdaRunner, has_boto
from tidewheel.executor.runners.http import http_runner
from tidewheel.executor.runners.kafka import KafkaRunner
from tidewheel.executor.runners.python import python_runner
from tidewheel.executor.runners.runner import Runner
from tidewheel.executor.runners.shell import ShellRunner
from tidewheel.executor.slots import Slots
from tidewheel.executor.sweep import Sweep
from tidewheel.executor.watchdog import Watchdog
from tidewheel.jobs.targets import TARGETS
from tidewheel.kafka.topics import queue_names
from tidewheel.postgres.notify import Channel, Listener, Notifier
from tidewheel.postgres.session import BY_KEY, KEPT_PLANS, Session
from tidewheel.process.clock_skew import ClockSkew
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Shutdown
from tidewheel.runs import Lane
from tidewheel.schemas.generated.records import JobDefinition, RunRequest, TargetKind
from tidewheel.settings import ExecutorSettings
from tidewheel.transitions.cancel_signals import Signal
from tidewheel.transitions.claim import Started
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.executor")

_DEFAULT_SLOTS = 100
_CROWD = 4000  # outcomes waiting to be written, above which no more is claimed
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
        stop: Shutdown,
        lanes: Lanes | None = None,
    ) -> None:
        self.executor_id = uuid4()
        self._settings, self._url, self._installation, self._stop = settings, url, installation, stop
        self._kinds = _target_kinds(settings)
        self._names = frozenset(handlers) | {name for kind in self._kinds if (name := TARGETS[kind].requires)}
        self._queues = queue_names(settings.queues)
        lanes = lanes or choose_lanes(settings, kafka, installation.topics, self._queues)
        self._protocol = lanes.protocol
        self._slots = Slots(settings.slots or _DEFAULT_SLOTS)
        self._running: dict[tuple[UUID, int], Attempt] = {}
        self._notifier = Notifier(url, "tidewheel-executor-notify")
        self._finisher = Finisher(
            Session(url, "tidewheel-executor-finish", options=BY_KEY),
            installation,
            self.executor_id,
            lambda: self._notifier.notify(Channel.OUTBOX),
            flooded=self._flooded,
            helping=Session(url, "tidewheel-executor-finish-2", options=BY_KEY),
        )
        self._heartbeat = self._make_heartbeat()
        self._reaper = Reaper(
            Session(url, "tidewheel-executor-reap"),
            installation,
            lease=settings.lease,
            max_lost=settings.max_lost,
            stop=stop,
        )
        self._past = Past(Session(url, "tidewheel-executor-previous"))
        self._completer = Completer(installation, self.executor_id)
        self._consumers = lanes.consumers(
            self._taking, slots=self._slots, hold=settings.sweep, crowded=self._crowded, stop=stop
        )
        self._sweep = self._make_sweep()
        self._watchdog = Watchdog(settings.stall_after, self._hand_on)
        self._stream = Stream(kafka, installation.topics.outputs) if settings.outputs_topic else None
        flushing = Session(url, "tidewheel-executor-output")
        self._flusher = Flusher(flushing, self.executor_id, lambda: list(self._running.values()), self._stream)
        self._runners = self._make_runners(kafka, handlers)
        work = Work(
            self._runners, grace_seconds=settings.cancel_grace.total_seconds(), is_silent=self._heartbeat.is_silent
        )
        brief = [name for name, handler in handlers.items() if handler.is_async and not handler.own_process]
        self._line = Line(self._slots, brief, run=work.run, watch=work.watch, on_end=self._on_end)
        self._loop: asyncio.AbstractEventLoop

    async def run(self) -> None:
        """Work until asked to stop, then drain and hand back."""
        self._loop = asyncio.get_running_loop()
        self._line.start()
        await asyncio.to_thread(self._heartbeat.start, self._stop)
        listener = Listener(self._url, "tidewheel-executor-listen", (Channel.SIGNALS,), self._heartbeat.wake)
        told = (self.executor_id, self._queues, self._slots.total, self._protocol)
        _LOG.info("executor %s serves %s with %d slots, group protocol %s", *told)
        for each in self._consumers:
            each.start()
        self._sweep.start()
        self._reaper.start()
        self._flusher.start()
        self._watchdog.start()
        asked = asyncio.Event()
        threading.Thread(target=self._tell_when_asked, args=(asked,), daemon=True).start()
        await asked.wait()
        listener.close()
        await self._drain()

    def why_not_ready(self) -> str | None:
        """Why it could take no run now; None when it could."""
        silent = self._heartbeat.silent_seconds()
        if not self._heartbeat.entered:
            return "has not entered yet"
        if silent > self._settings.lease.total_seconds():
            return f"its lease was last renewed {silent:.0f} s ago"
        return None

    def _tell_when_asked(self, asked: asyncio.Event) -> None:
        event = threading.Event()
        self._stop.wakes(event)
        while not self._stop.requested():
            event.wait(1.0)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(asked.set)

    async def _drain(self) -> None:
        """Leave the group, let attempts end, hand back the rest without charge."""
        self._heartbeat.stopping()
        await asyncio.gather(*(asyncio.to_thread(each.join) for each in self._consumers))
        await asyncio.to_thread(self._sweep.join)
        await asyncio.to_thread(self._reaper.join)
        await self._line.wait_until_empty(self._settings.drain_timeout.total_seconds())
        for attempt in list(self._running.values()):
            not_begun = not attempt.begun or (attempt.withdraw is not None and attempt.withdraw())
            if not_begun or attempt.on_thread:
                hand_back(attempt, NOT_BEGUN if not_begun else RELEASED)
            elif attempt.struck is None:
                attempt.struck = RELEASED  # told when it has stopped: it may begin elsewhere at once
            self._stop_cooperatively(attempt)
        await self._line.wait_until_empty(LET_GO_SECONDS)
        for attempt in list(self._running.values()):
            hand_back(attempt, attempt.struck or RELEASED)
        self._watchdog.stop()
        await asyncio.to_thread(self._flusher.close)
        clean = await asyncio.to_thread(self._finisher.drain, _FLUSH_SECONDS)
        self._finisher.close()
        await asyncio.to_thread(lambda: self._heartbeat.leave(clean=clean))
        self._notifier.close()
        self._past.close()
        for runner in self._runners.values():
            await runner.close()

    def _begin(self, items: Sequence[tuple[Started, RunRequest, JobDefinition]]) -> None:
        """Start attempts whose slots are taken; called from the claiming threads."""
        attempts = [
            Attempt(
                *item,
                on_report=self._on_report,
                on_release=self._line.release,
                beats=self._finisher.beats,
                past=self._past,
                completer=self._completer,
                stream_output=self._stream is not None,
            )
            for item in items
        ]
        waited: Counter[tuple[str, datetime, datetime]] = Counter()
        for attempt in attempts:
            started = attempt.started
            self._running[started.run_id, started.attempt] = attempt
            waited[attempt.definition.lane, started.publish_at, started.started_at] += 1
        for (lane, due, began), times in waited.items():
            metrics.observe("start_lateness_seconds", [((began - due).total_seconds(), times)], lane)
        if attempts:
            self._line.add(attempts)

    def _on_report(self, attempt: Attempt, outcome: Outcome) -> None:
        if outcome.error_type:
            known = {"run_id": str(attempt.run_id), "attempt": attempt.started.attempt}
            told = {"job_key": attempt.definition.job_key, "trace": outcome.trace}
            _LOG.warning("%s: %s", outcome.error_type, outcome.error_message, extra={**known, **told})
        self._finisher.add(attempt, outcome)
        if self._stream is not None:
            self._stream.ended(attempt)

    def _hand_on(self) -> None:
        """The loop stands still, or the lease was ended: what has not begun goes to executors that can run it."""
        for attempt in list(self._running.values()):
            if attempt.report_unbegun(NOT_BEGUN):
                _LOG.info("handed on", extra=attempt.about)

    def _on_end(self, attempt: Attempt) -> None:
        self._running.pop(attempt.key, None)

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
        if attempt.withdraw is not None and attempt.withdraw():
            return  # it has not begun, and never will: its task is told
        # A thread only sees the flag; cancelling its task would report before it has had its grace.
        if attempt.cancel_cooperatively and not attempt.on_thread:
            attempt.cancel_cooperatively()

    def _taking(self, topic: str, lane: Lane) -> Taking:
        claimer = self._claimer(f"tidewheel-executor-{lane}")
        return Taking(topic, claimer=claimer, handlers=self._names, begin=self._begin)

    def _make_heartbeat(self) -> Heartbeat:
        return Heartbeat(
            Session(self._url, "tidewheel-executor-heartbeat"),
            executor_id=self.executor_id,
            name=f"{socket.gethostname()}:{os.getpid()}",
            queues=self._queues,
            handlers=sorted(self._names),
            slots=self._slots.total,
            group_protocol=self._protocol,
            every=self._settings.heartbeat,
            lease=self._settings.lease,
            on_signal=self._on_signal,
            busy=lambda: bool(self._running),
            skew=ClockSkew(self._settings.max_clock_skew),
            on_reentry=self._hand_on,
        )

    def _make_runners(self, kafka: Mapping[str, str], handlers: Mapping[str, Handler]) -> dict[TargetKind, Runner]:
        factories: dict[TargetKind, Callable[[], Runner]] = {
            TargetKind.HANDLER: lambda: python_runner(self._settings, handlers, self._completer),
            TargetKind.HTTP: lambda: http_runner(self._settings, self._installation),
            TargetKind.KAFKA: lambda: KafkaRunner(kafka, self._installation),
            TargetKind.SHELL: lambda: ShellRunner(self._settings),
            TargetKind.LAMBDA: LambdaRunner,
        }
        return {kind: factories[kind]() for kind in self._kinds}

    def _make_sweep(self) -> Sweep:
        return Sweep(
            Session(self._url, "tidewheel-executor-sweep"),
            claimer=self._claimer("tidewheel-executor-sweep"),
            slots=self._slots,
            queues=self._queues,
            handlers=self._names,
            begin=self._begin,
            idle=lambda: all(each.idle for each in self._consumers),
            crowded=self._crowded,
            every=self._settings.sweep,
            stop=self._stop,
        )

    def _claimer(self, name: str) -> Claimer:
        session = Session(self._url, name, options=KEPT_PLANS)
        return Claimer(
            session,
            self._installation,
            self.executor_id,
            self._stop,
            lease_lost=lambda: self._heartbeat.beat_now(),
            poke=self._notifier.notify,
            silent=self._heartbeat.is_silent,
        )

    def _flooded(self) -> bool:
        return self._slots.are_ahead() and any(each.flooded for each in self._consumers)

    def _crowded(self) -> bool:
        return self._finisher.backlog() > _CROWD or self._watchdog.stalled()


def _target_kinds(settings: ExecutorSettings) -> list[TargetKind]:
    """Return the types of targets that this executor runs."""
    here = {TargetKind.SHELL: settings.shell, TargetKind.LAMBDA: has_boto()}
    return [kind for kind in map(TargetKind, TARGETS) if here.get(kind, True)]
