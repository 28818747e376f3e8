"""The executor process: its threads, its event loop with the attempts, and its shutdown."""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from uuid import UUID, uuid4

from tidewheel.executor.attempt import SHUTDOWN_GRACE_SECONDS, Attempt
from tidewheel.executor.attempt_log import EndLog, Watchdog, observe_claimed
from tidewheel.executor.claim import Claimer
from tidewheel.executor.complete_in import CompletionConfig
from tidewheel.executor.completer import Completer
from tidewheel.executor.context_parts import ADDERS
from tidewheel.executor.handler_services import BatchAdds, EarlierRuns, HandlerServices
from tidewheel.executor.handlers import ChunkHandler, Handler
from tidewheel.executor.lanes import Lanes, choose_lanes
from tidewheel.executor.lease import Heartbeat, Lease, read_owned
from tidewheel.executor.message_check import MessageCheck, key_look_up
from tidewheel.executor.outcome import CANCELLED, NOT_STARTED, RELEASED, Outcome
from tidewheel.executor.output_capture import Flusher, OutputTopic
from tidewheel.executor.payload_schemas import payload_schemas, record_payload_schemas
from tidewheel.executor.reaper import Reaper
from tidewheel.executor.run_messages import BatchClaimer, StartRuns
from tidewheel.executor.run_queue import RunQueue
from tidewheel.executor.runners.aws import LambdaRunner
from tidewheel.executor.runners.kafka import KafkaRunner
from tidewheel.executor.runners.python import PythonRunner, python_runner
from tidewheel.executor.runners.runner import DeferredRunner, Runner, TargetDispatcher, capabilities, target_kinds
from tidewheel.executor.runners.secret_store import SecretStore, secret_store
from tidewheel.executor.runners.shell import ShellRunner
from tidewheel.executor.slots import HeldBytes, Slots
from tidewheel.executor.sweep import Sweep
from tidewheel.kafka.topics import queue_names
from tidewheel.message_signatures import MessageKeys
from tidewheel.postgres.notify import Channel, Listener, Notifier
from tidewheel.postgres.session import KEPT_PLANS, UNIFORM, Conn, Session
from tidewheel.postgres.session_kinds import SessionPool
from tidewheel.process.clock_skew import ClockSkew
from tidewheel.process.service import Shutdown
from tidewheel.runs import Lane
from tidewheel.schemas.generated.records import JobDefinition, RunRequest, TargetKind
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.transitions.cancellation import Signal
from tidewheel.transitions.claim import Started
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.executor")

_DEFAULT_SLOTS = 100
_MAX_BACKLOG = 6000  # outcomes that are not written yet, above which nothing is claimed
_DRAIN_SECONDS = 10.0  # for writing outcomes when the executor shuts down


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
        self._kinds = target_kinds(settings)
        handlers = handlers if TargetKind.HANDLER in self._kinds else {}
        self._names = frozenset(handlers) | capabilities(self._kinds)
        self._queues = queue_names(settings.queues)
        lanes = lanes or choose_lanes(settings, kafka, installation.topics, self._queues)
        self._protocol = lanes.protocol
        self._slots = Slots(settings.slots or _DEFAULT_SLOTS)
        self._running: dict[tuple[UUID, int], Attempt] = {}
        self._held_bytes = HeldBytes()
        self._notifier = Notifier(url, "tidewheel-executor-notify")
        self._completer = Completer(
            Session(url, "tidewheel-executor-complete", options=UNIFORM),
            installation,
            self.executor_id,
            self._on_written,
            in_burst=self._in_burst,
            on_released=lambda: self._notifier.notify(Channel.TIMERS),
            second_session=Session(url, "tidewheel-executor-complete-2", options=UNIFORM),
            log=EndLog(all_ends=settings.log_runs, errors=settings.log_errors),
        )
        self._keys, self._skew = MessageKeys(), ClockSkew(settings.max_clock_skew)
        self._check = MessageCheck(self._keys, settings.message_signatures, key_look_up(url, self._keys))
        self._heartbeat = self._make_heartbeat(handlers)
        self._reaper = Reaper(
            Session(url, "tidewheel-executor-reap"),
            installation,
            lease=settings.lease,
            max_lost=settings.max_lost,
            stop=stop,
        )
        self._earlier_runs = EarlierRuns(Session(url, "tidewheel-executor-earlier"))
        self._completion = CompletionConfig(installation, self.executor_id)
        self._batch_adds = BatchAdds(
            SessionPool(lambda: Session(url, "tidewheel-executor-batches", renews=True), ADDERS),
            installation,
            self.executor_id,
            lambda: self._notifier.notify(Channel.OUTBOX),
        )
        self._consumers = lanes.consumers(
            self._batch_claimer,
            slots=self._slots,
            max_wait=settings.sweep,
            overloaded=self._overloaded,
            database_now=self._skew.database_reached,
            stop=stop,
        )
        self._sweep = self._make_sweep()
        self._watchdog = Watchdog(settings.stall_after, self._release_not_started)
        self._stream = OutputTopic(kafka, installation.topics.outputs) if settings.outputs_topic else None
        flushing = Session(url, "tidewheel-executor-output")
        self._flusher = Flusher(flushing, self.executor_id, lambda: list(self._running.values()), self._stream)
        self._runners = self._make_runners(kafka, handlers)
        self._services = HandlerServices(
            self._completer.progress,
            self._earlier_runs,
            self._completion,
            self._batch_adds,
            stream_output=self._stream is not None,
        )
        dispatcher = TargetDispatcher(self._runners, grace_seconds=settings.cancel_grace.total_seconds())
        inline = [name for name, handler in handlers.items() if handler.is_async and not handler.own_process]
        self._run_queue = RunQueue(
            self._slots,
            inline,
            run=dispatcher.run,
            watch=dispatcher.watch,
            on_end=self._on_end,
            chunks={name: handler.chunk for name, handler in handlers.items() if isinstance(handler, ChunkHandler)},
            run_chunk=self._run_chunk,
        )
        self._loop: asyncio.AbstractEventLoop

    async def run(self) -> None:
        """Run until a shutdown is requested, then drain and release the rest."""
        self._loop = asyncio.get_running_loop()
        self._run_queue.start()
        await asyncio.to_thread(self._heartbeat.start, self._stop)
        listener = Listener(self._url, "tidewheel-executor-listen", (Channel.SIGNALS,), self._heartbeat.wake)
        facts = (self.executor_id, self._queues, self._slots.total, self._protocol)
        _LOG.info("executor %s serves %s with %d slots, group protocol %s", *facts)
        for each in self._consumers:
            each.start()
        self._sweep.start()
        self._reaper.start()
        self._flusher.start()
        self._watchdog.start()
        shutdown = asyncio.Event()
        threading.Thread(target=self._set_on_shutdown, args=(shutdown,), daemon=True).start()
        await shutdown.wait()
        listener.close()
        await self._drain()

    def why_not_ready(self) -> str | None:
        """Return the reason for which it can take no run now; None if it can."""
        silent = self._heartbeat.silent_seconds()
        if not self._heartbeat.entered:
            return "has not registered yet"
        if silent > self._settings.lease.total_seconds():
            return f"its lease was last renewed {silent:.0f} s ago"
        return None

    def _set_on_shutdown(self, shutdown: asyncio.Event) -> None:
        event = threading.Event()
        self._stop.wakes(event)
        while not self._stop.requested():
            event.wait(1.0)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(shutdown.set)

    async def _drain(self) -> None:
        """Leave the groups, let attempts end, and release the rest uncounted."""
        self._heartbeat.stopping()
        await asyncio.gather(*(asyncio.to_thread(each.join) for each in self._consumers))
        await asyncio.to_thread(self._sweep.join)
        await asyncio.to_thread(self._reaper.join)
        await self._run_queue.wait_until_empty(self._settings.drain_timeout.total_seconds())
        for attempt in list(self._running.values()):
            not_started = attempt.report_not_started(NOT_STARTED) or attempt.cancel_queued()
            if not_started or attempt.on_thread:
                attempt.report(NOT_STARTED if not_started else RELEASED)
            else:
                attempt.stop_as(RELEASED)  # reported when it has stopped, and then its run may start elsewhere at once
            attempt.stop()
        await self._run_queue.wait_until_empty(SHUTDOWN_GRACE_SECONDS)
        for attempt in list(self._running.values()):
            attempt.report(attempt.stop_outcome or RELEASED)
        self._watchdog.stop()
        await asyncio.to_thread(self._flusher.close)
        clean = await asyncio.to_thread(self._completer.drain, _DRAIN_SECONDS)
        self._completer.close()
        await asyncio.to_thread(lambda: self._heartbeat.leave(clean=clean))
        self._notifier.close()
        self._earlier_runs.close()
        self._batch_adds.close()
        for runner in self._runners.values():
            await runner.close()

    def _start(self, claimed: Sequence[tuple[Started, RunRequest, JobDefinition]], lease: Lease) -> None:
        """Queue claimed runs whose slots are taken; called from the claiming threads."""
        on_report, on_release, services = self._on_report, self._run_queue.release, self._services
        attempts = [Attempt(*run, on_report, on_release, services, lease) for run in claimed]
        for attempt in attempts:
            self._running[attempt.key] = attempt
        self._held_bytes.claimed(attempts)
        observe_claimed(attempts)
        if attempts:
            self._run_queue.add(attempts)

    async def _run_chunk(self, attempts: Sequence[Attempt]) -> None:
        runner = self._runners[TargetKind.HANDLER]
        assert isinstance(runner, PythonRunner)  # noqa: S101 - only its attempts are gathered
        with self._held_bytes.of_call(attempts):
            await runner.run_chunk(attempts)

    def _on_report(self, attempt: Attempt, outcome: Outcome) -> None:
        self._held_bytes.ended(attempt, outcome)
        self._completer.add(attempt, outcome)
        if self._stream is not None:
            self._stream.ended(attempt)

    def _on_written(self, attempts: Sequence[Attempt]) -> None:
        self._held_bytes.written(attempts)
        self._notifier.notify(Channel.OUTBOX)

    def _release_not_started(self) -> None:
        """Release attempts that have not started: the loop is blocked, or the lease was ended."""
        for attempt in list(self._running.values()):
            attempt.report_not_started(NOT_STARTED)

    def _on_reentry(self, connection: Conn) -> None:
        """Release what has not started or is not sent, and end what is no longer owned."""
        self._release_not_started()
        for runner in self._runners.values():
            if isinstance(runner, KafkaRunner):
                runner.recall()
        running = [one for one in list(self._running.values()) if one.has_started and not one.reported]
        owned = read_owned(connection, self.executor_id, [attempt.key for attempt in running]) if running else ()
        for attempt in running:
            if attempt.key not in owned:
                _LOG.warning("the attempt is over: its executor's lease was", extra=attempt.about)
                attempt.lose()

    def _on_end(self, attempt: Attempt) -> None:
        self._running.pop(attempt.key, None)

    def _on_signal(self, run_id: UUID, number: int, kind: Signal) -> bool:
        """Stop an attempt, and fence it off if it goes on; return False if it is not here.

        A cancelled attempt has a grace period. The run of a terminated one has ended already.
        """
        attempt = self._running.get((run_id, number))
        if attempt is None:
            return False
        if not attempt.cancelled.is_set():
            _LOG.info("%s requested", kind, extra={"run_id": str(run_id), "attempt": number})
            attempt.cancelled.set()
            self._loop.call_soon_threadsafe(attempt.stop)
            grace = self._settings.cancel_grace.total_seconds()
            self._loop.call_soon_threadsafe(self._loop.call_later, grace, attempt.report, CANCELLED)
        if kind is Signal.TERMINATE:
            attempt.report(CANCELLED)
        return True

    def _batch_claimer(self, topic: str, lane: Lane) -> BatchClaimer:
        claimer = self._claimer(f"tidewheel-executor-{lane}")
        start = self._starter(claimer)
        return BatchClaimer(topic, claimer=claimer, check=self._check, handlers=self._names, start=start)

    def _starter(self, claimer: Claimer) -> StartRuns:
        return lambda claimed: self._start(claimed, claimer.lease)

    def _make_heartbeat(self, handlers: Mapping[str, Handler]) -> Heartbeat:
        return Heartbeat(
            Session(self._url, "tidewheel-executor-heartbeat", prompt=True),
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
            keys=self._keys,
            skew=self._skew,
            on_entry=partial(record_payload_schemas, schemas=payload_schemas(handlers)),
            on_reentry=self._on_reentry,
        )

    def _make_runners(self, kafka: Mapping[str, str], handlers: Mapping[str, Handler]) -> dict[TargetKind, Runner]:
        allow_lists = self._settings.allow_lists(self._installation.topics.prefix, enforces=True)
        store = secret_store(self._settings)  # here, so that a broken variable ends the start
        factories: dict[TargetKind, Callable[[], Runner]] = {
            TargetKind.HANDLER: lambda: python_runner(self._settings, handlers, self._completion),
            TargetKind.HTTP: lambda: DeferredRunner(lambda: self._load_http_runner(store)),
            TargetKind.KAFKA: lambda: KafkaRunner(kafka, self._installation, self._settings.lease, allow_lists),
            TargetKind.SHELL: lambda: ShellRunner(self._settings),
            TargetKind.LAMBDA: lambda: LambdaRunner(allow_lists),
        }
        return {kind: factories[kind]() for kind in self._kinds}

    def _load_http_runner(self, store: SecretStore) -> Runner:
        from tidewheel.executor.runners.http import http_runner

        return http_runner(self._settings, self._installation, store)

    def _make_sweep(self) -> Sweep:
        claimer = self._claimer("tidewheel-executor-sweep")
        return Sweep(
            Session(self._url, "tidewheel-executor-sweep"),
            claimer=claimer,
            slots=self._slots,
            held=self._held_bytes,
            queues=self._queues,
            handlers=self._names,
            start=self._starter(claimer),
            idle=lambda: all(each.idle for each in self._consumers),
            overloaded=self._stalled,
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
            lease_lost=lambda: self._heartbeat.send_now(),
            notify=self._notifier.notify,
            lease=self._heartbeat.lease,
        )

    def _in_burst(self) -> bool:
        return self._slots.is_overcommitted() and any(each.in_burst for each in self._consumers)

    def _overloaded(self, lane: Lane) -> bool:
        return self._stalled() or self._held_bytes.full(lane)

    def _stalled(self) -> bool:
        return self._completer.backlog() > _MAX_BACKLOG or self._watchdog.blocked()
