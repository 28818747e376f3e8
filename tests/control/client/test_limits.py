"""Limits of concurrency keys that operators set: they go before those of jobs, and apply at once."""

from collections.abc import Iterator

import pytest

from tests.fixtures.database import Database
from tidewheel.control.client.client import Client
from tidewheel.errors import InvalidInput, Refused
from tidewheel.runs import RunState
from tidewheel.transitions import key_limits


def waiting(database: Database, key: str = "acme", runs: int = 4) -> None:
    """Start one run of a key, and let the others wait."""
    database.claim(*(database.trigger(concurrency_key=key) for _ in range(runs)))


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    database.submit(concurrency_key="acme")
    with Client(database.url) as made:
        yield made


def states(database: Database) -> dict[str, int]:
    rows = database.rows("SELECT concurrency_key, state, count(*) FROM job_runs GROUP BY 1, 2")
    return {f"{key} {state}": count for key, state, count in rows}


def test_raised_limit_starts_waiting_runs_in_its_transaction(database: Database, client: Client) -> None:
    waiting(database)
    changed = client.limits.set("acme", at_once=3)
    assert (changed.started, changed.complete) == (2, True)
    assert states(database) == {"acme running": 1, "acme queued": 2, "acme buffered": 1}
    database.claim(database.trigger())
    assert database.value("SELECT at_once FROM run_keys") == 3, "the job does not bring its own limit back"
    removed = client.limits.remove("acme")
    assert (removed.unchanged, removed.started) == (False, 0)
    assert database.value("SELECT at_once FROM run_keys") == 1, "the limit of the job applies again"
    assert client.limits.remove("acme").unchanged


def test_lower_limit_ends_no_run_and_places_drain(database: Database, client: Client) -> None:
    client.limits.set("acme", at_once=3)
    runs = [database.trigger() for _ in range(5)]
    started = database.claim(*runs).started
    assert len(started) == 3
    client.limits.set("acme", at_once=1)
    for run in started[:2]:
        database.succeed(run)
        assert database.open_run(runs[3]).state == RunState.BUFFERED
    database.succeed(started[2])
    assert states(database) == {"acme queued": 1, "acme buffered": 1}


def test_key_goes_before_the_longest_prefix(database: Database, client: Client) -> None:
    for key, places in (("*", 2), ("api/*", 3), ("api/acme/*", 4), ("api/acme/eu", 5)):
        client.limits.set(key, at_once=places)
    for key, places in (("other", 2), ("api/x", 3), ("api/acme", 3), ("api/acme/us", 4), ("api/acme/eu", 5)):
        database.claim(database.trigger(concurrency_key=key))
        assert database.value("SELECT at_once FROM run_keys WHERE key = %s", [key]) == places
    client.limits.set("api/*", rate="100/min", burst=5)
    database.begin(database.trigger(concurrency_key="api/x"))
    assert database.rows("SELECT at_once, every_us, burst FROM run_keys WHERE key = 'api/x'") == [(None, 600_000, 5)]


def test_limit_of_a_prefix_applies_to_all_its_waiting_keys(
    database: Database, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_limits, "_STEP", 2)
    for key in ("api/a", "api/b", "api/c", "api/d", "api/e", "apj", "ap"):
        waiting(database, key, runs=3)
    assert client.limits.set("api/*", at_once=2).started == 5
    assert {key.key: (key.at_once, key.running, key.waiting) for key in client.limits.keys(prefix="ap")} == {
        **{f"api/{name}": (2, 2, 1) for name in "abcde"}, "ap": (1, 1, 2), "apj": (1, 1, 2),
    }  # fmt: skip


def test_limit_that_is_committed_during_a_claim_is_not_replaced(database: Database, client: Client) -> None:
    first, second = database.trigger(), database.trigger()
    database.begin(first)
    with database.transaction() as connection:
        connection.execute("SELECT FROM run_keys FOR UPDATE")
        connection.execute("INSERT INTO key_limits VALUES ('default', false, 'acme', 2, NULL, 1, 'test')")
    assert [each.run_id for each in database.claim(second).started] == [second]
    assert client.limits.keys()[0].at_once == 2


def test_raised_limit_of_a_job_starts_waiting_runs_with_the_submit(database: Database) -> None:
    for key in ("acme", "{payload.to}"):
        database.submit("job", concurrency_key=key)
        database.claim(*(database.trigger(payload={"to": "x"}) for _ in range(4)))
        database.submit("job", concurrency_key={"key": key, "at_once": 3})
    assert states(database) == {
        f"{key} {state}": count
        for key in ("acme", "x")
        for state, count in (("running", 1), ("queued", 2), ("buffered", 1))
    }


def test_lists_show_what_runs_and_waits(database: Database, client: Client) -> None:
    waiting(database, "api/a")
    waiting(database, "api/b", runs=1)
    client.limits.set("api/*", at_once=1, rate="1000/s", burst=7)
    client.limits.set("idle", rate="1/day")
    idle, api = client.limits.list()
    assert (idle.key, idle.at_once, idle.rate, idle.keys, idle.running, idle.waiting) == (
        "idle",
        None,
        "1/day",
        0,
        0,
        0,
    )
    assert (api.key, api.at_once, api.rate, api.burst) == ("api/*", 1, "1000/s", 7)
    assert (api.keys, api.running, api.waiting) == (2, 2, 3)
    assert "(client)" in api.set_by
    [second] = client.limits.list(after=idle.key, limit=1)
    assert second.key == "api/*"
    assert [key.key for key in client.limits.keys(after="api/a", limit=1)] == ["api/b"]
    page = client.runs.list(concurrency_key="api/b")
    assert [run.concurrency_key for run in page.runs] == ["api/b"]
    assert client.runs.list(concurrency_key="api/b", status="failed").runs == ()
    changes = [(entry.action, entry.object) for entry in client.audit_log.list().entries]
    assert changes[:2] == [("limit.set", "limit/idle"), ("limit.set", "limit/api/*")]


def test_limit_of_all_keys_does_not_count_the_tenants_own_row(database: Database, client: Client) -> None:
    client.tenants.limit("default", in_flight=5)
    database.claim(database.trigger(), database.trigger(concurrency_key="other"))
    assert database.count("run_keys") == 3
    client.limits.set("*", at_once=2)
    [every] = client.limits.list()
    assert (every.keys, every.running) == (2, 2)


def test_bad_limit_is_refused_with_its_field(client: Client) -> None:
    cases: list[tuple[dict[str, object], str, str]] = [
        ({"key": "acme", "at_once": 0}, "at_once", "pause their jobs or freeze"),
        ({"key": "acme", "at_once": 100_001}, "at_once", "100000"),
        ({"key": "acme"}, "at_once", "add one or both"),
        ({"key": "acme", "rate": "fast"}, "rate", "100/min"),
        ({"key": "acme", "at_once": 1, "burst": 2}, "burst", "rate"),
        ({"key": "", "at_once": 1}, "key", ""),
        ({"key": "k" * 256, "at_once": 1}, "key", "255"),
        ({"key": "k" * 10_000_000, "at_once": 1}, "key", "255"),
        ({"key": "to/{payload.customer}", "at_once": 1}, "key", "api/*"),
    ]
    for arguments, path, remedy in cases:
        with pytest.raises(InvalidInput) as caught:
            client.limits.set(**arguments)  # type: ignore[arg-type]  # which is what is tested
        [error] = caught.value.errors
        assert (error.path, remedy in error.remedy) == (path, True), (path, remedy, error)
    assert not client.limits.list()


def test_too_many_prefixes_are_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_limits, "MOST_PREFIXES", 2)
    for key in ("a*", "b*", "key", "a*"):
        client.limits.set(key, at_once=1)
    with pytest.raises(Refused, match="already has limits of"):
        client.limits.set("c*", at_once=1)
