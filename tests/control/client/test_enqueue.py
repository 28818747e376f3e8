"""A run enqueued in the caller's transaction commits or rolls back with the caller's rows."""

from collections.abc import Iterator
from datetime import timedelta
from typing import LiteralString, TypeAlias

import psycopg
import pytest
from psycopg.rows import DictRow, TupleRow, dict_row, tuple_row
from psycopg.sql import SQL, Identifier

from tests.fixtures.database import Database, Template
from tests.fixtures.services import until
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.control.client.enqueue import enqueue
from tidewheel.errors import Refused, Unavailable
from tidewheel.ids import RunId
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.partitions import day_of

Own: TypeAlias = psycopg.Connection[TupleRow]
ORDER: LiteralString = "INSERT INTO orders (name) VALUES ('socks')"
READ_RUN: LiteralString = "SELECT publish_at, handler, cause, job_version FROM job_runs WHERE run_id = %s"
READ_INPUTS: LiteralString = """
SELECT i.payload, i.labels, o.request_id FROM job_runs AS o JOIN run_inputs AS i USING (run_id) WHERE o.run_id = %s
"""


@pytest.fixture(scope="module")
def shop(template: Template) -> Iterator[Database]:
    """A database that holds an application's rows beside Tidewheel's, and one job."""
    made = Database(template.copy(), template.installation)
    made.execute("CREATE TABLE orders (name text); GRANT ALL ON orders TO tidewheel_application")
    made.submit("charge")
    made.execute("TRUNCATE outbox")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_orders(shop: Database) -> Iterator[None]:
    yield
    shop.close()
    shop.execute("TRUNCATE orders, job_runs, finished_runs, run_inputs, outbox, requests")


@pytest.fixture
def own(shop: Database) -> Iterator[Own]:
    """The application's own connection, as psycopg makes it."""
    with psycopg.connect(shop.url_of("application")) as connection:
        yield connection


def written(shop: Database) -> tuple[int, int, int]:
    """Count orders, open runs and messages."""
    return shop.count("orders"), shop.count("job_runs"), shop.count("outbox")


def test_enqueue_as_the_first_statement_leaves_the_commit_to_the_caller(shop: Database, own: Own) -> None:
    """psycopg's `transaction()` commits where it finds no transaction begun."""
    enqueue(own, "charge")
    with pytest.raises(Refused):
        enqueue(own, "nobody")
    own.execute(ORDER)
    assert written(shop) == (0, 0, 0)
    own.rollback()
    assert written(shop) == (0, 0, 0)
    enqueue(own, "charge")
    own.commit()
    assert written(shop)[:2] == (0, 1)


def test_a_run_rolls_back_with_the_callers_rows(shop: Database, own: Own) -> None:
    own.execute(ORDER)
    first = enqueue(own, "charge", request_id="order-1")
    own.rollback()
    assert written(shop) == (0, 0, 0)
    # The answer went too: the same request makes its run now.
    second = enqueue(own, "charge", request_id="order-1")
    own.commit()
    assert shop.rows("SELECT run_id FROM job_runs") == [(second,)]
    assert first != second or shop.count("requests") == 1


def test_run_rolls_back_with_the_callers_savepoint(shop: Database, own: Own) -> None:
    kept = enqueue(own, "charge")
    with own.transaction(force_rollback=True):
        enqueue(own, "charge")
    own.commit()
    assert shop.rows("SELECT run_id FROM job_runs") == [(kept,)]


def test_run_on_an_autocommit_connection_commits_at_once(shop: Database) -> None:
    with psycopg.connect(shop.url, autocommit=True) as own:
        run = enqueue(own, "charge")
        assert len(shop.rows(READ_RUN, [run])) == 1
        with own.transaction(force_rollback=True):
            enqueue(own, "charge")
        assert shop.rows("SELECT run_id FROM job_runs") == [(run,)]


def test_connection_keeps_its_row_factory(shop: Database) -> None:
    with psycopg.Connection[DictRow].connect(shop.url, row_factory=dict_row) as own:
        run = enqueue(own, "charge")
        assert own.row_factory is dict_row
        with pytest.raises(Refused):
            enqueue(own, "nobody")
        assert own.row_factory is dict_row
        assert own.execute("SELECT run_id FROM job_runs").fetchone() == {"run_id": run}


@pytest.mark.parametrize("kind", [psycopg.Cursor, psycopg.ClientCursor, psycopg.RawCursor])
def test_connection_with_a_cursor_factory_works(shop: Database, kind: type[psycopg.Cursor[TupleRow]]) -> None:
    """Django's connections bind on the client's side."""
    with psycopg.connect(shop.url, row_factory=tuple_row, cursor_factory=kind) as own:
        enqueue(own, "charge", {"cents": 1}, labels={"team": "billing"}, request_id="order-1")
        assert own.cursor_factory is kind
    assert shop.count("job_runs") == 1


def test_another_time_zone_and_isolation_change_nothing(shop: Database) -> None:
    with psycopg.connect(shop.url, options="-c timezone=Pacific/Auckland") as own:
        own.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        before = shop.now()
        run = enqueue(own, "charge", delay=30)
    [(publish_at, *_)] = shop.rows(READ_RUN, [run])
    assert before + timedelta(seconds=30) <= publish_at <= shop.now() + timedelta(seconds=30)


def test_repeated_request_returns_the_same_run(shop: Database, own: Own) -> None:
    first = enqueue(own, "charge", {"cents": 900}, request_id="order-1")
    assert enqueue(own, "charge", {"cents": 900}, request_id="order-1") == first
    own.commit()
    assert enqueue(own, "charge", {"cents": 900}, request_id="order-1") == first
    assert enqueue(own, "charge", {"cents": 900}, request_id="order-2") != first
    own.commit()
    assert shop.count("job_runs") == 2
    with pytest.raises(Refused, match="was already used with a different body") as caught:
        enqueue(own, "charge", {"cents": 901}, request_id="order-1")
    assert caught.value.code == "request_conflict"


def test_concurrent_equal_requests_return_the_same_run(shop: Database) -> None:
    one, other = shop.connection(), shop.connection()
    first = enqueue(one, "charge", request_id="order-1")
    other.execute(ORDER)
    second = in_background(lambda: enqueue(other, "charge", request_id="order-1"))
    until_blocked(shop, other)
    one.commit()
    assert second.result(60) == first
    other.commit()
    assert written(shop)[:2] == (1, 1)


def test_missing_partition_exists_for_the_next_try(shop: Database, own: Own) -> None:
    """An operator has dropped it: the transaction that meets it is lost."""
    enqueue(own, "charge", {"cents": 1})
    own.rollback()
    now = shop.now()
    for day in {day_of(now), day_of(now + timedelta(minutes=5))}:
        shop.execute(SQL("DROP TABLE {}").format(Identifier(f"run_inputs_{day:%Y%m%d}")))
    with pytest.raises(Unavailable, match=r'no partition of relation "run_inputs" .*; it exists now: roll back'):
        enqueue(own, "charge", {"cents": 2})
    own.rollback()
    run = enqueue(own, "charge", {"cents": 2})
    own.commit()
    assert shop.value("SELECT payload FROM run_inputs WHERE run_id = %s", [run]) == b'{"cents":2}'


def test_unknown_job_is_refused_and_the_callers_transaction_continues(shop: Database, own: Own) -> None:
    own.execute(ORDER)
    with pytest.raises(Refused, match="tenant 'default' has no job 'chrage'") as caught:
        enqueue(own, "chrage")
    assert (caught.value.code, caught.value.errors[0].path) == ("unknown_job", "key")
    assert "submit the job first" in caught.value.errors[0].remedy
    enqueue(own, "charge")
    own.execute(ORDER)
    own.commit()
    assert written(shop)[:2] == (2, 1)


def test_an_unknown_tenant_is_refused(own: Own) -> None:
    with pytest.raises(Refused, match="there is no tenant 'acme'"):
        enqueue(own, "charge", tenant="acme")


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"payload": object()}, "payload"),
        ({"payload": {"cents": float("nan")}}, "payload"),
        ({"payload": "x" * 300_000}, "payload"),
        ({"payload": b"x" * 300_000}, "payload_base64"),
        ({"labels": {"team": 7}}, "labels.team"),
        ({"delay": -1}, "delay"),
        ({"delay": timedelta(days=401)}, "delay"),
        ({"delay": 1, "run_at": "now"}, "delay"),
        ({"request_id": ""}, "request_id"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_argument_is_refused_with_its_path_before_any_query(
    shop: Database, own: Own, arguments: dict[str, object], path: str
) -> None:
    if "run_at" in arguments:
        arguments = arguments | {"run_at": shop.now()}
    own.execute(ORDER)
    with pytest.raises(Refused) as caught:
        enqueue(own, "charge", **arguments)  # type: ignore[arg-type]  # which is what is tested
    assert [error.path for error in caught.value.errors] == [path]
    assert caught.value.errors[0].remedy
    own.commit()
    assert written(shop) == (1, 0, 0)


def test_arguments_reach_the_run(shop: Database, own: Own) -> None:
    def inputs(run: RunId) -> object:
        own.commit()
        [row] = shop.rows(READ_INPUTS, [run])
        return row

    assert inputs(enqueue(own, "charge", b"\x00\xff", request_id="o-1")) == (b"\x00\xff", None, "o-1")
    assert inputs(enqueue(own, "charge", {"ä": [1]}, labels={"a": "b"})) == ('{"ä":[1]}'.encode(), {"a": "b"}, None)
    assert shop.rows(READ_INPUTS, [enqueue(own, "charge")]) == []


def test_key_of_the_run_replaces_the_jobs(shop: Database, own: Own) -> None:
    runs = [enqueue(own, "charge", {"to": 7}, concurrency_key=key) for key in ("acme", "to/{payload.to}", None)]
    with pytest.raises(Refused, match=r"payload\.by"):
        enqueue(own, "charge", {"to": 7}, concurrency_key="{payload.by}")
    own.commit()
    keys = dict(shop.rows("SELECT run_id, concurrency_key FROM job_runs"))
    assert [keys[run] for run in runs] == ["acme", "to/7", None]


def test_shared_rows_of_keys_are_refused_in_the_callers_transaction(shop: Database, own: Own) -> None:
    """Other runs would wait for the caller's COMMIT."""
    shop.submit("line", ordering_key="k")
    calls = [
        ("ordering_key", lambda: enqueue(own, "charge", ordering_key="k")),
        ("ordering_key", lambda: enqueue(own, "line")),
        ("dedupe", lambda: enqueue(own, "charge", dedupe={"key": "k", "window": "1m"})),
    ]
    for path, call in calls:
        with pytest.raises(Refused) as caught:
            call()
        assert [(error.path, "tidewheel_enqueue" in error.remedy) for error in caught.value.errors] == [(path, True)]
    own.commit()
    assert shop.count("job_runs") == 0


def test_a_run_may_wait_for_its_time(shop: Database, own: Own) -> None:
    at = shop.now() + timedelta(days=20)
    runs = [enqueue(own, "charge", run_at=at), enqueue(own, "charge", delay=timedelta(days=30))]
    own.commit()
    [(first, *_)], [(second, *_)] = (shop.rows(READ_RUN, [run]) for run in runs)
    assert first == at
    assert timedelta(days=10) - timedelta(minutes=1) < second - at < timedelta(days=10) + timedelta(minutes=1)


def test_a_callers_commit_sends_no_notification(shop: Database, own: Own) -> None:
    """A pending one would make every commit of the caller's wait for an instance-wide lock."""
    ear = shop.connection(autocommit=True)
    for channel in Channel:
        ear.execute(SQL("LISTEN {}").format(Identifier(channel)))
    enqueue(own, "charge")
    own.commit()
    shop.execute("SELECT pg_notify(%s, 'last')", [Channel.TIMERS])
    heard: list[str] = []
    until(lambda: heard.extend(n.payload for n in ear.notifies(timeout=0)) or "last" in heard, "the last is heard")
    assert heard == ["last"]
