"""Loading jobs by the million: those that there are not yet are made, those that there are stay as they are.

A door of its own beside requests: no request_id, no reply and, unless they are wanted, no events; each job is checked
as any submit. A batch is one transaction. Loading the same jobs again makes what is missing and changes nothing else,
since a job's id is derived from its key. Rows written: those of `fresh` and `submit`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from tidewheel.errors import Unavailable
from tidewheel.intake.apply import unknown_tenant, unknown_tenants
from tidewheel.intake.locks import read_now
from tidewheel.intake.new_job_rows import write_new_jobs
from tidewheel.intake.new_jobs import NewJob, ScheduleStarts, find_jobs, new_job
from tidewheel.intake.request import ReceivedRequest, rejected
from tidewheel.intake.submit import apply_submits
from tidewheel.postgres.session import Conn
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.transitions.installation import Installation


@dataclass(frozen=True, slots=True)
class Loaded:
    """What became of a batch.

    Args:
        made: How many jobs were made.
        there: How many there were already, deleted ones among them.
        refused: The others, by their position in the batch.
    """

    made: int
    there: int
    refused: dict[int, Reply]


def load_jobs(
    connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest], *, told: bool = False
) -> Loaded:
    """Make the jobs of a batch that there are not yet, in the caller's transaction.

    Args:
        connection: Inside a transaction.
        installation: Shards and topics.
        batch: Submits; of several of one job the first counts.
        told: Whether each job that is made has its event.

    Raises:
        Unavailable: Somebody else made one of them at the same moment: roll back and try again.
    """
    unknown = unknown_tenants(connection, batch)
    refused = {
        position: rejected(received, unknown_tenant(received.tenant))
        for position, received in enumerate(batch)
        if received.tenant in unknown
    }
    first: dict[UUID, int] = {}
    for position, received in enumerate(batch):
        if position not in refused:
            first.setdefault(received.job_id, position)
    found = find_jobs(connection, first)
    starts = ScheduleStarts(read_now(connection), spread=True)
    plain: list[NewJob] = []
    others: list[int] = []
    for position in _without(first, found):
        job = new_job(batch[position], starts)
        if job is None:
            others.append(position)
        else:
            plain.append(job)
    if not write_new_jobs(connection, installation, plain, starts.now, told=told):
        message = "somebody else made one of these jobs at the same moment"
        raise Unavailable(message)
    submits = [batch[at] for at in others]
    answers = apply_submits(connection, installation, submits, told=told, only_new=True) if submits else []
    failed = {at: answer for at, answer in zip(others, answers, strict=True) if answer.status != ReplyStatus.ACCEPTED}
    # Somebody else may have made one of the others meanwhile: it is one that there is.
    made = len(plain) + len(others) - len(failed) - sum(answer.unchanged for answer in answers)
    return Loaded(made, len(batch) - len(refused) - len(failed) - made, refused | failed)


def _without(first: dict[UUID, int], found: set[UUID]) -> Iterable[int]:
    return (position for job, position in first.items() if job not in found)
