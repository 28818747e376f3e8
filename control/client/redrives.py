"""`client.redrives`: follow, pause, resume and cancel redrives of dead letters."""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from tidewheel.control.client.arguments import as_id
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.polling import POLL_SECONDS, Polling
from tidewheel.control.reads.redrives import Redriving, redrive, redrives
from tidewheel.errors import InvalidInput, UnknownRedrive
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.validation import StrictModel, validate
from tidewheel.jobs.values import Reason
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn
from tidewheel.schedules.decision import BackfillState
from tidewheel.transitions.redrives import lock_redrive, set_redrive_state


@dataclass(frozen=True, slots=True)
class RedriveChange:
    """Result of a pause, a resume or a cancellation.

    Args:
        status: The redrive's state.
        unchanged: True if its state did not allow the change, or it had been made already.
    """

    status: str
    unchanged: bool


class _Given(StrictModel):
    reason: Reason


def checked_reason(reason: str | None) -> str | None:
    """Return the reason of a change.

    Raises:
        InvalidInput: It is too long, or holds a character that is not text.
    """
    try:
        return None if reason is None else validate(_Given, {"reason": reason}).reason
    except InvalidValue as error:
        raise InvalidInput(error.errors) from error


class Redrives:
    """Requests about existing redrives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, *, limit: int = 50) -> list[Redriving]:
        """List redrives, the newest first."""
        with self._connection.snapshot() as connection:
            return redrives(connection, self._connection.tenant, limit=limit)

    def get(self, redrive_id: UUID) -> Redriving:
        """Return a redrive with its progress.

        Raises:
            UnknownRedrive: The tenant has no redrive of this id.
        """
        redrive_id = as_id(redrive_id, "redrive_id")
        with self._connection.snapshot() as connection:
            return redrive(connection, self._connection.tenant, redrive_id)

    def wait(
        self,
        redrive_id: UUID,
        *,
        timeout: float | None = None,
        on_progress: Callable[[Redriving], None] | None = None,
    ) -> Redriving:
        """Wait until a redrive is finished or cancelled; return it.

        Args:
            redrive_id: The redrive.
            timeout: The most seconds to wait.
            on_progress: Called with the redrive twice a second.

        Raises:
            UnknownRedrive: The tenant has no redrive of this id.
            TimeoutError: It has not ended in time.
        """
        polling = Polling("redrive", redrive_id, timeout, on_progress)
        while polling.goes_on(found := self.get(redrive_id), found):
            self._connection.sleep(POLL_SECONDS)
        return found

    def pause(self, redrive_id: UUID, *, reason: str | None = None) -> RedriveChange:
        """Redrive no further dead letter until the redrive is resumed."""
        return self._change("pause", redrive_id, (BackfillState.RUNNING,), BackfillState.PAUSED, reason)

    def resume(self, redrive_id: UUID) -> RedriveChange:
        """Resume a redrive."""
        return self._change("resume", redrive_id, (BackfillState.PAUSED,), BackfillState.RUNNING, None)

    def cancel(self, redrive_id: UUID, *, reason: str | None = None) -> RedriveChange:
        """Stop a redrive; the runs that it has created go on."""
        sources = (BackfillState.RUNNING, BackfillState.PAUSED)
        return self._change("cancel", redrive_id, sources, BackfillState.CANCELLED, reason)

    def _change(
        self,
        verb: str,
        redrive_id: UUID,
        sources: tuple[BackfillState, ...],
        target: BackfillState,
        reason: str | None,
    ) -> RedriveChange:
        redrive_id = as_id(redrive_id, "redrive_id")
        tenant, reason = self._connection.tenant, checked_reason(reason)

        def change(connection: Conn) -> RedriveChange:
            state = lock_redrive(connection, tenant, redrive_id)
            if state is None:
                raise UnknownRedrive(str(redrive_id))
            if state not in sources:
                return RedriveChange(state, unchanged=True)
            set_redrive_state(connection, redrive_id, target, read_now(connection), reason=reason)
            self._connection.record(connection, f"redrive.{verb}", f"redrive/{redrive_id}", reason=reason)
            return RedriveChange(target, unchanged=False)

        done = self._connection.write(change)
        self._connection.notify(Channel.TIMERS)
        return done
