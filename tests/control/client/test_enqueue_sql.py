"""The SQL function `tidewheel_enqueue`: write a request to the outbox in the caller's transaction."""

import json
import re
import sys
import unicodedata
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import LiteralString, TypeAlias
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.rows import TupleRow
from psycopg.sql import SQL, Identifier

import tidewheel
from tests.fixtures.acts import submission
from tests.fixtures.database import Database, Template
from tidewheel.control.client.client import Client
from tidewheel.errors import Refused
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest, read_request
from tidewheel.jobs.values import HIDDEN
from tidewheel.outbox import slice_lane_of, slice_of
from tidewheel.runs import Gate
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import record_topic_prefix

Own: TypeAlias = psycopg.Connection[TupleRow]
MIGRATIONS = Path(__file__).parents[3] / "migrations"
CHARGE: LiteralString = "SELECT tidewheel_enqueue('charge', request_id => %s)"
ORDER: LiteralString = "INSERT INTO orders (name) VALUES ('socks')"


@pytest.fixture(scope="module")
def shop(template: Template) -> Iterator[Database]:
    """A database that holds an application's rows beside Tidewheel's, and one job."""
    made = Database(template.copy(), template.installation)
    made.execute("CREATE TABLE orders (name text)")
    made.within(record_topic_prefix, Connections.load(topic_prefix="shop"))
    made.submit("charge", lane="critical")
    made.submit("keyed", concurrency_key="{payload.a.b}")
    made.submit("line", ordering_key="{payload.a}", dedupe={"window": "1h", "mode": "debounce"})
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_orders(shop: Database) -> Iterator[None]:
    shop.execute("TRUNCATE orders, job_runs, finished_runs, run_inputs, outbox, requests")
    yield
    shop.close()


@pytest.fixture
def own(shop: Database) -> Iterator[Own]:
    """The application's own connection."""
    with psycopg.connect(shop.url) as connection:
        yield connection


def written(shop: Database) -> tuple[int, int]:
    return shop.count("orders"), shop.count("outbox")


def take_in(shop: Database) -> list[Reply]:
    """Do with what lies in the outbox as intake does, having read it from Kafka."""
    values = [value for (value,) in shop.rows("DELETE FROM outbox WHERE topic = 'shop.requests' RETURNING value")]
    return shop.within(apply_requests, shop.installation, [ReceivedRequest(read_request(value)[0]) for value in values])


def test_request_is_written_to_the_outbox_slice_of_its_job(shop: Database) -> None:
    shop.rows(CHARGE, ["order-1"])
    [(slice_lane, key, topic, shard)] = shop.rows(
        "SELECT o.slice_lane, o.key, o.topic, j.shard FROM outbox AS o, jobs AS j WHERE j.key = 'charge'"
    )
    assert (key, topic) == (b"charge", "shop.requests")
    assert slice_lane == slice_lane_of(slice_of(shard, shop.installation.shards), "critical")


def test_all_arguments_reach_the_run(shop: Database) -> None:
    at = shop.now() + timedelta(days=3)
    [(request_id,)] = shop.rows(
        "SELECT tidewheel_enqueue('charge', %s, run_at => %s, labels => %s, request_id => 'order-1')",
        [json.dumps({"cents": 900, "ä": [None, 1.5]}), at, json.dumps({"team": "billing"})],
    )
    [reply] = take_in(shop)
    assert (request_id, reply.request_id, reply.status) == ("order-1", "order-1", ReplyStatus.ACCEPTED)
    [(publish_at, payload, labels)] = shop.rows(
        "SELECT o.publish_at, i.payload, i.labels FROM job_runs AS o JOIN run_inputs AS i USING (run_id)"
    )
    assert (publish_at, json.loads(payload), labels) == (at, {"cents": 900, "ä": [None, 1.5]}, {"team": "billing"})


def test_key_of_the_run_replaces_the_jobs(shop: Database) -> None:
    shop.rows("SELECT tidewheel_enqueue('charge', '{\"a\": \"x\"}', concurrency_key => 'to/{payload.a}')")
    shop.rows("SELECT tidewheel_enqueue('charge', concurrency_key => 'acme')")
    shop.rows("SELECT tidewheel_enqueue('keyed', '{\"a\": {\"b\": 7}}')")
    # A code point that Unicode has not assigned, and a blank that is no space: intake accepts both.
    named = {
        "labels": json.dumps({"\u0378": "x"}),
        "key": "\u0378",
        "payload": json.dumps({"a": {"b": "a\u00a0\u0378"}}),
    }
    call: LiteralString = (
        "SELECT tidewheel_enqueue('charge', labels => %(labels)s, request_id => %(key)s, concurrency_key => %(key)s)"
    )
    with shop.transaction() as connection:
        connection.execute(call, named)
        connection.execute("SELECT tidewheel_enqueue('keyed', %(payload)s)", named)
    assert [reply.status for reply in take_in(shop)] == [ReplyStatus.ACCEPTED] * 5
    keys = {key for (key,) in shop.rows("SELECT concurrency_key FROM job_runs")}
    assert keys == {"to/x", "acme", "7", "\u0378", "a\u00a0\u0378"}


def test_hidden_characters_are_those_of_intake_and_none_of_them_is_visible() -> None:
    text = (MIGRATIONS / "0005_functions.sql").read_text(encoding="utf-8")
    [listed] = re.findall(r"v_hidden +CONSTANT text := ([^;]*);", text)
    assert "".join(re.findall("'([^']*)'", listed)) == HIDDEN
    characters = "".join(map(chr, range(1, sys.maxunicode + 1)))
    hidden = set(re.findall(f"[{HIDDEN}]", characters))
    assert not [each for each in hidden if each.isprintable()]
    missing = [each for each in characters if unicodedata.category(each) in ("Cc", "Cf", "Co") and each not in hidden]
    assert missing == []


def test_order_and_dedupe_of_the_run_are_those_of_the_call_or_the_job(shop: Database) -> None:
    shop.rows("SELECT tidewheel_enqueue('charge', ordering_key => 'k', on_failure => 'skip', overlap => 'allow_all')")
    shop.rows("SELECT tidewheel_enqueue('line', '{\"a\": \"k\"}')")
    shop.rows("SELECT tidewheel_enqueue('line', '{\"a\": \"l\"}', dedupe_key => 'd', dedupe_longest => '2 hours')")
    replies = take_in(shop)
    assert [(reply.status, reply.dedupe) for reply in replies] == [
        (ReplyStatus.ACCEPTED, None), (ReplyStatus.ACCEPTED, None), (ReplyStatus.ACCEPTED, "accepted"),
    ]  # fmt: skip
    gates = dict(shop.rows("SELECT run_id::text, (order_no, state, gates)::text FROM job_runs"))
    assert [gates[reply.run_id or ""] for reply in replies] == [
        f"(0,queued,{int(Gate.ORDER | Gate.PASSES)})",
        f"(1,buffered,{int(Gate.ORDER)})",
        f"(0,queued,{int(Gate.ORDER)})",
    ]


def test_priority_of_the_run_replaces_the_jobs(shop: Database) -> None:
    shop.rows("SELECT tidewheel_enqueue('charge', priority => 9)")
    take_in(shop)
    assert shop.value("SELECT priority FROM job_runs") == 9


def test_delay_begins_when_intake_applies_the_request(shop: Database) -> None:
    shop.rows("SELECT tidewheel_enqueue('charge', delay => '1 hour 1.5 seconds')")
    before = shop.now()
    take_in(shop)
    wait = shop.value("SELECT publish_at FROM job_runs") - before
    assert timedelta(seconds=3601) < wait < timedelta(seconds=3700)


def test_repeated_request_is_one_run_and_each_without_an_id_another(shop: Database) -> None:
    for _ in range(2):
        shop.rows("SELECT tidewheel_enqueue('charge', delay => '1 min', request_id => 'order-1')")
    first, second = (shop.value("SELECT tidewheel_enqueue('charge')") for _ in range(2))
    assert UUID(first) != UUID(second)
    replies = take_in(shop)
    assert [reply.status for reply in replies] == [ReplyStatus.ACCEPTED] * 4
    assert replies[0].run_id == replies[1].run_id
    assert shop.count("job_runs") == 3


def test_null_payload_replaces_the_jobs_and_no_payload_keeps_it(shop: Database) -> None:
    shop.rows("SELECT tidewheel_enqueue('charge', 'null'), tidewheel_enqueue('charge')")
    take_in(shop)
    assert shop.rows("SELECT payload FROM run_inputs WHERE payload IS NOT NULL") == [(b"null",)]


@pytest.mark.parametrize(
    ("call", "words", "hint"),
    [
        ("'chrage'", "key: tenant 'default' has no job 'chrage'", "submit the job first"),
        ("'charge', tenant => 'acme'", "key: tenant 'acme' has no job", "submit the job first"),
        ("NULL", "key: it is null", "give the key"),
        ("'charge', delay => '-1 s'", "delay: -00:00:01 is not between", "submit a job"),
        ("'charge', delay => '401 days'", "delay: 401 days is not between", "submit a job"),
        ("'charge', delay => '1 s', run_at => now()", "delay: delay and run_at exclude", "leave one"),
        ("'charge', run_at => 'infinity'", "run_at: infinity is more than", "submit a job"),
        ("'charge', priority => 10", "priority: 10 is not between 0 and 9", "9 goes first"),
        ("'charge', concurrency_key => ' k'", "concurrency_key: it has 2 characters", "1 to 255"),
        ("'charge', concurrency_key => repeat('k', 256)", "concurrency_key: it has 256", "1 to 255"),
        ("'charge', concurrency_key => '{k}'", "concurrency_key: {k} has braces", "{payload.customer}"),
        ("'charge', '{}', concurrency_key => '{payload.a}'", "payload.a: the concurrency key {payload.a}", "add it"),
        ("'charge', '{\"a\": 1.5}', concurrency_key => '{payload.a}'", "payload.a: the concurrency key", "add it"),
        ("'charge', overlap => 'all'", "overlap: 'all' is not valid", "allow_all"),
        ("'charge', on_failure => 'skip'", "on_failure: it belongs to ordering_key", "leave it out"),
        (
            "'charge', ordering_key => 'k', overlap => 'skip'",
            "ordering_key: the overlap of the run is skip",
            "allow_all",
        ),
        ("'keyed', '{\"a\": {\"b\": 7}}', ordering_key => 'k'", "exclude each other", "leave one out"),
        ("'line'", "payload: the ordering key {payload.a} needs", "give a payload"),
        ("'line', '{}'", "payload.a: the ordering key {payload.a} needs", "another ordering_key"),
        ("'line', '{\"a\": 1}', delay => '1 s', dedupe_key => 'k'", "delay: a debounced run starts", "leave it out"),
        ("'charge', dedupe_key => 'k'", "dedupe_window: neither the call nor the job", "10 min"),
        ("'charge', dedupe_window => '1 h'", "dedupe_key: neither the call nor the job", "share"),
        ("'charge', dedupe_window => '31 days'", "dedupe_window: 31 days is not between", "10 min"),
        (
            "'charge', dedupe_key => 'k', dedupe_window => '1 h', dedupe_longest => '2 h'",
            "it bounds a debounce",
            "debounce",
        ),
        ("'line', '{\"a\": 1}', dedupe_key => 'k', dedupe_longest => '59 min'", "shorter than the window", "longer"),
        ("'keyed'", "payload: the concurrency key {payload.a.b} needs", "give a payload"),
        ("'keyed', '{\"a\": {}}'", "payload.a.b: the concurrency key {payload.a.b} needs", "add it"),
        ('\'keyed\', \'{"a": {"b": ""}}\'', "key {payload.a.b} becomes one of 0 characters", "1 to 255"),
        ('\'keyed\', \'{"a": {"b": "x "}}\'', "becomes one of 2 characters", "without spaces"),
        ('\'keyed\', U&\'{"a": {"b": "x\\200by"}}\'', "becomes one of 3 characters", "printable"),
        (
            "'charge', jsonb_build_object('a', repeat('k', 253)), concurrency_key => 'to/{payload.a}'",
            "becomes one of 256 characters",
            "1 to 255",
        ),
        ("'charge', concurrency_key => U&'k\\00a0'", "concurrency_key: it has 2 characters", "1 to 255"),
        ("'charge', labels => '[1]'", "labels: [1] is no map of strings", "write them as"),
        ("'charge', labels => '{\"a\": 1}'", 'labels: {"a": 1} is no map', "write them as"),
        ("'charge', labels => '{\"\": \"x\"}'", "labels: there are too many, or one is too long", "at most 64"),
        ("'charge', labels => jsonb_build_object('a', repeat('x', 256))", "labels: there are too many", "255"),
        (
            "'charge', labels => (SELECT jsonb_object_agg(n, 'x') FROM generate_series(1, 65) AS n)",
            "labels: there are too many",
            "at most 64",
        ),
        ("'charge', run_at => '1969-12-31Z'", "lies before 1970", "a later instant"),
        ("'charge', (repeat('[', 33) || repeat(']', 33))::jsonb", "payload: it is nested more than 32", "flatten it"),
        (
            "'charge', (SELECT jsonb_agg('{}'::jsonb) FROM generate_series(1, 33000))",
            "payload: it holds more than 32000 arrays and objects",
            "pass a reference",
        ),
        ("'charge', ('-1' || repeat('0', 4300))::jsonb", "payload: it holds a number that is too long", "as a string"),
        (
            "'charge', ('{\"a\": [1' || repeat('0', 309) || '.5]}')::jsonb",
            "payload: it holds a number that is too long",
            "as a string",
        ),
        ("'charge', request_id => U&'a\\2028b'", "request_id: it has 3 characters, or some that", "or leave it out"),
        ("'charge', request_id => ''", "request_id: it has 0 characters", "or leave it out"),
        ("'charge', request_id => U&'a\\200b'", "request_id: it has 2 characters, or some that", "or leave it out"),
        ("'charge', request_id => 'a '", "request_id: it has 2 characters, or some that", "without spaces"),
        (
            "'charge', labels => U&'{\"a\\200b\": \"x\"}'",
            "labels: there are too many, or one is too long",
            "at most 64",
        ),
        ("'charge', to_jsonb(repeat('x', 300000))", "payload: it has 300002 bytes, more than", "pass a reference"),
    ],
)
def test_invalid_argument_is_refused_with_field_and_remedy(
    shop: Database, own: Own, call: LiteralString, words: str, hint: str
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        own.execute(SQL("SELECT tidewheel_enqueue({})").format(SQL(call)))
    own.rollback()
    assert words in (caught.value.diag.message_primary or "")
    assert hint in (caught.value.diag.message_hint or "")
    assert written(shop) == (0, 0)


@pytest.mark.landing
def test_largest_payload_is_measured_as_by_intake(shop: Database, own: Own) -> None:
    """Issue 39: a payload of 256 KiB was refused for the blanks that jsonb writes behind commas."""
    call: LiteralString = "SELECT tidewheel_enqueue('charge', to_jsonb(array_fill(1, ARRAY[%s])))"
    shop.rows(call, [131_071])
    assert [reply.status for reply in take_in(shop)] == [ReplyStatus.ACCEPTED]
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="payload: it has 262145 bytes, more than 262144"):
        own.execute(call, [131_072])


def test_limits_of_the_tenant_and_of_a_filled_key_are_those_of_intake(shop: Database) -> None:
    """Intake counts no blank that jsonb writes between tokens, but those in strings."""
    payload = '{"a": {"b": "x  y\\" z"}, "c": [1, 2]}'
    call: LiteralString = "SELECT tidewheel_enqueue('keyed', %s)"
    size = len(json.dumps(json.loads(payload), separators=(",", ":")))
    try:
        shop.execute("UPDATE tenants SET max_payload_bytes = %s", [size])
        shop.rows(call, [payload])
        shop.rows(call, [json.dumps({"a": {"b": "{payload.a.b}"}})])
        assert [reply.status for reply in take_in(shop)] == [ReplyStatus.ACCEPTED] * 2
        shop.execute("UPDATE tenants SET max_payload_bytes = %s", [size - 1])
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match=f"payload: it has {size} bytes") as caught:
            shop.rows(call, [payload])
        assert "--payload" in (caught.value.diag.message_hint or "")
    finally:
        shop.execute("UPDATE tenants SET max_payload_bytes = NULL")
    keys = {key for (key,) in shop.rows("SELECT concurrency_key FROM job_runs")}
    assert keys == {'x  y" z', "{payload.a.b}"}


def test_deleted_tenant_is_refused_as_by_intake_before_its_jobs_are_gone_and_after(database: Database) -> None:
    call: LiteralString = "SELECT tidewheel_enqueue('charge', tenant => 'acme')"
    database.within(record_topic_prefix, Connections.load())
    with Client(database.url) as client:
        client.tenants.create("acme")
        [reply] = database.apply_batch(submission("charge") | {"tenant": "acme"})
        assert reply.status is ReplyStatus.ACCEPTED
        database.rows(call)
        client.tenants.delete("acme", grace=timedelta(0))
        with pytest.raises(errors.UndefinedObject, match="tenant: the tenant 'acme' is being deleted") as caught:
            database.rows(call)
        assert "tidewheel admin tenant show acme" in (caught.value.diag.message_hint or "")
        with psycopg.connect(database.url) as own, pytest.raises(Refused, match="is being deleted") as refused:
            tidewheel.enqueue(own, "charge", tenant="acme")
        assert refused.value.code == "tenant_deleted"
        database.execute("DELETE FROM jobs")
        database.execute("UPDATE tenant_deletions SET finished_at = now(), free_at = now() + interval '1 day'")
        with pytest.raises(errors.UndefinedObject, match="was deleted, and its name is reserved until 20"):
            database.rows(call)
    assert database.value("SELECT count(*) FROM outbox WHERE topic LIKE '%%.requests'", []) == 1


def test_argument_at_the_bound_is_accepted(shop: Database) -> None:
    deep = "(repeat('[', 32) || repeat(']', 32))::jsonb"
    labels = "(SELECT jsonb_object_agg(repeat(chr(255 + n), 63), repeat('ä', 255)) FROM generate_series(1, 64) AS n)"
    many = "(SELECT jsonb_agg('{}'::jsonb) FROM generate_series(1, 31999))"
    long = "('[-1' || repeat('0', 4299) || ', 179' || repeat('0', 306) || '.5, 1' || repeat('0', 400) || ']')::jsonb"
    fine = "('[0.' || repeat('1', 5000) || ', \"1' || repeat('0', 5000) || '\"]')::jsonb"
    for payload in (deep, many, long, fine):
        shop.rows(
            SQL("SELECT tidewheel_enqueue('charge', {}, labels => {}, run_at => '1970-01-01Z')").format(
                SQL(payload), SQL(labels)
            )
        )
    assert [reply.status for reply in take_in(shop)] == [ReplyStatus.ACCEPTED] * 4


def test_a_deleted_job_is_unknown(shop: Database, own: Own) -> None:
    own.execute("UPDATE jobs SET deleted_at = now()")
    with pytest.raises(errors.NoDataFound):
        own.execute(CHARGE, ["order-1"])
    own.rollback()


def test_missing_topic_names_are_reported(database: Database) -> None:
    database.submit("charge")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="named this installation's topics"):
        database.rows(CHARGE, ["order-1"])


def test_application_needs_only_the_right_to_execute_it(shop: Database) -> None:
    role = Identifier(f"app_{uuid4().hex[:8]}")

    def call_as_application(*, trap: bool) -> TupleRow | None:
        with psycopg.connect(shop.url) as own:
            own.execute(SQL("SET ROLE {}").format(role))
            if trap:
                own.execute("CREATE TEMP TABLE outbox (value bytea)")
                own.execute("CREATE TEMP TABLE settings (name text, value jsonb)")
            return own.execute(CHARGE, [None]).fetchone()

    shop.execute(SQL("CREATE ROLE {}").format(role))
    try:
        with pytest.raises(errors.InsufficientPrivilege, match="tidewheel_enqueue"):
            call_as_application(trap=False)
        shop.execute(SQL("GRANT EXECUTE ON FUNCTION tidewheel_enqueue TO {}").format(role))
        for trap in (False, True):
            assert call_as_application(trap=trap)
        assert shop.count("outbox") == 2
        with psycopg.connect(shop.url) as own:
            own.execute(SQL("SET ROLE {}").format(role))
            with pytest.raises(errors.InsufficientPrivilege):
                own.execute("SELECT value FROM settings")
    finally:
        shop.execute(SQL("DROP OWNED BY {}").format(role))
        shop.execute(SQL("DROP ROLE {}").format(role))


def test_names_that_a_caller_puts_before_tidewheels_change_nothing(shop: Database) -> None:
    """Else the function, which has its owner's rights, would read and write the caller's tables."""
    with psycopg.connect(shop.url) as own:
        own.execute("CREATE SCHEMA hostile")
        own.execute(
            "CREATE FUNCTION hostile.tidewheel_now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT to_timestamp(0) $$"
        )
        own.execute("CREATE TABLE hostile.jobs (LIKE public.jobs)")
        own.execute("CREATE TEMPORARY TABLE outbox (LIKE public.outbox)")
        own.execute("SET LOCAL search_path = pg_temp, hostile, public")
        own.execute("SELECT public.tidewheel_enqueue('charge', request_id => 'r')")
        assert own.execute("SELECT count(*) FROM pg_temp.outbox").fetchone() == (0,)
        found = own.execute(
            "SELECT count(*) FROM public.outbox WHERE publish_at > now() - interval '1 minute'"
        ).fetchone()
        assert found == (1,)
        own.rollback()
