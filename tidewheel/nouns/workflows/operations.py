"""`client.workflows`: list, show, pause, resume and cancel occurrences of workflows."""

from functools import partial
from typing import Annotated
from uuid import UUID

from pydantic import BeforeValidator, Field

from tidewheel.api_keys import Scope
from tidewheel.control.client.arguments import as_id
from tidewheel.jobs.values import Key, Reason
from tidewheel.nouns.operation import InDoors, Noun, Page, Rows, operation
from tidewheel.nouns.workflows.model import ParentOfRun, Place, State, Workflow, WorkflowSummary
from tidewheel.nouns.workflows.reads import list_parents, list_workflows, show_workflow

_WORKFLOWS = "/api/v1/workflows"
_WORKFLOW = f"{_WORKFLOWS}/{{run_id:uuid}}"

RootRunId = Annotated[UUID, BeforeValidator(partial(as_id, name="root_run_id")), InDoors("run_id")]
_RunId = Annotated[UUID, BeforeValidator(partial(as_id, name="run_id"))]
_Root = Annotated[Key | None, Field(description="Only those of the root with this key."), InDoors("job")]
_ParentKey = Annotated[
    Key | None,
    Field(description="Only the parent with this key, with its result, whatever the size of all together."),
    InDoors("job"),
]
_Parents = list[ParentOfRun]  # the class has another `list`
_Generation = Annotated[
    Annotated[int, Field(ge=0, le=2**63 - 1)] | None,
    Field(description="As this generation has left it; by default as it is."),
]


class Workflows(Noun):
    """Occurrences of workflows. Each is named by the run of its root."""

    @operation(f"GET {_WORKFLOWS}", "list_workflows", scope=Scope.READ)
    def list(
        self,
        key: _Root = None,
        *,
        state: Annotated[State | None, Field(description="Only those in this state.")] = None,
        after: Place | None = None,
        limit: Rows = 100,
    ) -> Page[WorkflowSummary]:
        """List occurrences of workflows, the newest first; those of one root by instant."""
        with self._call.snapshot() as connection:
            return list_workflows(connection, self._call.tenant, key, state, after=after, limit=limit)

    @operation(f"GET {_WORKFLOW}", "get_workflow", scope=Scope.READ)
    def get(self, root_run_id: RootRunId, *, generation: _Generation = None) -> Workflow:
        """Show an occurrence with its graph: the root first, each job with the state of its latest run.

        Raises:
            InvalidInput: It has no such generation.
            UnknownWorkflow: The tenant has no occurrence with this root's run.
        """
        with self._call.snapshot() as connection:
            return show_workflow(connection, self._call.tenant, root_run_id, generation=generation)

    @operation(f"POST {_WORKFLOW}:pause", "pause_workflow", scope=Scope.OPERATE)
    def pause(self, root_run_id: RootRunId, *, reason: Reason | None = None, request_id: str | None = None) -> bool:
        """Release no further run of an occurrence until it is resumed; queued runs go on.

        Returns:
            False if it is paused already.
        """
        return self._change("workflow.pause", root_run_id, reason, request_id)

    @operation(f"POST {_WORKFLOW}:resume", "resume_workflow", scope=Scope.OPERATE)
    def resume(self, root_run_id: RootRunId, *, reason: Reason | None = None, request_id: str | None = None) -> bool:
        """Go on with a paused occurrence, or run the failed part of an ended one again.

        Returns:
            False if it is open.

        Raises:
            Refused: Nothing of it failed, or it is being cancelled.
            Unavailable: The database does not answer. Without a `request_id` the resume may have happened.
        """
        return self._change("workflow.resume", root_run_id, reason, request_id)

    @operation(f"POST {_WORKFLOW}:cancel", "cancel_workflow", scope=Scope.OPERATE)
    def cancel(self, root_run_id: RootRunId, *, reason: Reason | None = None, request_id: str | None = None) -> bool:
        """Cancel the runs of an occurrence, and release no further one.

        Returns:
            False if it has ended.
        """
        return self._change("workflow.cancel", root_run_id, reason, request_id)

    @operation("GET /api/v1/runs/{run_id:uuid}/parents", "list_parents", scope=Scope.READ)
    def parents(self, run_id: _RunId, *, key: _ParentKey = None) -> _Parents:
        """List the parents of a run in its occurrence, with their latest runs and results.

        Raises:
            UnknownRun: The tenant has no run of this id.
        """
        with self._call.snapshot() as connection:
            return list_parents(connection, self._call.tenant, run_id, key)

    def _change(self, kind: str, root_run_id: UUID, reason: str | None, request_id: str | None) -> bool:
        document = {"type": kind, "run_id": str(root_run_id), "reason": reason}
        return not self._call.request(document, request_id).unchanged
