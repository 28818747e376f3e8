import json
from uuid import UUID

import pytest

from tidewheel.errors import ScheduleRefused
from tidewheel.schedules.cron_schedule import CronSchedule
from tidewheel.schedules.parse import parse_schedule, schedule_from_text

ONE, OTHER = UUID(int=1), UUID(int=2)


def text(*expressions: str, **more: str) -> str:
    return json.dumps({"kind": "cron", "expressions": expressions, **more})


def test_equal_texts_share_one_schedule() -> None:
    assert schedule_from_text(text("0 3 * * THU"), ONE) is schedule_from_text(text("0 3 * * THU"), OTHER)


def test_h_field_is_hashed_per_job() -> None:
    hashed = text("0 3 * * *", "H H * * *")
    assert schedule_from_text(hashed, ONE) != schedule_from_text(hashed, OTHER)
    assert schedule_from_text(hashed, ONE) is schedule_from_text(hashed, ONE)
    assert schedule_from_text(hashed, ONE) == parse_schedule(json.loads(hashed), job_id=ONE)
    assert schedule_from_text(hashed, ONE).hashed


def test_bounded_schedules_share_their_expression() -> None:
    bounded = schedule_from_text(text("0 3 * * *", end_at="2030-01-01T00:00:00Z"), ONE)
    free = schedule_from_text(text("0 3 * * *"), ONE)
    assert isinstance(bounded, CronSchedule)
    assert isinstance(free, CronSchedule)
    assert bounded.entries[0] is free.entries[0]


@pytest.mark.parametrize("stored", ["", "[]", "null", "{"])
def test_invalid_stored_text_is_refused(stored: str) -> None:
    with pytest.raises(ScheduleRefused, match="not a JSON object"):
        schedule_from_text(stored, ONE)
