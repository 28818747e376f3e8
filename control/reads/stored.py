"""Stored forms that a view decodes: one that cannot be read leaves its row readable, and all others.

A later release, a restore or a hand in the database may leave a form that this release does not know. `readable` is the
only place that passes over one: it counts the form in a metric, and logs it.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar, cast
from uuid import UUID

import psycopg

from tidewheel.errors import Unavailable
from tidewheel.jobs.payload import JSON_CONTENT
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

if TYPE_CHECKING:
    from tidewheel.schemas.generated.records import JobDefinition
_LOG = logging.getLogger(__name__)
UNREADABLE = "unreadable"  # the kind of a schedule that cannot be read
T = TypeVar("T")
D = TypeVar("D")
_READ_RUN_PAYLOAD = Statements("tidewheel.control")["read_run_payload"]


def readable(form: str, row: object, read: Callable[[], T], instead: D) -> T | D:
    """Return what a reader returns, or a substitute if the stored form cannot be read.

    Args:
        form: The kind of stored form, as the metric has it.

    Raises:
        psycopg.Error: A statement failed, and with it the transaction.
    """
    try:
        return read()
    except (psycopg.Error, Unavailable):
        raise
    except Exception as error:  # noqa: BLE001 - no reader of one form may fail the rows beside it
        from tidewheel.process.metrics import metrics  # here: the command line starts without Prometheus

        metrics.count("stored_forms_unreadable", 1, form)
        _log_once(form, str(row), f"{type(error).__name__}: {error}")
        return instead


def read_definition(content: bytes | None, row: object) -> "JobDefinition | None":
    """Return the definition of a job's version; None without one, or for one that cannot be read."""
    from tidewheel.schemas.codec import decode  # here: a list of runs needs no codec
    from tidewheel.schemas.generated.records import JobDefinition

    if content is None:
        return None
    return readable("definition", row, lambda: decode(content, JobDefinition), None)


def read_stored_json(form: str, content: bytes | str | None, row: object) -> object:
    """Return the value of a stored JSON text; None without one, or for one that cannot be read."""
    return None if content is None else readable(form, row, lambda: json.loads(content), None)


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


@lru_cache(maxsize=1000)  # each form is logged once, and again after a thousand others
def _log_once(form: str, row: str, error: str) -> None:
    _LOG.error("the stored %s of %s cannot be read, so its views leave it out: %s", form, row, error)
