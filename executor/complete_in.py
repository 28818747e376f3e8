"""`ctx.complete_in`: a run's completion inside its handler's own PostgreSQL transaction.

Effect, outcome, attempt and completion event are one: all of them stand, or none. The transaction is the handler's to
commit. Rolled back, nothing has happened and the attempt goes on; committed, the run is over, and what the attempt
still reports changes nothing. The fence is looked at inside, under the run's lock: an attempt that counts no more makes
the transaction fail, so that its effect is never committed, whatever its code does with the error.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus

from tidewheel.errors import AttemptOver, FieldError, InvalidInput
from tidewheel.executor.outcome import Outcome, failed, written
from tidewheel.postgres.caller_connection import use_async_connection, use_connection
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.schemas.generated.records import JobDefinition, RunRequest
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.executor")
_HOLD_ATTEMPT = _SQL["hold_attempt"]
_REFUSE_COMPLETION = _SQL["refuse_completion"]

NOT_COMMITTED = "NotCommitted"


@dataclass(frozen=True, slots=True)
class Completer:
    """What completions of one executor have in common; can be pickled, for handlers in other processes.

    Args:
        installation: Topics and encoding.
        executor_id: Part of every fence.
    """

    installation: Installation
    executor_id: UUID


@dataclass(slots=True)
class Completion:
    """The completion of one attempt's run, by its handler.

    Args:
        completer: Whose attempt it is.
        run_id: The run.
        attempt: The fence.
        request: The message it came by; read from the database where it is not at hand.
        definition: The definition in it, likewise.
        output: Tells what the attempt has written so far: the last of it, and how many bytes in all.
        called: Whether a completion was written, be it committed or not.
    """

    completer: Completer
    run_id: UUID
    attempt: int
    request: RunRequest | None = None
    definition: JobDefinition | None = None
    output: Callable[[], tuple[bytes | None, int | None]] | None = None
    called: bool = field(default=False, init=False)

    def complete_in(self, connection: Connection[object], result: object) -> None:
        """As `Context.complete_in`."""
        end = self._end(result)
        _see_transaction(connection)
        with use_connection(connection) as own:
            self._write(own, end)

    async def complete_in_async(self, connection: AsyncConnection[object], result: object) -> None:
        """As `Context.complete_in_async`."""
        end = self._end(result)
        _see_transaction(connection)
        await use_async_connection(connection, lambda own: self._write(own, end))

    def _end(self, result: object) -> RunEnd:
        output, output_bytes = self.output() if self.output else (None, None)
        return RunEnd(
            run_id=self.run_id,
            attempt=self.attempt,
            executor_id=self.completer.executor_id,
            state=RunState.SUCCEEDED,
            result=kept(result),
            output=output,
            output_bytes=output_bytes,
            request=self.request,
            definition=self.definition,
        )

    def _write(self, connection: Conn, end: RunEnd) -> None:
        columns = {
            "run_id": self.run_id,
            "attempt": self.attempt,
            "executor_id": self.completer.executor_id,
            "running": RunState.RUNNING,
        }
        try:
            held = connection.execute(_HOLD_ATTEMPT, columns).fetchone()
        except psycopg.errors.UndefinedTable as error:
            problem, remedy = "its database has no table open_runs", "give a connection to Tidewheel's own database"
            raise InvalidInput([FieldError("connection", problem, remedy)]) from error
        if held is None:
            self._refuse(connection)
        failpoint("complete_in.held")
        self.called = True
        finish_runs(connection, self.completer.installation, [end], lasting=True)
        failpoint("complete_in.written")

    def _refuse(self, connection: Conn) -> None:
        """Make the transaction fail, and say so.

        Raises:
            AttemptOver: Always.
        """
        try:
            connection.execute(_REFUSE_COMPLETION, {"run_id": self.run_id, "attempt": self.attempt})
        except psycopg.errors.RaiseException as error:
            message = f"attempt {self.attempt} of run {self.run_id} is over; its transaction is rolled back"
            raise AttemptOver(message) from error


def kept(result: object) -> bytes | None:
    """A result as it is kept.

    Raises:
        InvalidInput: It cannot be; nothing was written yet, so that the effect can be undone.
    """
    outcome = written(result)
    if outcome.kind is not AttemptOutcome.SUCCEEDED:
        remedy = "return what pydantic can write as JSON, up to 64 KiB"
        raise InvalidInput([FieldError("result", outcome.error_message or "", remedy)])
    return outcome.result


def checked(outcome: Outcome, completion: Completion) -> Outcome:
    """What a handler's end means that may have completed its run itself.

    Where the transaction was committed, the run is over and nothing more is written. A success that is reported
    although it was not would lose the effect.
    """
    if not completion.called or outcome.kind is not AttemptOutcome.SUCCEEDED:
        return outcome
    message = "the handler called complete_in and returned, but the transaction was not committed: commit it first"
    return failed(NOT_COMMITTED, message)


def _see_transaction(connection: Connection[object] | AsyncConnection[object]) -> None:
    if getattr(connection, "autocommit", False) and connection.pgconn.transaction_status == TransactionStatus.IDLE:
        problem, remedy = "it is on autocommit, outside a transaction", "write `with connection.transaction():`"
        raise InvalidInput([FieldError("connection", problem, remedy)])
