"""The local stack of `tidewheel up` and `dev`, locked and watched by one `dev`.

A part that ends by itself starts again, as services do. One that another command has stopped stays stopped.

A locked file in the stack's home names the `dev` that uses it. The kernel releases the lock of a killed process; the
file then still records if the stack was its own.
"""

import asyncio
import fcntl
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from pydantic import ValidationError

from tidewheel.clock import monotonic_seconds
from tidewheel.control.supervise.process import Log
from tidewheel.control.supervise.supervisor import Restarts, Supervisor
from tidewheel.errors import StackError
from tidewheel.kafka.topics import DEFAULT_QUEUE, PartitionCounts, apply_topics, queue_names
from tidewheel.local.daemon import Progress, Step
from tidewheel.local.parts import PartState, PartStatus
from tidewheel.local.stack import LocalStack, StackInfo
from tidewheel.local.state import DEV_FILE, Dev
from tidewheel.migrations.runner import migrate
from tidewheel.postgres.session import connect
from tidewheel.postgres.statements import Statements
from tidewheel.settings.connections import ALLOW_LIST_VARIABLES, Connections
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.transitions.installation import read_installation, record_topic_prefix

_READ_QUEUES = Statements("tidewheel.control")["read_queues"]

R = TypeVar("R")


def make_stack(home: Path | None, *, brokers: int | None = None, standby: bool | None = None) -> LocalStack:
    """Return the stack of a home folder; servers that the settings name take the place of its own parts."""
    settings = Connections.load()
    return LocalStack(
        home,
        brokers=brokers,
        standby=standby,
        database_url=settings.database_url.get_secret_value() if settings.database_url else None,
        bootstrap=settings.named_brokers(),
        client=settings.kafka_client(),
    )


def start_stack(stack: LocalStack, progress: Progress) -> StackInfo:
    """Start the parts that do not run; bring the schema and the topics to this release's state.

    Every queue that a job or TIDEWHEEL_QUEUES names has topics afterwards. All of it can be repeated.
    """
    served = queue_names(ExecutorSettings.load().queues)
    info = stack.up(progress)
    progress(Step("creating the schema and the topics"))
    settings = Connections.load(database_url=info.database_url)
    url = settings.database()
    migrate(url, tenant_role=settings.role_of_tenants, role_prefix=settings.role_prefix)
    with connect(url, "tidewheel-up") as connection:
        record_topic_prefix(connection, settings)
        topics = read_installation(connection, settings).topics
        named = [str(queue) for (queue,) in connection.execute(_READ_QUEUES)]
    apply_topics(
        dict(info.kafka),
        topics,
        replication=info.replication or settings.replication,
        queues=list(dict.fromkeys([DEFAULT_QUEUE, *served, *named])),
        outputs=settings.outputs_topic,
        counts=PartitionCounts(settings.runs_partitions, settings.events_partitions, settings.tenant_partitions),
    )
    return info


class DevStack:
    """The stack while `dev` runs; a stop of its supervisor also ends a start of the stack."""

    def __init__(self, stack: LocalStack, lock: "DevLock", supervisor: Supervisor, log: Log) -> None:
        self._stack, self._lock, self._supervisor, self._log = stack, lock, supervisor, log
        self._is_stopped = False

    async def start(self) -> StackInfo | None:
        """Start what does not run, with schema and topics; None if a stop was requested meanwhile."""

        def start(progress: Progress) -> StackInfo:
            # A part that runs may serve others: its stack is left running.
            states = {part.state for part in self._stack.status().parts}
            if PartState.RUNNING not in states and states != {PartState.GIVEN}:
                self._lock.own_stack()
            return start_stack(self._stack, progress)

        return await self._unless_stopping(start)

    async def keep(self, info: StackInfo) -> None:
        """Start parts that die again, until cancelled; stop all if that fails, or after `tidewheel down`."""
        by_part = defaultdict[str, Restarts](Restarts)
        while True:
            began = monotonic_seconds()
            part = await self._next_end()
            self._supervisor.hold()
            status = await asyncio.to_thread(self._stack.settled_status)
            if PartState.DEAD not in [each.state for each in status.parts] and not status.is_running:
                self._is_stopped = True
                self._log.report(f"{part.name} was stopped by another command; stopping everything", level="warning")
                self._supervisor.request_stop()
                return
            restarts = by_part[part.name]
            problem, lived = f"{part.name} has ended unexpectedly", monotonic_seconds() - began
            while True:
                pause = restarts.next_pause(lived)
                if pause is None:
                    message = f"{part.name} has ended {restarts.limit} times in a row; stopping everything"
                    self._supervisor.fail(f"{message}; its log is in {self._stack.home / 'logs'}", problem)
                    return
                self._log.report(f"{problem}; restarting in {pause:g} s", level="warning")
                await asyncio.sleep(pause)
                try:
                    again = await self._unless_stopping(self._stack.up)
                except StackError as error:
                    problem, lived = str(error), 0.0
                else:
                    break
            if again is None:
                return
            if again != info:
                self._supervisor.fail(
                    "another process has taken a port of the stack; stopping everything, start `tidewheel dev` again"
                )
                return
            self._log.report(f"{part.name} is running again")
            self._supervisor.release()

    async def stop(self) -> None:
        """Stop what this `dev` has started, or a killed one before it."""
        if self._is_stopped:
            self._lock.release_stack()
            self._log.report("stopped")
        elif self._lock.owns_stack:
            await asyncio.to_thread(self._stack.down, progress=lambda step: self._log.report(step.what))
            self._lock.release_stack()
            self._log.report(f"stopped; the data in {self._stack.home} is kept")
        else:
            self._log.report("stopped; PostgreSQL and Kafka keep running; `tidewheel down` stops them")

    async def _unless_stopping(self, start: Callable[[Progress], R]) -> R | None:
        """Return what a start on a thread returns; None if a stop was requested meanwhile."""
        last = ""

        def progress(step: Step) -> None:
            nonlocal last
            if self._supervisor.is_stopping:
                raise _StopRequested
            if step.what != last:
                last = step.what
                self._log.report(last)

        try:
            return await asyncio.to_thread(start, progress)
        except _StopRequested:
            return None

    async def _next_end(self) -> PartStatus:
        """Wait until a part of the stack has ended, and return it."""
        parts = [part for part in self._stack.status().parts if part.state is not PartState.GIVEN]
        loop, ended = asyncio.get_running_loop(), asyncio.Queue[PartStatus]()
        watched: list[int] = []
        try:
            for part in parts:
                try:
                    if part.pid is None:
                        return part
                    watched.append(os.pidfd_open(part.pid))
                except ProcessLookupError:
                    return part
                loop.add_reader(watched[-1], ended.put_nowait, part)
            return await ended.get()
        finally:
            for descriptor in watched:
                loop.remove_reader(descriptor)
                os.close(descriptor)


class _StopRequested(StackError):
    """A stop was requested while the stack starts."""


class DevLock:
    """The lock of one stack's home; StackError if another `tidewheel dev` has it."""

    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._home = home
        self._file = (home / DEV_FILE).open("a+")
        variables = {name: os.environ[name] for name in ALLOW_LIST_VARIABLES if name in os.environ}
        self._owner = Dev(pid=os.getpid(), folder=str(Path.cwd()), variables=variables)

    def __enter__(self) -> Self:
        """Take the lock, and the stack of a killed `dev`."""
        before = self._read()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            named = f" (pid {before.pid}, started in {before.folder})" if before else ""
            raise StackError(
                f"`tidewheel dev` is already running on the stack in {self._home}{named}; "
                "stop that one, or choose another --home"
            ) from None
        self._owner.owns_stack = before is not None and before.owns_stack
        self._write()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Release the lock; a stack that is still owned stays so for the next `dev`."""
        if not self._owner.owns_stack:
            self._file.truncate(0)
        self._file.close()

    @property
    def owns_stack(self) -> bool:
        """True if this `dev`, or a killed one before it, has started the stack."""
        return self._owner.owns_stack

    def add(self, variables: Mapping[str, str]) -> None:
        """Record further variables that clients need: `tidewheel env` prints them."""
        self._owner.variables |= variables
        self._write()

    def own_stack(self) -> None:
        """Record, before the stack starts, that this `dev` starts it."""
        self._owner.owns_stack = True
        self._write()

    def release_stack(self) -> None:
        """Record that the stack is stopped."""
        self._owner.owns_stack = False
        self._write()

    def _read(self) -> Dev | None:
        self._file.seek(0)
        with suppress(ValidationError):
            return Dev.model_validate_json(self._file.read())
        return None

    def _write(self) -> None:
        self._file.truncate(0)
        self._file.write(self._owner.model_dump_json())
        self._file.flush()
