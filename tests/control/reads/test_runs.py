"""Lists of runs: by status, job, label and time, page by page, open ones where they really stand."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.control.client.test_dead_letters import fail
from tests.fixtures.acts import ending
from tests.fixtures.database import ClockedDatabase, Database
from tidewheel.control.client.client import Client
from tidewheel.errors import InvalidInput, Refused, UnknownJob
from tidewheel.nouns.runs import reads as module
from tidewheel.nouns.runs.model import RunPage, Status
from tidewheel.runs import AttemptOutcome, RunState


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    database.submit("job", labels={"team": "billing"})
    database.submit("other")
    with Client(database.url) as made:
        yield made


def ids(page: RunPage) -> list[UUID]:
    return [run.run_id for run in page.runs]


def test_each_status_lists_its_runs(client: Client, database: Database) -> None:
    database.submit("turns", overlap="buffer_all")
    stands: dict[Status, UUID] = {"failed": fail(database)}
    done = database.begun()
    database.succeed(done)
    stands["succeeded"] = done.run_id
    retrying = database.begun()
    database.requeue(retrying, AttemptOutcome.FAILED, timedelta(hours=1))
    stands["retrying"] = retrying.run_id
    stands["running"] = database.begun("turns").run_id
    stands["buffered"] = database.trigger("turns")
    database.claim(stands["buffered"])
    stands["scheduled"], stands["queued"] = database.trigger(delay="1h"), database.trigger()
    cancelling = database.begun()
    client.runs.cancel(cancelling.run_id)
    stands["cancelling"] = cancelling.run_id
    stands["cancelled"] = database.trigger()
    client.runs.cancel(stands["cancelled"])
    an_hour_ago = database.now() - timedelta(hours=1)
    for status, run in stands.items():
        since = an_hour_ago if status == "cancelled" else None
        page = client.runs.list(status=status, since=since)
        assert (status, ids(page), page.total, page.at_least) == (status, [run], 1, False)
        assert page.runs[0].status == status
        key = page.runs[0].key
        assert ids(client.runs.list(status=status, key=key)) == [run]
    assert {run.run_id: run.status for run in client.runs.list().runs} == {run: state for state, run in stands.items()}


def test_count_stops_at_ten_thousand(client: Client, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNTED", 4)
    for _ in range(4):
        database.trigger()
    assert (client.runs.list(limit=2).total, client.runs.list(limit=2).at_least) == (4, False)
    database.trigger()
    assert (client.runs.list(limit=2).total, client.runs.list(limit=2).at_least) == (4, True)


def test_labels_are_the_jobs_and_run_labels_those_its_trigger_overrides(client: Client, database: Database) -> None:
    plain, own = database.trigger("job"), database.trigger("job", labels={"team": "sales"})
    database.trigger("other")
    since = database.now() - timedelta(hours=1)
    assert ids(client.runs.list(run_labels={"team": "billing"}, since=since)) == [plain]
    assert ids(client.runs.list(run_labels={"team": "sales"}, key="job")) == [own]
    assert ids(client.runs.list(run_labels={"team": "sales"}, status="queued", since=since)) == [own]
    assert ids(client.runs.list(labels={"team": "sales"}, since=since)) == []
    of_job = client.runs.list(labels={"team": "billing"}, since=since)
    assert set(ids(of_job)) == {plain, own}, "the runs that a cancellation by the same label ends"
    assert client.runs.cancel_matching(labels={"team": "billing"}, dry_run=True).matched == of_job.total
    assert ids(client.runs.list(labels={"team": "billing"}, run_labels={"team": "sales"}, key="job")) == [own]


@pytest.mark.parametrize("key", [None, "job"])
def test_a_fresh_run_is_before_those_ahead_of_their_time(client: Client, database: Database, key: str | None) -> None:
    cancelled = database.trigger(delay="2h")
    client.runs.cancel(cancelled)
    ahead = database.trigger(delay="1h")
    old, fresh = database.trigger(), database.trigger()
    wanted = [fresh, old, cancelled, ahead]
    assert ids(client.runs.list(key=key)) == wanted
    for limit in (1, 2, 3):
        assert [run for page in pages(client, key, limit) for run in ids(page)] == wanted
    assert ids(client.runs.list(key=key, status="scheduled")) == [ahead]


def test_a_run_that_becomes_due_between_two_pages_is_on_one_of_them(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(datetime(2026, 3, 6, 9, tzinfo=UTC))
    clocked.submit("job")
    soon, old, fresh = clocked.trigger(delay="1m"), clocked.trigger(), clocked.trigger()
    for key in (None, "job"):
        clocked.stop_clock(datetime(2026, 3, 6, 9, tzinfo=UTC))
        seen: list[UUID] = []
        for page in pages(clocked.client, key, 1):
            seen += ids(page)
            clocked.advance(timedelta(hours=1))
        assert sorted(seen) == sorted([soon, old, fresh])
        assert seen[-1] == soon


@pytest.mark.parametrize("key", [None, "job"])
def test_a_list_goes_on_after_a_run_that_was_taken_back(client: Client, database: Database, key: str | None) -> None:
    old, gone, fresh = database.trigger(), database.trigger(), database.trigger()
    page = client.runs.list(key=key, limit=2)
    assert ids(page) == [fresh, gone]
    database.execute("DELETE FROM job_runs WHERE run_id = %s", [gone])
    assert ids(client.runs.list(key=key, limit=2, after=page.next_cursor)) == [old]


def pages(client: Client, key: str | None, limit: int) -> Iterator[RunPage]:
    """The pages of a list, each read when the one before is done."""
    page = client.runs.list(key=key, limit=limit)
    yield page
    while page.next_cursor is not None:
        page = client.runs.list(key=key, limit=limit, after=page.next_cursor)
        yield page


def test_a_range_of_time_holds_both_its_ends(client: Client, database: Database) -> None:
    first, second, third = (database.trigger(delay=delay) for delay in ("1h", "2h", "3h"))
    at = {run.run_id: run.scheduled_at for run in client.runs.list().runs}
    for key in (None, "job"):
        assert ids(client.runs.list(key=key, since=at[second], until=at[second])) == [second]
        assert ids(client.runs.list(key=key, since=at[second])) == [third, second]
        assert ids(client.runs.list(key=key, until=at[second])) == [second, first]
        assert ids(client.runs.list(key=key, status="scheduled", until=at[first])) == [first]


def test_filter_that_would_read_every_run_is_refused(client: Client, database: Database) -> None:
    for asked in (
        {"labels": {"a": "b"}},
        {"run_labels": {"a": "b"}},
        {"after": "x"},
        {"lane": "fast"},
        {"cause": "chance"},
        {"status": "nowhere"},
    ):
        with pytest.raises(InvalidInput) as refused:
            client.runs.list(**asked)  # type: ignore[arg-type]  # one of each
        assert [error.path for error in refused.value.errors] == list(asked)
    with pytest.raises(UnknownJob):
        client.runs.list(key="nope")
    with pytest.raises(Refused, match="there is no tenant"), Client(database.url, tenant="nobody") as nobody:
        nobody.runs.list()


def test_run_is_shown_with_its_past_and_current_attempts(client: Client, database: Database) -> None:
    started = database.begun(labels={"urgent": "yes"}, request_id="r-1")
    database.requeue(started, AttemptOutcome.FAILED)
    again = database.begin(started.run_id)
    shown = client.runs.detail(started.run_id)
    assert (shown.summary.status, shown.summary.attempt, shown.failed_attempts) == ("running", 2, 1)
    assert shown.max_attempts == 4
    assert shown.labels == {"team": "billing", "urgent": "yes"}
    assert (shown.request_id, shown.handler, shown.claimed_from) == ("r-1", "send-email", "test/0/0@0")
    assert [(one.attempt, one.outcome, one.error_type) for one in shown.attempts] == [(1, "failed", "ValueError")]
    database.end(ending(again, RunState.SUCCEEDED, result=b"[1]", output=b"done"))
    shown = client.runs.detail(started.run_id)
    assert (shown.summary.status, shown.result, shown.failed_attempts) == ("succeeded", b"[1]", 1)
    assert [(one.result, one.output, one.claimed_from) for one in shown.attempts] == [
        (None, None, "test/0/0@0"),
        (b"[1]", b"done", "test/0/0@0"),
    ]


def test_retry_chain_is_shown_from_each_of_its_runs(client: Client, database: Database) -> None:
    first = fail(database)
    second = client.runs.retry(first)
    aside = client.runs.retry(first)
    started = database.begin(second)
    database.succeed(started)
    third = client.runs.retry(second)

    def chain(run: UUID) -> tuple[list[UUID], list[UUID]]:
        chain = client.runs.detail(run).retry_chain
        return [one.run_id for one in chain.previous], [one.run_id for one in chain.next]

    assert chain(first) == ([], [second, aside, third])
    assert chain(second) == ([first], [third])
    assert chain(third) == ([first, second], [])
    assert chain(aside) == ([first], [])
    assert client.runs.detail(third).retry_chain.root_run_id == first


def test_dry_run_counts_the_runs_that_a_cancellation_matches(client: Client, database: Database) -> None:
    def count(**filters: Any) -> int:  # noqa: ANN401 - fields of a request
        return client.runs.cancel_matching(**filters, dry_run=True).matched

    running, _ = database.begun(), database.trigger()
    database.trigger("other")
    assert count(key="job") == 2
    assert count(key="job", include_started=False) == 1
    assert count(labels={"team": "billing"}) == 2
    assert count(handler="send-email") == 3
    assert count(handler="send-email", created_before=database.now() - timedelta(hours=1)) == 0
    client.runs.cancel(running.run_id)
    assert count(key="job") == 1
    with pytest.raises(UnknownJob):
        count(key="nope")
    with pytest.raises(InvalidInput, match="every run would be cancelled"):
        count(include_started=False)
