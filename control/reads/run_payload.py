"""Read the payload that a run's handler gets."""

from dataclasses import dataclass
from typing import cast
from uuid import UUID

from tidewheel.control.reads.stored import read_definition
from tidewheel.jobs.payload import JSON_CONTENT
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_READ_RUN_PAYLOAD = Statements("tidewheel.control")["read_run_payload"]


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload: the run's own, or that of its job's version."""

    content: bytes
    content_type: str
    is_own: bool


def read_run_payload(connection: Conn, tenant: str, run_id: UUID) -> Payload | None:
    """Return the payload of a run that the database has; None if it has no such run of the tenant."""
    row = connection.execute(_READ_RUN_PAYLOAD, {"run_id": run_id, "tenant": tenant}, binary=True).fetchone()
    if row is None:
        return None
    own, own_type, packed = cast("tuple[bytes | None, str | None, bytes]", row)
    definition = read_definition(packed, f"run {run_id}")
    of_job = (b"", JSON_CONTENT) if definition is None else (definition.payload, definition.payload_content_type)
    return Payload(*of_job, is_own=False) if own is None else Payload(own, own_type or of_job[1], is_own=True)
