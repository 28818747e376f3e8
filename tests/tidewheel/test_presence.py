"""The row of a process: there while it lives, gone when it stops, silent when it was killed."""

from datetime import timedelta
from uuid import uuid4

from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.control.reads.fleet import read_services
from tidewheel.presence import SILENT_SECONDS, Presence
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.settings.services import SchedulerSettings, shared_settings


def test_process_has_a_row_until_it_stops(database: Database) -> None:
    process_id = uuid4()
    database.execute(
        "INSERT INTO processes SELECT gen_random_uuid(), 'relay', 'gone', 1, '0', '{}', at, at, at"
        "  FROM (SELECT tidewheel_now() - interval '2 days' AS at) AS old"
    )
    presence = Presence(database.url, SchedulerSettings.load(), role="scheduler", process_id=process_id)
    presence.start()
    until(lambda: database.value("SELECT count(*) FROM processes WHERE role = 'scheduler'") == 1, "it has a row")
    [found] = database.within(read_services)
    assert (found.process_id, found.role, found.is_silent, found.slots) == (process_id, "scheduler", False, None)
    assert found.settings == shared_settings(SchedulerSettings.load())
    assert found.skew_seconds is not None
    assert abs(found.skew_seconds) < 2
    presence.leave()
    assert database.count("processes") == 0


def test_killed_process_is_silent(database: Database) -> None:
    silent = timedelta(seconds=SILENT_SECONDS)
    database.execute(
        "INSERT INTO processes SELECT gen_random_uuid(), 'relay', 'here', 1, '0', '{}', at, at, at"
        "  FROM (SELECT tidewheel_now() - %s::interval AS at) AS old",
        [silent],
    )
    [found] = database.within(read_services)
    assert found.is_silent


def test_secrets_are_recorded_as_digests() -> None:
    secret = "hooks.example.org=whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    one, other = (shared_settings(ExecutorSettings.load(webhook_secrets=text)) for text in (secret, f"{secret}AAAA"))
    assert secret not in str(one)
    assert one["webhook_secrets"] != other["webhook_secrets"]
    assert shared_settings(ExecutorSettings.load())["webhook_secrets"] == "not set"
