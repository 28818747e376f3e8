"""Schedules from their stored text, read once for all jobs that say the same."""

import json
from functools import lru_cache
from typing import cast
from uuid import UUID

from tidewheel.errors import ScheduleRefused
from tidewheel.scheduler.recurrence.cron import uses_hash
from tidewheel.scheduler.recurrence.kinds import Schedule
from tidewheel.scheduler.recurrence.schedules import parse_schedule


def schedule_from_text(text: str, job_id: UUID) -> Schedule:
    """The schedule of a canonical JSON document; the same object for the same text.

    Only a text with an ``H`` in an expression is read per job: what it says depends on the job's id.

    Raises:
        ScheduleRefused: The text describes no schedule.
    """
    return _of_job(text, job_id) if '"expressions"' in text and _hashed(text) else _shared(text)


def read_schedule(text: str, job_id: UUID | None = None) -> Schedule:
    """The schedule of a JSON document, read anew.

    Raises:
        ScheduleRefused: The text describes no schedule.
    """
    return parse_schedule(_document(text), job_id=job_id)


@lru_cache(maxsize=16_384)  # distinct schedules in use on one scheduler: a few thousand, an interval's anchors included
def _shared(text: str) -> Schedule:
    return read_schedule(text)


@lru_cache(maxsize=16_384)
def _of_job(text: str, job_id: UUID) -> Schedule:
    return read_schedule(text, job_id)


@lru_cache(maxsize=16_384)
def _hashed(text: str) -> bool:
    expressions = _document(text).get("expressions")
    return isinstance(expressions, list) and any(uses_hash(str(each)) for each in cast("list[object]", expressions))


def _document(text: str) -> dict[str, object]:
    try:
        document: object = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        problem = "the stored schedule is no JSON object"
        raise ScheduleRefused(problem, "submit the job again", "")
    return cast("dict[str, object]", document)
