"""`client.task_tokens`: completions, failures and heartbeats by an attempt's task token."""

from uuid import uuid4

from tidewheel.control.client.connection import Connection
from tidewheel.runs import RunState


class TaskTokens:
    """Requests about an attempt from outside its executor."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def complete(self, token: str, result: object = None, *, request_id: str | None = None) -> RunState:
        """Report that an attempt has succeeded.

        Args:
            result: Any JSON value, at most 64 KiB.

        Returns:
            The run's new state: succeeded, or cancelled where a cancellation was requested meanwhile.
        """
        return self._end(request_id, token=token, result=result)

    def fail(
        self,
        token: str,
        error_type: str | None = None,
        error_message: str | None = None,
        *,
        permanent: bool = False,
        request_id: str | None = None,
    ) -> RunState:
        """Report that an attempt has failed; the job's retry policy decides on another one.

        Args:
            error_type: Compared with the job's `non_retryable`.

        Returns:
            The run's new state: retrying, failed, or cancelled where a cancellation was requested meanwhile.
        """
        failure = {"error_type": error_type, "error_message": error_message, "permanent": permanent or None}
        return self._end(request_id, token=token, status="failed", **failure)

    def heartbeat(self, token: str, progress: object = None, checkpoint: object = None) -> RunState:
        """Report that an attempt is alive.

        Args:
            progress: Its progress: any JSON value, at most 4 KiB.
            checkpoint: State for the next attempt to continue from: any JSON value, at most 64 KiB.

        Returns:
            The run's state; `cancelling` if a stop was requested.

        Raises:
            StaleToken: The attempt has ended: stop working on it.
        """
        self._connection.refresh_task_tokens()
        document = {"type": "run.heartbeat", "token": token, "progress": progress, "checkpoint": checkpoint}
        return RunState(self._connection.request(document).run_status or "")

    def _end(self, request_id: str | None, **fields: object) -> RunState:
        # With an id, a repeat after a lost COMMIT returns the first reply, not StaleToken.
        self._connection.refresh_task_tokens()
        document = {"type": "run.complete", **fields}
        return RunState(self._connection.request(document, request_id or str(uuid4())).run_status or "")
