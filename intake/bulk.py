"""Load jobs by the million: create those that do not exist, and leave the others as they are.

A bulk load has no request_id, no reply and, by default, no events. Each job is checked like a submit. A batch is one
transaction. A load that is repeated creates the missing jobs only, since a job's id is derived from its key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tidewheel.audit import Actor, Change, process_actor, record_change
from tidewheel.errors import FieldError, InvalidInput
from tidewheel.intake.calendars import lock_calendars
from tidewheel.intake.new_jobs import create_jobs
from tidewheel.intake.request import ReceivedRequest, rejected
from tidewheel.intake.submit import named_calendars
from tidewheel.intake.tenant_limits import exceeded
from tidewheel.jobs.requests import JobSubmit
from tidewheel.jobs.schedule import AfterSpec
from tidewheel.postgres.session import Conn
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.installation import Installation


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of a batch.

    Args:
        existing: The number of jobs that existed already, deleted ones among them.
        refused: The replies to the others, by their position in the batch.
    """

    created: int
    existing: int
    refused: dict[int, Reply]


_UNCHECKED = FieldError("job.schedule.after", "a bulk load checks no graph", "leave out --bulk")


def load_jobs(
    connection: Conn,
    installation: Installation,
    batch: Sequence[ReceivedRequest],
    *,
    emit_events: bool = False,
    actor: Actor | None = None,
) -> Loaded:
    """Create the jobs of a batch that do not exist, in the caller's transaction.

    Args:
        batch: Submits; of several submits of one job the first counts.
        actor: The origin, for the audit log, which gets a row for the batch; by default the user of this process.

    Raises:
        Unavailable: Other transactions have created some of the jobs again and again: roll back and try again.
    """
    refused = {index: rejected(batch[index], refusal) for index, refusal in exceeded(connection, batch).items()}
    refused |= {
        index: rejected(received, InvalidInput([_UNCHECKED]))
        for index, received in enumerate(batch)
        if isinstance(received.request, JobSubmit) and isinstance(received.request.job.schedule, AfterSpec)
    }
    first: dict[UUID, int] = {}
    for index, received in enumerate(batch):
        if index not in refused:
            first.setdefault(received.job_id, index)
    submits = [batch[index] for index in first.values()]
    day_sets = lock_calendars(connection, named_calendars(submits))
    created = create_jobs(connection, installation, submits, day_sets, spread=True, emit_events=emit_events)
    if created.jobs:
        change = Change(submits[0].tenant, "job.load", "jobs", objects=len(created.jobs), adds_up=True)
        record_change(connection, actor or process_actor(), change)
    refused |= {first[job]: rejected(batch[first[job]], error) for job, error in created.refused.items()}
    return Loaded(len(created.jobs), len(batch) - len(refused) - len(created.jobs), refused)
