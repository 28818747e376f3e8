"""Keep services running: restart with backoff, replace an executor, stop in order.

Invariant: a process whose handlers cannot be imported replaces none. It imports them while the one before still serves.
"""

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from functools import partial

from tidewheel.clock import monotonic_seconds
from tidewheel.control.supervise.child import UNUSABLE
from tidewheel.control.supervise.log import Log
from tidewheel.control.supervise.process import Report, Service, ServiceProcess, end_text

_AT_ONCE_SECONDS = 10.0  # a process that lives longer has not failed at its start
_MAX_FAILURES = 5  # at once, in a row
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_ERROR = "tidewheel: "  # begins the last line of a command that refuses its settings
# New work ends first, then attempts, then the relay: it publishes the events of the last outcomes.
_STOP_ORDER = (("api", "intake", "scheduler"), ("executor",), ("relay",))


class Restarts:
    """Pauses before the next start of what has ended; none after several short lives in a row."""

    limit = _MAX_FAILURES

    def __init__(self) -> None:
        self._failures = 0

    def next_pause(self, lived: float) -> float | None:
        """Return the seconds before the next start, after a process that lived so long; None if there is none."""
        self._failures = self._failures + 1 if lived < _AT_ONCE_SECONDS else 1
        if self._failures == self.limit:
            return None
        return min(_FIRST_PAUSE_SECONDS * 2.0 ** (self._failures - 1), _LONGEST_PAUSE_SECONDS)


class Supervisor:
    """Services as child processes.

    Args:
        keeps_waiting: True if an executor whose handlers cannot be imported waits for a change of their files.
    """

    def __init__(self, services: Sequence[Service], log: Log, *, keeps_waiting: bool = False) -> None:
        self._slots = [_Slot(service) for service in services]
        self._log, self._keeps_waiting = log, keeps_waiting
        self._released, self._stopping = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.has_failed = False

    def start(self) -> None:
        """Start the processes, which import their code and wait for `release`."""
        for slot in self._slots:
            self.run_beside(self._keep(slot))

    def run_beside(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run a coroutine until the stop; an error of it stops all."""
        self._tasks.append(asyncio.create_task(coroutine))
        self._tasks[-1].add_done_callback(self._on_end_of_task)

    def release(self) -> None:
        """Let the processes serve."""
        self._released.set()

    def hold(self) -> None:
        """Let no further process serve until the next `release`; those that serve go on."""
        self._released.clear()

    def request_stop(self) -> None:
        """Cause `wait_stopping` to return."""
        self._stopping.set()

    def fail(self, message: str, error: str = "") -> None:
        """Report why no more can be kept running, once, and request the stop."""
        if not self.has_failed:
            self._log.report(message, level="error", **({"error": error} if error else {}))
        self.has_failed = True
        self.request_stop()

    @property
    def is_stopping(self) -> bool:
        """True after the request of a stop."""
        return self._stopping.is_set()

    async def wait_stopping(self) -> None:
        """Wait until a stop is requested or a service cannot be kept running."""
        await self._stopping.wait()

    async def wait_settled(self) -> None:
        """Wait until each service has started, or waits for its handlers."""
        await asyncio.gather(*(slot.settled.wait() for slot in self._slots))

    def last_report(self, role: str) -> Report:
        """Return the last report of a role's process."""
        return self._slot(role).report

    async def next_report(self, role: str) -> Report:
        """Wait for the next report of a role's process."""
        return await self._slot(role).reports.get()

    def change(self, role: str) -> None:
        """Replace the role's process: its handlers' files have changed."""
        self._slot(role).changed.set()

    async def stop(self) -> None:
        """Stop all processes, in order."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for roles in _STOP_ORDER:
            found = [process for slot in self._slots if slot.service.role in roles for process in slot.processes]
            await asyncio.gather(*(process.stop() for process in found))

    def kill(self) -> None:
        """Kill all processes."""
        for slot in self._slots:
            for process in slot.processes:
                process.signal(signal.SIGKILL)

    def _slot(self, role: str) -> "_Slot":
        return next(slot for slot in self._slots if slot.service.role == role)

    async def _keep(self, slot: "_Slot") -> None:
        restarts = Restarts()
        process = await self._prepared(slot)
        while not self._stopping.is_set():
            await self._released.wait()
            began = monotonic_seconds()
            process.go()
            ended = asyncio.create_task(process.wait())
            successor = await self._successor(slot, ended)
            if successor is not None:
                await process.stop()
                slot.processes.remove(process)
                process = successor
                continue
            slot.processes.remove(process)
            code = ended.result()
            if code == UNUSABLE and not slot.settled.is_set():
                self.fail(f"{slot.service.role} cannot start: {_reason(process)}; all is stopped")
                return
            pause = restarts.next_pause(monotonic_seconds() - began)
            if pause is None:
                message = f"has failed {restarts.limit} times at once and last {end_text(code)}: all is stopped"
                self.fail(f"{slot.service.role} {message}", "\n".join(process.tail))
                return
            message = f"{slot.service.role} {end_text(code)}; it starts again in {pause:g} s"
            self._log.report(message, level="warning")
            await asyncio.sleep(pause)
            process = await self._prepared(slot)

    async def _prepared(self, slot: "_Slot") -> ServiceProcess:
        """Return a new process that has imported its code; wait while the handlers are faulty."""
        while True:
            process = await self._start(slot)
            slot.keep(await process.report())
            if slot.report.error is None or not self._keeps_waiting:
                return process
            await self._dismiss(slot, process, "there is no executor until they are corrected")
            slot.settled.set()
            await slot.changed.wait()
            slot.changed.clear()

    async def _successor(self, slot: "_Slot", ended: "asyncio.Task[int]") -> ServiceProcess | None:
        """Wait for a change, and return the process that follows; None if the present one has ended before."""
        while True:
            changed = asyncio.create_task(slot.changed.wait())
            await asyncio.wait({ended, changed}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            if ended.done():
                return None
            slot.changed.clear()
            process = await self._start(slot)
            slot.keep(await process.report())
            if slot.report.error is None:
                names = ", ".join(slot.report.handlers) or "none"
                self._log.report(f"handlers changed: the executor is replaced; handlers now: {names}")
                return process
            await self._dismiss(slot, process, "the executor goes on with those before")

    async def _start(self, slot: "_Slot") -> ServiceProcess:
        process = await ServiceProcess.start(slot.service, partial(self._on_line, slot))
        slot.processes.append(process)
        return process

    async def _dismiss(self, slot: "_Slot", process: ServiceProcess, consequence: str) -> None:
        self._log.report(f"{slot.report.error}; {consequence}", level="error")
        process.dismiss()
        await process.wait()
        slot.processes.remove(process)

    def _on_line(self, slot: "_Slot", text: str) -> None:
        if not slot.settled.is_set() and f'"message": "{slot.service.role} started' in text:
            slot.settled.set()
        self._log.add(slot.service.role, text)

    def _on_end_of_task(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()):
            self.fail(f"the supervisor failed: {error!r}")


def _reason(process: ServiceProcess) -> str:
    """Return the last error line of a service, and those below it."""
    lines = list(process.tail)
    first = max((number for number, line in enumerate(lines) if line.startswith(_ERROR)), default=0)
    return "\n".join(lines[first:]).removeprefix(_ERROR)


class _Slot:
    """A service and its processes: one, or two while a new executor replaces another."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.processes: list[ServiceProcess] = []
        self.report = Report()
        self.reports: asyncio.Queue[Report] = asyncio.Queue()
        self.settled, self.changed = asyncio.Event(), asyncio.Event()

    def keep(self, report: Report) -> None:
        """Keep a report, and pass it on."""
        self.report = report
        self.reports.put_nowait(report)
