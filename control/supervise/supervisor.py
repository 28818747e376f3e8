"""Supervise the services of one command: restart with backoff, stop in order.

Invariant: a process whose handlers cannot be imported replaces none. It imports them while the one before still serves.
The first signal stops them in order, a second one ends at once: also those of `tidewheel dev`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path

from tidewheel.clock import monotonic_seconds
from tidewheel.control.supervise.child import CODE, UNUSABLE
from tidewheel.control.supervise.process import Log, Report, Service, ServiceProcess, end_text
from tidewheel.distribution import require
from tidewheel.errors import refuse
from tidewheel.settings.connections import Connections
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.settings.services import ApiSettings, IntakeSettings, RelaySettings, SchedulerSettings

_AT_ONCE_SECONDS = 10.0  # a process that lives longer has not failed at its start
_MAX_FAILURES = 5  # at once, in a row
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_ERROR = "tidewheel: "  # begins the last line of a command that refuses its settings
# New work ends first, then attempts, then the relay: it publishes the events of the last outcomes.
_STOP_ORDER = (("api", "intake", "scheduler"), ("executor",), ("relay",))

ROLES = tuple(CODE)

_SETTINGS: Mapping[str, type[Connections]] = {
    "intake": IntakeSettings,
    "scheduler": SchedulerSettings,
    "relay": RelaySettings,
    "executor": ExecutorSettings,
    "api": ApiSettings,
}
_STOP_SECONDS = 20.0  # beside the drain: longer than a service takes to end itself
_EXIT_BY_SIGNAL = 128  # as shells have it


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
    """Services as child processes; an executor with faulty handlers ends, or keeps waiting for a change."""

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
                self.fail(f"{slot.service.role} cannot start: {_reason(process)}; stopping everything")
                return
            pause = restarts.next_pause(monotonic_seconds() - began)
            if pause is None:
                message = f"has failed {restarts.limit} times in a row and last {end_text(code)}; stopping everything"
                self.fail(f"{slot.service.role} {message}", "\n".join(process.tail))
                return
            message = f"{slot.service.role} {end_text(code)}; restarting in {pause:g} s"
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
            await self._dismiss(slot, process, "no executor runs until the handlers are corrected")
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
                self._log.report(f"handlers changed; replacing the executor; handlers now: {names}")
                return process
            await self._dismiss(slot, process, "the executor keeps the previous handlers")

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


def read_roles(text: str) -> list[str]:
    """Return the roles that a list names, each once."""
    names = list(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    for name in names:
        if name not in ROLES:
            refuse("--roles", f"{name!r} is not a role", f"the roles are {', '.join(ROLES)}")
    if not names:
        refuse("--roles", "does not name a role", f"write some of {','.join(ROLES)}")
    return names


def make_services(
    roles: Sequence[str], variables: Mapping[str, str], flags: Sequence[str], metrics_port: int | None
) -> list[Service]:
    """Return the services of some roles, with ports of metrics from one on; 0 picks free ones."""
    services: list[Service] = []
    first = Connections.load(metrics_port=metrics_port).metrics_port
    for number, role in enumerate(roles):
        if role == "api":
            require("api", "the role api")
        settings = _SETTINGS[role].load(**_given(variables, _SETTINGS[role]))
        drain = settings.drain_timeout.total_seconds() if isinstance(settings, ExecutorSettings) else 0.0
        ports = [] if first is None else ["--metrics-port", str(first + number if first else 0)]
        services.append(
            Service(
                role=role,
                flags=[*flags, *ports],
                variables=variables if role != "executor" else {**variables, **_with_folder(Path.cwd())},
                stop_seconds=_STOP_SECONDS + drain,
            )
        )
    return services


def module_files(handlers: str | None) -> list[Path]:
    """Return the files of the modules with handlers, without importing one; refuse an unknown module."""
    files: list[Path] = []
    for name in filter(None, (part.strip() for part in (handlers or "").split(","))):
        if name.endswith(".py"):
            refuse("--handlers", f"{name} is a file", f"write the module's name, {name.removesuffix('.py')}")
        top, *rest = name.split(".")
        spec = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
        if spec is None:
            problem = f"there is no module {name!r} in this folder or installed"
            refuse("--handlers", problem, f"run the command in the folder of {top}.py, or install the package")
        if spec.origin and spec.has_location and not rest:
            files.append(Path(spec.origin))
    return files


async def run_services(services: Sequence[Service], log: Log) -> bool:
    """Run services until a signal; return False if one of them could not be kept running."""
    supervisor = Supervisor(services, log)
    with stopping_by_signals(supervisor, log, "services are killed"):
        supervisor.start()
        supervisor.release()
        await supervisor.wait_stopping()
        await supervisor.stop()
    log.report("stopped", level="error" if supervisor.has_failed else "info")
    return not supervisor.has_failed


@contextmanager
def stopping_by_signals(supervisor: Supervisor, log: Log, at_once: str) -> Generator[None]:
    """Request a stop at SIGINT, SIGTERM or SIGHUP; kill all and end at a second SIGINT or SIGTERM."""
    loop, requested = asyncio.get_running_loop(), False

    def on_signal(number: signal.Signals) -> None:
        nonlocal requested
        if requested and number != signal.SIGHUP:  # a terminal that closes sends it beside others
            supervisor.kill()
            log.report(f"{number.name} again: {at_once}", level="warning")
            log.close()
            os._exit(_EXIT_BY_SIGNAL + number)
        if not requested:
            requested = True
            log.report(f"{number.name}: stopping in order; repeat to kill everything")
            supervisor.request_stop()

    # `nohup` and a shell's background jobs ignore some of them: that stays.
    heeded = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    for number in heeded:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)


def _with_folder(folder: Path) -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), path] if path else [str(folder)])}


def _given(variables: Mapping[str, str], model: type[Connections]) -> dict[str, object]:
    """Return the variables that are settings of a model, by the names of its fields."""
    fields = {f"TIDEWHEEL_{name.upper()}": name for name in model.model_fields}
    return {fields[name]: value for name, value in variables.items() if name in fields}
