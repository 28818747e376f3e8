"""`tidewheel.Client`: submit, trigger, pause, resume, delete, cancel and wait, from Python.

Requests are applied by the same code that intake uses, in one transaction each, straight on Tidewheel's database.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, TypeVar, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.control.enqueue import raise_if_rejected, trigger_document
from tidewheel.db import CommitUnknown, Session
from tidewheel.errors import Unavailable, UnknownRun
from tidewheel.ids import JobId, RunId
from tidewheel.intake.accept import apply_requests
from tidewheel.intake.incoming import Incoming
from tidewheel.jobs.requests import parse_request
from tidewheel.jobs.spec import JobSpec
from tidewheel.runs import FINAL, RunState
from tidewheel.schemas.records import Reply
from tidewheel.settings import Connections
from tidewheel.sql import Statements
from tidewheel.transitions.installation import read_installation
from tidewheel.wakeup import Channel, Notifier

_READ_RUN = Statements("tidewheel.control")["read_run"]

_LOG = logging.getLogger("tidewheel.client")

_FIRST_LOOK_SECONDS = 0.02
_LONGEST_LOOK_SECONDS = 0.5
_TRIES = 5


Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Job:
    """A job after a request.

    Args:
        job_id: Derived from tenant and key.
        version: The current version.
        unchanged: Whether the request changed nothing.
        next_run_at: The next occurrence, if there is one and the job is not paused.
    """

    job_id: JobId
    version: int
    unchanged: bool
    next_run_at: datetime | None


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it stands.

    Args:
        run_id: Its id.
        job_id: Its job.
        state: Where it stands; terminal when in `tidewheel.runs.FINAL`.
        attempt: The last attempt begun; 0 before the first.
        scheduled_at: The nominal instant.
        started_at: When the last attempt began.
        finished_at: When it ended.
        reason: Why skipped or cancelled, or which timeout struck.
        error_type: The last error's type.
        error_message: What it said.
        result: What the handler returned, as JSON text.
    """

    run_id: UUID
    job_id: UUID
    state: str
    attempt: int
    scheduled_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    reason: str | None
    error_type: str | None
    error_message: str | None
    result: bytes | None

    @property
    def final(self) -> bool:
        """Whether it will never change again."""
        return RunState(self.state) in FINAL


class Client:
    """A connection to Tidewheel for one thread; a context manager."""

    def __init__(self, database_url: str | None = None, *, tenant: str = "default") -> None:
        settings = Connections.load(database_url=database_url)
        self._url = settings.database()
        self._tenant = tenant
        self._session = Session(self._url, "tidewheel-client")
        with self._session.transaction() as connection:
            self._installation = read_installation(connection, settings)
        self._notifier = Notifier(self._url, "tidewheel-client-notify")
        self._never = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._notifier.close()
        self._session.close()

    def submit(self, job: Mapping[str, object] | JobSpec, *, request_id: str | None = None) -> Job:
        """Create a job, or change it; an identical spec changes nothing.

        Args:
            job: The job as in a `job.submit` request, as a mapping or a `JobSpec`.
            request_id: The same id again gets the first answer.

        Raises:
            Refused: Something in it does not fit; `errors` names each field and its remedy.
            Unavailable: The database does not answer.
        """
        # A spec goes in as it is: written out, its payload and jitter would not be read as what they were.
        given = job if isinstance(job, JobSpec) else dict(job)
        return _job(self._ask({"type": "job.submit", "job": given}, request_id))

    def trigger(
        self,
        key: str,
        payload: object = None,
        *,
        delay: timedelta | float | None = None,
        run_at: datetime | None = None,
        labels: dict[str, str] | None = None,
        request_id: str | None = None,
    ) -> RunId:
        """Run a job once: now, after `delay` (timedelta or seconds), or at `run_at`.

        Returns:
            The run's id, for `wait` and `run`.

        Raises:
            Refused: There is no such job, or an argument does not fit.
            Unavailable: The database does not answer.
        """
        document = trigger_document(
            key, payload, tenant=self._tenant, delay=delay, run_at=run_at, labels=labels, request_id=request_id
        )
        return RunId(UUID(self._ask(document, request_id).run_id))

    def pause(self, key: str, *, reason: str | None = None) -> Job:
        """Fire no occurrence of a job until it is resumed; triggers go on working."""
        return _job(self._ask(_without_none({"type": "job.pause", "key": key, "reason": reason})))

    def resume(self, key: str) -> Job:
        """Fire a paused job's occurrences again."""
        return _job(self._ask({"type": "job.resume", "key": key}))

    def delete(self, key: str) -> Job:
        """Remove a job; runs that have begun finish."""
        return _job(self._ask({"type": "job.delete", "key": key}))

    def cancel(self, run_id: UUID, *, reason: str | None = None) -> RunState:
        """End a run, whatever state it is in.

        Returns:
            The state it was found in.
        """
        reply = self._ask(_without_none({"type": "run.cancel", "run_id": str(run_id), "reason": reason}))
        return RunState(reply.run_status or "")

    def run(self, run_id: UUID) -> Run:
        """A run as it stands.

        Raises:
            UnknownRun: There is none of this id in this tenant.
        """
        with (
            self._session.transaction() as connection,
            connection.cursor(row_factory=class_row(Run), binary=True) as cursor,
        ):
            found = cursor.execute(_READ_RUN, {"run_id": run_id, "tenant": self._tenant}).fetchone()
        if found is None:
            raise UnknownRun(str(run_id))
        return found

    def wait(self, run_id: UUID, timeout: timedelta | float = 60.0) -> Run:
        """Wait until a run is terminal.

        Args:
            run_id: The run.
            timeout: How long, as a timedelta or in seconds.

        Raises:
            TimeoutError: It was not terminal in time; the message tells its state.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        deadline, pause = monotonic_seconds() + seconds, _FIRST_LOOK_SECONDS
        while not (run := self.run(run_id)).final:
            if monotonic_seconds() >= deadline:
                message = f"run {run_id} is {run.state} after {seconds:g} s"
                raise TimeoutError(message)
            self._never.wait(min(pause, max(deadline - monotonic_seconds(), 0)))
            pause = min(pause * 1.5, _LONGEST_LOOK_SECONDS)
        return run

    def _ask(self, document: dict[str, object], request_id: str | None = None) -> Reply:
        document = {**document, "tenant": self._tenant}
        if request_id is not None:
            document["request_id"] = request_id
        incoming = Incoming(parse_request(document))
        reply = self._apply(incoming)
        raise_if_rejected(reply)
        for channel in (Channel.TIMERS, Channel.OUTBOX, Channel.SIGNALS):
            self._notifier.poke(channel)
        return reply

    def _apply(self, incoming: Incoming) -> Reply:
        for _ in range(_TRIES - 1):
            try:
                return self._apply_once(incoming)
            except CommitUnknown:
                # It may stand; a trigger that nothing names could make a second run.
                if incoming.request.request_id is None and incoming.request.type == "job.trigger":
                    raise
            except Unavailable as error:
                _LOG.info("trying again: %s", error)
        return self._apply_once(incoming)

    def _apply_once(self, incoming: Incoming) -> Reply:
        with self._session.transaction() as connection:
            return apply_requests(connection, self._installation, [incoming])[0]


class AsyncClient:
    """`Client` for coroutines: submit, trigger, run, cancel and wait, awaited; all on one thread, one after another.

    A call that is cancelled ends on its thread all the same, before the next one begins: half a transaction is never
    left for the next call to commit.
    """

    def __init__(self, database_url: str | None = None, *, tenant: str = "default") -> None:
        self._client = Client(database_url, tenant=tenant)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidewheel-client")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._on_thread(self._client.close)
        self._thread.shutdown(wait=False)

    async def submit(self, job: Mapping[str, object] | JobSpec, *, request_id: str | None = None) -> Job:
        """See `Client.submit`."""
        return await self._on_thread(lambda: self._client.submit(job, request_id=request_id))

    async def trigger(
        self,
        key: str,
        payload: object = None,
        *,
        delay: timedelta | float | None = None,
        run_at: datetime | None = None,
        labels: dict[str, str] | None = None,
        request_id: str | None = None,
    ) -> RunId:
        """See `Client.trigger`."""
        return await self._on_thread(
            lambda: self._client.trigger(key, payload, delay=delay, run_at=run_at, labels=labels, request_id=request_id)
        )

    async def run(self, run_id: UUID) -> Run:
        """See `Client.run`."""
        return await self._on_thread(lambda: self._client.run(run_id))

    async def cancel(self, run_id: UUID, *, reason: str | None = None) -> RunState:
        """See `Client.cancel`."""
        return await self._on_thread(lambda: self._client.cancel(run_id, reason=reason))

    async def wait(self, run_id: UUID, timeout: timedelta | float = 60.0) -> Run:
        """See `Client.wait`."""
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        deadline, pause = monotonic_seconds() + seconds, _FIRST_LOOK_SECONDS
        while not (run := await self.run(run_id)).final:
            if monotonic_seconds() >= deadline:
                message = f"run {run_id} is {run.state} after {seconds:g} s"
                raise TimeoutError(message)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_LOOK_SECONDS)
        return run

    async def _on_thread(self, call: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def _job(reply: Reply) -> Job:
    return Job(JobId(UUID(reply.job_id)), cast("int", reply.job_version), reply.unchanged, reply.next_run_at)


def _without_none(document: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in document.items() if value is not None}
