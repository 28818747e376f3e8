"""Bulk work in pages and by kind, through every door that lists it."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from tests.control.api.answering import answer_of, answering, refusal
from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import Database
from tests.scheduler.backfills import accept
from tidewheel.control.client.client import Client
from tidewheel.errors import InvalidInput
from tidewheel.nouns.works.operations import Kind
from tidewheel.transitions.works import NewWork, add_work


@pytest.fixture
def works(database: Database) -> list[str]:
    """Two backfills, then four retries of one instant; the ids of all, the newest first."""
    database.submit(schedule="* * * * *")
    now = database.now()
    found = [
        accept(database, now - timedelta(hours=2), now - timedelta(hours=1), versions="current", request_id=each)
        for each in "ab"
    ]
    retries = sorted(uuid4() for _ in range(4))
    for work_id in retries:
        work = NewWork(
            work_id=work_id, tenant="default", kind="retry", filter={}, cursor={}, rate=None, matched=1, reason=None
        )
        assert database.within(add_work, work, now + timedelta(hours=1))
    return [str(each) for each in reversed([*found, *retries])]


@pytest.mark.landing
def test_all_work_lies_on_pages_also_of_one_kind(database: Database, works: list[str]) -> None:
    kinds: dict[Kind | None, list[str]] = {None: works, "backfill": works[4:], "retry": works[:4], "purge": []}
    with answering(database) as api, Client(database.url) as client:
        for kind, wanted in kinds.items():
            by_rest, by_cli, by_client = list[str](), list[str](), list[UUID]()
            place, after = list[str](), None
            asked = {} if kind is None else {"kind": kind}
            given = [] if kind is None else ["--kind", kind]
            more = True
            while more:
                page = answer_of(api.get("/api/v1/works", params={"limit": 1, **asked}))
                by_rest += [each["work_id"] for each in page["works"]]
                asked["cursor"] = page["next_cursor"]
                more = page["next_cursor"] is not None
                listed = client.works.list(kind=kind, after=after, limit=1)
                by_client += [each.work_id for each in listed]
                after = listed.next_cursor
                shown = json_output(database, "work", "list", "-n", 1, *given, *place)
                by_cli += [each["work_id"] for each in shown["works"]]
                place = ["--after", "/".join(shown["next_cursor"])] if shown["next_cursor"] else []
            assert (by_rest, by_cli, list(map(str, by_client))) == (wanted, wanted, wanted), kind
        told = refusal(api.get("/api/v1/works?kind=retries"))["errors"][0]
        assert (told["path"], bool(told["remedy"])) == ("kind", True)
        with pytest.raises(InvalidInput):
            client.works.list(kind="retries")  # type: ignore[arg-type]
    assert tidewheel(database, "work", "list", "--kind", "retries").code != 0
    last = tidewheel(database, "work", "list", "-n", 2).lines[-1]
    assert last.startswith("more: add --after ")
    assert last.endswith(f"/{works[1]}")


@pytest.mark.parametrize("at", ["-infinity", "infinity"])
def test_pages_of_works_with_a_damaged_time_end(database: Database, works: list[str], at: str) -> None:
    database.execute("UPDATE works SET created_at = %s", [at])
    pages, after = 0, None
    while pages <= len(works):
        listed = database.client.works.list(kind="retry", after=after, limit=1)
        pages, after = pages + 1, listed.next_cursor
        if after is None:
            return
    pytest.fail("a page follows itself")


def test_work_of_a_damaged_job_is_listed(database: Database, works: list[str]) -> None:
    database.execute("""UPDATE works SET filter = filter || '{"job_id": 5}'""")
    assert sorted(str(each.work_id) for each in database.client.works.list()) == sorted(works)
