"""A tenant's own topic names the tenant of its messages; replies go to that tenant alone."""

import json
import logging
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.control.cli.command import tidewheel
from tests.fixtures.acts import about, submission
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.intake.running import Requests
from tests.relay.topics import delete_topic, make_topics
from tests.scheduler.test_tenant_deletions import rows_by_table
from tidewheel.control.client.client import Client
from tidewheel.intake import consume, partitions
from tidewheel.intake.partitions import hold_deletions
from tidewheel.intake.request import read_request
from tidewheel.jobs.parsing import RequestRefused
from tidewheel.kafka.offsets import read_led_offsets
from tidewheel.local.stack import StackInfo
from tidewheel.scheduler import tenant_deletions
from tidewheel.scheduler.tenant_deletions import TenantDeletions
from tidewheel.schemas.generated.records import ReplyError
from tidewheel.transitions.tenant_refusals import topics_to_read


@pytest.fixture
def requests(database: Database, info: StackInfo, monkeypatch: pytest.MonkeyPatch) -> Requests:
    monkeypatch.setattr(partitions, "_AGE_SECONDS", 0.2)
    return Requests(database, info.kafka)


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"type": "job.trigger", "key": "a", "tenant": "globex"}, "tenant"),
        ({"type": "job.trigger", "key": "a", "tenant": None}, "tenant"),
        ({"type": "job.trigger", "key": "a", "tenant": ["acme"]}, "tenant"),
        ({"type": "job.trigger"}, "key"),
        ({"type": "freeze", "scope": "fleet"}, "scope"),
        ({"type": "thaw", "scope": "fleet", "queue": "reports"}, "scope"),
    ],
)
def test_request_of_another_tenant_or_of_the_fleet_is_refused_in_the_name_of_the_topic(
    document: dict[str, object], path: str
) -> None:
    with pytest.raises(RequestRefused) as refused:
        read_request(json.dumps(document).encode(), "acme")
    assert [error.path for error in refused.value.errors] == [path]
    assert refused.value.identity.tenant == "acme"


@pytest.mark.kafka
def test_topic_that_is_made_while_intake_runs_names_the_tenant_of_its_messages(
    requests: Requests, tmp_path: Path, info: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, topics = requests.database, requests.topics
    own, unknown = topics.requests_of("acme"), topics.requests_of("nobody")
    with Client(database.url) as client:
        for tenant in ("acme", "globex"):
            client.tenants.create(tenant)
        client.tenants.pause("acme")
    with requests.running():
        requests.until_read(requests.send(submission("shared"))[0])
        make_topics(requests.kafka, [own, unknown])
        sent = submission("mine"), submission("too") | {"tenant": "acme"}, about("job.trigger", "mine")
        refused = submission("theirs") | {"tenant": "globex"}, b"no request"
        last = requests.send(*sent, *refused, key=b"k", topic=own)[-1]
        requests.until_read(last, topic=own)
        requests.send(submission("lost"), topic=unknown)
        requests.until_read(requests.send(submission("last"))[0])
    assert database.rows("SELECT tenant, key FROM jobs ORDER BY key") == [
        ("default", "last"), ("acme", "mine"), ("default", "shared"), ("acme", "too"),
    ]  # fmt: skip
    replies = requests.replies(b"k", topic=topics.replies_of("acme"))
    assert [(reply.tenant, reply.status, reply.code) for reply in replies] == [
        *[("acme", "accepted", None)] * 3, ("acme", "rejected", "invalid"), ("acme", "rejected", "undecodable"),
    ]  # fmt: skip
    remedy = "leave it out, or send the request to the topic of its tenant"
    problem = "'globex' is not acme, the tenant of this topic"
    assert replies[3].errors == (ReplyError(path="tenant", problem=problem, remedy=remedy),)
    assert database.rows("SELECT FROM intake_offsets WHERE topic = %s", [unknown]) == []
    assert requests.replies(b"k") == []  # on the shared topic
    assert database.rows("SELECT tenant, topic FROM dead_letters") == [("acme", own)]
    [(headers,)] = database.rows("SELECT headers FROM outbox WHERE topic = %s", [topics.dead_letters])
    assert dict(zip(headers[::2], headers[1::2], strict=True))[b"tidewheel-dlq-tenant"] == b"acme"

    requests.send(submission("unread"), submission("unread"), topic=own)
    requests.send(submission("unread"))
    monkeypatch.setenv("TIDEWHEEL_HOME", str(tmp_path))
    monkeypatch.setenv("TIDEWHEEL_TOPIC_PREFIX", topics.prefix)
    monkeypatch.setenv("TIDEWHEEL_KAFKA_PROPERTIES", str(info.kafka_properties))
    assert json.loads(tidewheel(database, "status", "--output", "json").out)["requests_behind"] == 3


@pytest.mark.kafka
def test_tenants_topic_that_was_made_again_or_is_deleted_stops_no_other(
    requests: Requests, caplog: pytest.LogCaptureFixture
) -> None:
    database, own = requests.database, requests.topics.requests_of("default")
    make_topics(requests.kafka, [own])
    with requests.running():
        requests.until_read(requests.send(submission("one"), topic=own)[0], topic=own)
    database.execute("UPDATE intake_offsets SET topic_id = 'another life' WHERE topic = %s", [own])
    with caplog.at_level(logging.ERROR, "tidewheel.intake"), requests.running():
        until(lambda: f"{own} was deleted and created again" in caplog.text, "it is reported")
        requests.send(submission("two"), topic=own)
        requests.until_read(requests.send(submission("three"))[0])
        delete_topic(requests.kafka, own)
        for number in range(4):  # for longer than the age of the list of topics
            requests.until_read(requests.send(submission(f"four-{number}"))[0])
    owned = "SELECT topic = %s, epoch FROM intake_offsets WHERE topic LIKE '%%.requests%%' ORDER BY epoch"
    assert database.rows(owned, [own]) == [(True, 1), (False, 2)]
    assert database.count("jobs") == 6


@pytest.mark.kafka
def test_tenants_partition_without_a_leader_is_read_later_and_no_member_joins_again_for_it(
    requests: Requests, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A single broker cannot be away for one topic: its answer is left out. A missing topic has no leader."""
    database, own = requests.database, requests.topics.requests_of("default")
    away = {own}

    def read(client: Consumer, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        found = read_led_offsets(client, [*places, (f"{own}.missing", 0)])
        assert found.keys() == set(places)
        return {place: offsets for place, offsets in found.items() if place[0] not in away}

    monkeypatch.setattr(consume, "read_led_offsets", read)
    monkeypatch.setattr(consume, "_AGAIN_SECONDS", 0.1)
    make_topics(requests.kafka, [own])
    requests.send(submission("waits"), topic=own)
    with requests.running():
        requests.until_read(requests.send(submission("shared"))[0])
        until(lambda: caplog.text.count(f"{own}/0: no leader answers") >= 2, "it is tried again")
        requests.until_read(requests.send(submission("other"))[0])
        away.clear()
        requests.until_read(requests.send(submission("after"), topic=own)[0], topic=own)
    assert sorted(key for (key,) in database.rows("SELECT key FROM jobs")) == ["after", "other", "shared", "waits"]
    assert database.rows("SELECT DISTINCT epoch FROM intake_offsets WHERE topic LIKE '%.requests%'") == [(1,)]


@pytest.mark.landing
@pytest.mark.kafka
def test_topic_of_a_deleted_tenant_leaves_no_row(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the deletion goes on each message is refused; after its end the topic is not read."""
    database, own = requests.database, requests.topics.requests_of("acme")
    monkeypatch.setattr(tenant_deletions, "_WAIT_SECONDS", 0.0)
    make_topics(requests.kafka, [own])
    with Client(database.url) as client, database.transaction() as old:
        client.tenants.create("acme")
        old.execute("SELECT tidewheel_now()")  # the deletion waits for its end
        client.tenants.delete("acme", grace=timedelta(0))
        deletions = TenantDeletions(database.session(), requests.installation, timedelta(days=1))
        with requests.running():
            requests.until_read(requests.send(b"no request", submission("job"), key=b"k", topic=own)[-1], topic=own)
            deletions.work()
            old.rollback()
            until(lambda: deletions.work() and client.tenants.get("acme").state == "deleted", "it ends")
            requests.send(b"no request", topic=own)
            requests.until_read(requests.send(submission("shared"))[0])
    replies = requests.replies(b"k", topic=requests.topics.replies_of("acme"))
    assert [(reply.tenant, reply.code) for reply in replies] == [("acme", "tenant_deleted")] * 2
    assert rows_by_table(database, "acme") == {}
    stored = database.rows("SELECT DISTINCT topic FROM intake_offsets WHERE topic LIKE '%%.requests%%'", [])
    assert stored == [(requests.topics.requests,)]
    with database.transaction() as connection:
        assert hold_deletions(connection, ["acme", "default"]) == {"acme"}
        present = [requests.topics.requests, own]
        assert topics_to_read(connection, requests.topics, present) == [requests.topics.requests]
        connection.execute("DELETE FROM tenant_deletions")  # the name is free again
        assert topics_to_read(connection, requests.topics, present) == [requests.topics.requests]
