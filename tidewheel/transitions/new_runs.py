"""Runs to create, with their inputs."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from tidewheel.ids import JobId, RunId
from tidewheel.jobs.values import PRIORITY
from tidewheel.runs import Cause, Gate

_NO_GATES = Gate(0)


@dataclass(frozen=True, slots=True)
class RunInputs:
    """The inputs of a run beyond its job's version; `late` is the delay of a caught-up run."""

    payload: bytes | None = None
    payload_content_type: str | None = None
    labels: dict[str, str] | None = None
    overlap: str | None = None
    traceparent: str | None = None
    late: timedelta | None = None


class NewRun(NamedTuple):
    """A run to create.

    Args:
        run_id: Derived by `tidewheel.ids.run_id`.
        job_version: The version in force; a claim with another version matches no row.
        handler: The handler's name, or the capability that another target requires.
        publish_at: The earliest time of a claim.
        definition: The version's encoded JobDefinition, as stored.
        has_deadlines: False if the version is known to set neither schedule_to_start nor schedule_to_close.
        parent_run_id: The run that it retries.
        root_run_id: The first run of its retry chain.
        requested_from: Coordinates of its request's message; None if that did not come through Kafka.
        gates: Its first gates; `KEY` is set by itself.
        workflow_run_id: The root's run, if it belongs to an occurrence of a workflow.
        generation: Of a run of a workflow: 0, and one more for each resume.
        priority: Its rank inside its lane, 0 to 9.
        blocked: True if it waits for its parents: it has no message, and its deadlines count from its release.
        repeats_blocker: The run that blocks its ordering key, or will, if it repeats that.
        order_no: Its number in the order; set by itself.
        waits_in_order: True if another run of the order is first; set by itself.
    """

    run_id: RunId
    job_id: JobId
    tenant: str
    job_version: int
    shard: int
    cause: Cause
    queue: str
    lane: str
    handler: str
    overlap: str
    scheduled_at: datetime
    publish_at: datetime
    definition: bytes
    has_deadlines: bool = True
    inputs: RunInputs | None = None
    parent_run_id: RunId | None = None
    root_run_id: RunId | None = None
    request_id: str | None = None
    requested_from: str | None = None
    gates: Gate = _NO_GATES
    workflow_run_id: UUID | None = None
    generation: int | None = None
    concurrency_key: str | None = None
    priority: int = PRIORITY
    blocked: bool = False
    ordering_key: str | None = None
    repeats_blocker: UUID | None = None
    order_no: int | None = None
    waits_in_order: bool = False
