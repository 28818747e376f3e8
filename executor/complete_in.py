"""`ctx.complete_in`: complete a run inside its handler's own PostgreSQL transaction.

Effect, outcome, attempt row and completion event commit together or not at all. The handler commits the transaction.
If it rolls back, nothing has happened and the attempt goes on. If it commits, the run is over, and a later report of
the attempt changes nothing. The statements check the fence under the run's row lock. A superseded attempt makes the
transaction fail, so that its effect is never committed, whatever its code does with the error.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus

from tidewheel.errors import AttemptOver, FieldError, InvalidInput, refuse
from tidewheel.executor.outcome import Outcome, failed, serialize_result
from tidewheel.postgres.session import Conn
from tidewheel.postgres.session_kinds import use_async_connection, use_connection
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.schemas.generated.records import JobDefinition, RunRequest
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.executor")

NOT_COMMITTED = "NotCommitted"


@dataclass(frozen=True, slots=True)
class CompletionConfig:
    """Settings that all completions of one executor share; can be pickled for worker processes."""

    installation: Installation
    executor_id: UUID


@dataclass(slots=True)
class Completion:
    """The completion of one attempt's run, by its handler."""

    config: CompletionConfig
    run_id: UUID
    attempt: int
    request: RunRequest | None = None  # the run message; None reads it from the database
    definition: JobDefinition | None = None
    output: Callable[[], tuple[bytes | None, int | None]] | None = None  # so far: its tail, and the number of its bytes
    next_in: timedelta | None = None  # from the end to the job's next run
    called: bool = field(default=False, init=False)

    def complete_in(self, connection: Connection[object], result: object) -> None:
        """As `Context.complete_in`."""
        end = self._end(result)
        _require_transaction(connection)
        with use_connection(connection, self.config.installation.schema) as own:
            self._write(own, end)

    async def complete_in_async(self, connection: AsyncConnection[object], result: object) -> None:
        """As `Context.complete_in_async`."""
        end = self._end(result)
        _require_transaction(connection)
        await use_async_connection(connection, self.config.installation.schema, lambda own: self._write(own, end))

    def _end(self, result: object) -> RunEnd:
        output, output_bytes = self.output() if self.output else (None, None)
        return RunEnd(
            run_id=self.run_id,
            attempt=self.attempt,
            executor_id=self.config.executor_id,
            state=RunState.SUCCEEDED,
            result=encode_result(result),
            output=output,
            output_bytes=output_bytes,
            request=self.request,
            definition=self.definition,
            next_in=self.next_in,
        )

    def _write(self, connection: Conn, end: RunEnd) -> None:
        try:
            is_held = lock_attempt(connection, self.run_id, self.attempt, self.config.executor_id)
        except psycopg.errors.UndefinedTable as error:
            problem, remedy = "its database has no table job_runs", "pass a connection to Tidewheel's database"
            raise InvalidInput([FieldError("connection", problem, remedy)]) from error
        if not is_held:
            self._refuse(connection)
        failpoint("complete_in.held")
        self.called = True
        if not finish_runs(connection, self.config.installation, [end], lasting=True).states:
            self._refuse(connection)
        failpoint("complete_in.written")

    def _refuse(self, connection: Conn) -> None:
        try:
            connection.execute(_SQL["refuse_completion"], {"run_id": self.run_id, "attempt": self.attempt})
        except psycopg.errors.RaiseException as error:
            message = f"attempt {self.attempt} of run {self.run_id} is over; its transaction is rolled back"
            raise AttemptOver(message) from error


def lock_attempt(connection: Conn, run_id: UUID, attempt: int, executor_id: UUID) -> bool:
    """Lock the row of a running attempt; return False if it is over, or another executor's."""
    columns = {"run_id": run_id, "attempt": attempt, "executor_id": executor_id, "running": RunState.RUNNING}
    return connection.execute(_SQL["lock_attempt"], columns).fetchone() is not None


def encode_result(result: object) -> bytes | None:
    """Return a result as it is stored; raise InvalidInput before anything is written."""
    outcome = serialize_result(result)
    if outcome.kind is not AttemptOutcome.SUCCEEDED:
        remedy = "return a value that pydantic can serialize to JSON, up to 64 KiB"
        refuse("result", outcome.error_message or "", remedy)
    return outcome.result


def verify_completion(outcome: Outcome) -> Outcome:
    """Return the outcome of a handler that has called `complete_in`.

    After a commit the run is over, and recording this outcome changes nothing. Without one, a success would lose the
    effect, so it becomes a failure.
    """
    if outcome.kind is AttemptOutcome.SUCCEEDED:
        message = "the handler called complete_in and returned, but the transaction was not committed: commit it first"
        outcome = failed(NOT_COMMITTED, message)
    return replace(outcome, completes=True)


def _require_transaction(connection: Connection[object] | AsyncConnection[object]) -> None:
    if getattr(connection, "autocommit", False) and connection.pgconn.transaction_status == TransactionStatus.IDLE:
        problem, remedy = "is in autocommit mode, outside a transaction", "write `with connection.transaction():`"
        refuse("connection", problem, remedy)
