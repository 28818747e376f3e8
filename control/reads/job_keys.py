"""Find the key of a job by its id, which addresses have where a proxy would change the key."""

from uuid import UUID

from tidewheel.errors import UnknownJob
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_FIND_JOB_KEY = Statements("tidewheel.control")["find_job_key"]


def key_of_job(connection: Conn, tenant: str, job_id: UUID) -> str:
    """Return the key of a job, deleted or not.

    Raises:
        UnknownJob: The tenant has no job of this id.
    """
    row = connection.execute(_FIND_JOB_KEY, {"job_id": job_id, "tenant": tenant}).fetchone()
    if row is None:
        raise UnknownJob(tenant, f"id:{job_id}")
    return str(row[0])
