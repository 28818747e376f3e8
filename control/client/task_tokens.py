"""The part of `Client` for who has an attempt's task token: how it ended, or that it goes on."""

from uuid import uuid4

from tidewheel.control.client.connection import Door
from tidewheel.runs import RunState


class ByToken(Door):
    """What is told about an attempt from outside."""

    def complete(self, token: str, result: object = None, *, request_id: str | None = None) -> RunState:
        """Say that an attempt has succeeded.

        Args:
            token: Its task token.
            result: Any JSON value, of at most 64 KiB.
            request_id: The same id again gets the first answer.

        Returns:
            The state its run has now: succeeded, or cancelled where that was asked for meanwhile.

        Raises:
            StaleToken: The attempt is over already.
            Refused: It is no token of this installation, or the result does not fit.
            Unavailable: The database does not answer.
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
        """Say that an attempt has failed; whether and when there is another, the job's policy says.

        Args:
            token: Its task token.
            error_type: Compared with the job's `non_retryable`.
            error_message: What went wrong.
            permanent: Another attempt makes no sense.
            request_id: The same id again gets the first answer.

        Returns:
            The state its run has now: retrying, failed, or cancelled where that was asked for meanwhile.

        Raises:
            StaleToken: The attempt is over already.
            Refused: It is no token of this installation, or the texts do not fit.
            Unavailable: The database does not answer.
        """
        failure = {"error_type": error_type, "error_message": error_message, "permanent": permanent or None}
        return self._end(request_id, token=token, status="failed", **failure)

    def heartbeat(self, token: str, progress: object = None, checkpoint: object = None) -> RunState:
        """Say that an attempt goes on.

        Args:
            token: Its task token.
            progress: How far it is: any JSON value, of at most 4 KiB.
            checkpoint: What the next attempt needs to go on from here: any JSON value, of at most 64 KiB.

        Returns:
            The state its run is in; `cancelling` means that it was asked to stop.

        Raises:
            StaleToken: The attempt is over: stop.
            Refused: It is no token of this installation, or a value does not fit.
            Unavailable: The database does not answer.
        """
        document = {"type": "run.heartbeat", "token": token, "progress": progress, "checkpoint": checkpoint}
        return RunState(self._ask(document).run_status or "")

    def _end(self, request_id: str | None, **fields: object) -> RunState:
        # Under a name, so that one whose COMMIT was lost and is sent again is not told that it comes too late.
        document = {"type": "run.complete", **fields}
        return RunState(self._ask(document, request_id or str(uuid4())).run_status or "")
