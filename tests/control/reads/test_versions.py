"""A job's versions: when each counted and what it changed."""

from tests.control.explain.explaining import done, t
from tests.fixtures.database import ClockedDatabase, Database
from tidewheel.nouns.jobs.model import Change, Version
from tidewheel.nouns.jobs.versions import versions

CRON = "0 8 * * *"


def of_job(database: Database, most: int = 20, before: int | None = None) -> list[Version]:
    return database.within(versions, "default", "job", limit=most, before=before)


def test_each_version_has_its_time_in_force_and_its_changes(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(schedule={"cron": CRON}, labels={"team": "billing"})
    clocked.stop_clock(t("03-03T08:00"))
    clocked.submit(schedule={"cron": "0 9 * * *"}, labels={"team": "billing"}, start_to_close="90s")
    clocked.stop_clock(t("03-04T08:00"))
    done(clocked, "job.delete")
    newest, first = of_job(clocked)
    assert (newest.number, newest.effective_at, newest.until) == (2, t("03-03T08:00"), t("03-04T08:00"))
    assert newest.retired_at == t("03-04T08:00")
    assert (first.number, first.until, first.retired_at, first.changes) == (1, t("03-03T08:00"), None, ())
    assert newest.changes == (Change("schedule.cron", [CRON], ["0 9 * * *"]), Change("start_to_close", None, "1m30s"))


def test_payloads_are_compared_by_their_hash(clocked: ClockedDatabase) -> None:
    clocked.submit(payload={"to": "a"})
    clocked.submit(payload={"to": "b"})
    newest, first = of_job(clocked)
    assert (newest.payload_bytes, first.payload_bytes) == (10, 10)
    assert newest.payload_sha256 != first.payload_sha256
    [change] = newest.changes
    assert change.path == "payload"
    assert first.payload_sha256 in str(change.before)
    assert newest.payload_sha256 in str(change.after)
    assert "(10 bytes)" in str(change.after)


def test_versions_are_read_a_page_at_a_time(clocked: ClockedDatabase) -> None:
    for number in range(5):
        clocked.submit(description=f"the {number}th")
    page = of_job(clocked, 2)
    assert [version.number for version in page] == [5, 4]
    following = of_job(clocked, 2, before=4)
    assert [version.number for version in following] == [3, 2]
    assert following[0].until == page[1].effective_at
    assert [version.number for version in of_job(clocked, 2, before=2)] == [1]
    assert of_job(clocked, 2, before=1) == []
    assert [change.after for change in following[1].changes] == ["the 1th"]
