"""`client.workflows`: list, show, pause, resume and cancel occurrences of workflows."""

from uuid import UUID

from tidewheel.control.client.arguments import as_id, as_int
from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.workflows import Workflow, WorkflowSummary, workflow, workflows


class Workflows:
    """Occurrences of workflows. Each is named by the run of its root."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, key: str | None = None, *, limit: int = 100) -> list[WorkflowSummary]:
        """Return the occurrences of the tenant, or of one root, the newest first."""
        with self._connection.snapshot() as connection:
            return workflows(connection, self._connection.tenant, key, limit=as_int(limit, "limit"))

    def get(self, root_run_id: UUID, *, generation: int | None = None) -> Workflow:
        """Return an occurrence with the latest run of each of its jobs, of all generations or up to one.

        Raises:
            InvalidInput: It has no such generation.
            UnknownWorkflow: The tenant has no occurrence with this root's run.
        """
        root_run_id = as_id(root_run_id, "root_run_id")
        generation = None if generation is None else as_int(generation, "generation")
        with self._connection.snapshot() as connection:
            return workflow(connection, self._connection.tenant, root_run_id, generation=generation)

    def pause(self, root_run_id: UUID, *, reason: str | None = None) -> bool:
        """Release no further run until `resume`; return False if it is paused already."""
        return self._request("workflow.pause", root_run_id, reason)

    def resume(self, root_run_id: UUID, *, request_id: str | None = None) -> bool:
        """Go on after a pause, or run the failed part again; return False if it is open.

        Args:
            request_id: A repeated id is one resume.

        Raises:
            Refused: Nothing of it failed, or it is being cancelled.
            Unavailable: The database does not answer. Without a `request_id` the resume may have happened.
        """
        return self._request("workflow.resume", root_run_id, None, request_id)

    def cancel(self, root_run_id: UUID, *, reason: str | None = None) -> bool:
        """Cancel its runs, and release no further one; return False if it has ended."""
        return self._request("workflow.cancel", root_run_id, reason)

    def _request(self, kind: str, root_run_id: UUID, reason: str | None, request_id: str | None = None) -> bool:
        root_run_id = as_id(root_run_id, "root_run_id")
        document = {"type": kind, "run_id": str(root_run_id), "reason": reason}
        return not self._connection.request(document, request_id).unchanged
