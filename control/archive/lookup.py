"""Show a run by its id, of the database or else of the archive.

The first 48 bits of an id are an instant. The database has the days that the ids of each archived day name: that day or
the one before, for runs of timers. So one or two manifests are read, and one block of each.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import date, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING
from uuid import UUID

from tidewheel.control.archive.days import damaged, days_of_run, read_manifest
from tidewheel.control.archive.stores import MANIFEST, Store, manifest_text, open_store
from tidewheel.errors import ArchiveDamaged, UnknownRun
from tidewheel.nouns.runs.detail import counts_of, show_failed_run, show_run, with_stages
from tidewheel.nouns.runs.model import PastAttempt, RetryChain, RunDetail
from tidewheel.postgres.session import Conn
from tidewheel.runs import AttemptOutcome, RunState

if TYPE_CHECKING:
    from tidewheel.control.archive.containers import Record

_ATTEMPTS = 100  # as of a run in the database
_SAME = (
    "job_version", "cause", "queue", "lane", "attempt", "scheduled_at", "created_at", "started_at", "finished_at",
    "reason", "error_type", "concurrency_key", "request_id",
)  # fmt: skip


def show_archived_run(
    snapshot: Callable[[], AbstractContextManager[Conn]], archive: str | None, tenant: str, run_id: UUID
) -> RunDetail:
    """Return a run of the archive, if one is set; no transaction is open while the archive answers."""
    if archive is not None:
        with snapshot() as connection:
            days = days_of_run(connection, run_id)
        if days and (record := find_record(_opened(archive), days, tenant, run_id)) is not None:
            return _detail(record)
    raise UnknownRun(str(run_id))


def find_record(store: Store, days: Sequence[date], tenant: str, run_id: UUID) -> "Record | None":
    """Return the record of a run of one of these days; None if none has it; raise as above."""
    for day in days:
        for record in _candidates(store, day.isoformat(), tenant, run_id):
            if record["run_id"] == str(run_id) and record["tenant"] == tenant:
                return record
    return None


def _candidates(store: Store, day: str, tenant: str, run_id: UUID) -> "list[Record]":
    """Return the records of the block that can have a run.

    If the day was rewritten meanwhile, its new manifest is read.
    """
    from tidewheel.control.archive.containers import read_block  # here: lists of runs load no fastavro

    text = _manifest_text(store, day)
    while True:
        place = read_manifest(day, text).block_of(tenant, run_id)
        try:
            return [] if place is None else read_block(store, day, *place)
        except ArchiveDamaged:
            before, text = text, _manifest_text(store, day)
            if text == before:
                raise


def _manifest_text(store: Store, day: str) -> bytes:
    text, name = manifest_text(store, day), f"{day}/{MANIFEST}"
    if text is None:
        raise damaged(name, "the file is missing")
    return text


@lru_cache(maxsize=1)
def _opened(archive: str) -> Store:
    """Return the archive; a client of S3 takes 100 ms to make."""
    return open_store(archive)


def _detail(record: "Record") -> RunDetail:
    """Return a run as it was shown before it left the database, without what the archive does not keep."""
    inputs: Record = record["inputs"] or {}
    attempts = _attempts(record)
    last = record["attempt"], record["error_type"]  # the error of a timeout between two attempts is that of none
    late_ms: int | None = inputs.get("late_ms")
    found = RunDetail(
        **{name: record[name] for name in _SAME},
        run_id=UUID(record["run_id"]),
        key=record["job_key"] or "",
        job_id=UUID(record["job_id"]),
        status=record["state"],
        publish_at=None,
        handler=record["handler"] or "",
        labels={**record["job_labels"], **inputs.get("labels", {})},
        max_attempts=record["max_attempts"] or 0,
        error_message=next((each.error_message for each in attempts if (each.attempt, each.error_type) == last), None),
        late=None if late_ms is None else timedelta(milliseconds=late_ms),
        traceparent=inputs.get("traceparent"),
        retry_chain=RetryChain(_uuid(record["parent_run_id"]), _uuid(record["root_run_id"])),
        attempts=attempts[-_ATTEMPTS:],
        archived=True,
        **counts_of(attempts),
    )
    return with_stages(found)


def _attempts(record: "Record") -> tuple[PastAttempt, ...]:
    """Return the attempts, of a run that succeeded with the run itself as the last one."""
    found: list[Record] = list(record["attempts"])
    if record["state"] == RunState.SUCCEEDED:
        own = {name: record[name] for name in ("attempt", "started_at", "finished_at", "executor_id", "claimed_from")}
        found.append({**own, "outcome": AttemptOutcome.SUCCEEDED.value, "error_type": None, "error_message": None})
    return tuple(
        PastAttempt(
            each["attempt"], each["outcome"], _uuid(each["executor_id"]), each["started_at"], each["finished_at"],
            each["error_type"], each["error_message"], each["claimed_from"],
        )
        for each in found
    )  # fmt: skip


def _uuid(text: str | None) -> UUID | None:
    return None if text is None else UUID(text)


def show_run_anywhere(
    snapshot: Callable[[], AbstractContextManager[Conn]], archive: str | None, tenant: str, run_id: UUID
) -> RunDetail:
    """Return a run, from the archive if the database has it no more, else the copy of a failed one.

    Without an archive the error names the archived days that may have it.
    """
    try:
        with snapshot() as connection:
            return show_run(connection, tenant, run_id)
    except UnknownRun:
        pass
    if archive is not None:
        with suppress(UnknownRun):
            return show_archived_run(snapshot, archive, tenant, run_id)
    with snapshot() as connection:
        try:
            return show_failed_run(connection, tenant, run_id)
        except UnknownRun:
            if archive is None and (days := days_of_run(connection, run_id)):
                raise UnknownRun(str(run_id), days) from None
            raise
