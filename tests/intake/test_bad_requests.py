"""Each bad request gets a reply or a dead letter, is counted, and blocks nothing behind it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.acts import submission
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.intake.running import Requests
from tidewheel.local.stack import StackInfo
from tidewheel.process.metrics import metrics
from tidewheel.schemas.codec import encode_fields
from tidewheel.schemas.generated.records import Reply, RequestOrigin, RequestType
from tidewheel.schemas.interop import from_json

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def requests(shared_database: Database, info: StackInfo) -> Iterator[Requests]:
    """One intake for all tests here: what one of them sends must not disturb the others."""
    made = Requests(shared_database, info.kafka)
    with made.running():
        yield made


def job(key: str = "bad", **fields: object) -> bytes:
    """A `job.submit` with something wrong in its job."""
    return json.dumps(submission(key, **fields)).encode()


def between_two_good_ones(requests: Requests, bad: bytes, name: str) -> int:
    """Send good, bad, good under one key; both good ones take effect. Returns the offset of the bad one."""
    key = name.encode()
    offsets = requests.send(submission(f"{name}-1"), bad, submission(f"{name}-2"), key=key)
    requests.until_read(offsets[-1])
    made = requests.database.rows("SELECT key FROM jobs WHERE key LIKE %s ORDER BY key", [f"{name}-%"])
    assert [key for (key,) in made] == [f"{name}-1", f"{name}-2"]
    return offsets[1]


REJECTED = [
    pytest.param(b'{"type": "job.submit", "job": {"key": "a"}, "job": 1}', "job", "twice", id="a name given twice"),
    pytest.param(job(retry={"max_attempts": "5"}), "job.retry.max_attempts", "", id="a wrong type"),
    pytest.param(job(scedule="manual"), "job.scedule", "schedule", id="an unknown field"),
    pytest.param(
        b'{"type": "job.trigger", "key": "a", "lane": "batch"}', "lane", "write it in the job", id="a field of the job"
    ),
    pytest.param(job(priority=10), "job.priority", "9 goes first", id="a priority out of bounds"),
    pytest.param(job(schedule={"cron": "0 8 * * *", "timezone": "Mars/A"}), "job.schedule.timezone", "", id="zone"),
    pytest.param(job(schedule="0 0 30 2 *"), "job.schedule.cron", "never", id="a cron that cannot fire"),
    pytest.param(job(payload="x" * (256 * 1024)), "job.payload", "262144", id="a payload too large"),
    pytest.param(json.dumps(submission("bad") | {"tenant": "acme"}).encode(), "tenant", "acme", id="an unknown tenant"),
    pytest.param(b'{"type": "job.sumbit", "job": {}}', "type", "job.submit", id="an unknown type"),
    pytest.param(b'{"type": "job.trigger", "key": "nobody"}', "key", "nobody", id="an unknown job"),
    pytest.param(b'{"type": "run.cancel", "run_id": "x"}', "run_id", "", id="no run_id"),
]


@pytest.mark.landing
@pytest.mark.parametrize(("bad", "path", "said"), REJECTED)
def test_readable_invalid_request_is_rejected_with_path_and_remedy(
    requests: Requests, request: pytest.FixtureRequest, bad: bytes, path: str, said: str
) -> None:
    name = request.node.callspec.id.replace(" ", "-")
    offset = between_two_good_ones(requests, bad, name)
    first, refused, last = requests.replies(name.encode())
    assert (first.status, refused.status, last.status) == ("accepted", "rejected", "accepted")
    assert path in {error.path for error in refused.errors}
    assert said in " ".join(f"{error.problem} {error.remedy}" for error in refused.errors)
    assert all(error.remedy for error in refused.errors)
    assert refused.origin == RequestOrigin(topic=requests.topics.requests, partition=0, offset=offset)
    assert requests.database.rows("SELECT FROM jobs WHERE key = 'bad'") == []


UNDECODABLE = [
    pytest.param(b'{"type": "job.submit", "job": {"key": }', "JSON", id="malformed JSON"),
    pytest.param(b"[1, 2]", "object", id="no object"),
    pytest.param(b"", "empty", id="nothing"),
    pytest.param(b"\x00\x00\x00\x00\x2a\x06foo", "schema registry", id="a registry's wire format"),
    pytest.param(b"\xff\xfe\x00\x01 no Avro", "neither JSON nor Avro", id="no Avro"),
    pytest.param(b"\xc3\x01" + b"\x11" * 8 + b"body", "schema id 1111111111111111", id="an unknown schema"),
    pytest.param(encode_fields("Request", {"type": "job_submit"})[:12], "not a readable Request", id="cut short"),
]


@pytest.mark.parametrize(("bad", "reason"), UNDECODABLE)
def test_unreadable_message_is_dead_lettered_unchanged_with_its_offset(
    requests: Requests, request: pytest.FixtureRequest, bad: bytes, reason: str
) -> None:
    name = request.node.callspec.id.replace(" ", "-").replace("'", "")
    before = undecodable()
    offset = between_two_good_ones(requests, bad, name)
    first, refused, last = requests.replies(name.encode())
    assert [first.status, refused.status, last.status] == ["accepted", "rejected", "accepted"]
    assert (refused.code, refused.key, refused.type) == ("undecodable", name, RequestType.UNKNOWN)
    assert reason in refused.errors[0].problem
    assert refused.origin == RequestOrigin(topic=requests.topics.requests, partition=0, offset=offset)
    [kept] = requests.database.rows(
        'SELECT kind, topic, partition, key, value, reason FROM dead_letters WHERE "offset" = %s', [offset]
    )
    assert kept[:5] == ("message", requests.topics.requests, 0, name.encode(), bad)
    assert reason in kept[5]
    [(value, headers)] = requests.database.rows(
        "SELECT value, headers FROM outbox WHERE topic = %s AND key = %s", [requests.topics.dead_letters, name.encode()]
    )
    assert value == bad
    told = dict(zip(headers[::2], headers[1::2], strict=True))
    assert told[b"tidewheel-dlq-kind"] == b"message"
    assert told[b"tidewheel-dlq-topic"] == requests.topics.requests.encode()
    assert (told[b"tidewheel-dlq-partition"], told[b"tidewheel-dlq-offset"]) == (b"0", str(offset).encode())
    assert reason.encode() in told[b"tidewheel-dlq-error"]
    until(lambda: undecodable() == before + 1, "it is counted, once its transaction has committed")


def undecodable() -> float:
    [found] = metrics._metrics["undecodable_requests"].collect()  # pyright: ignore[reportPrivateUsage]
    return next(sample.value for sample in found.samples if sample.name.endswith("_total"))


def test_message_without_value_or_key_is_dead_lettered(requests: Requests) -> None:
    [nothing, offset] = requests.send(None, submission("after-nothing"))
    requests.until_read(offset)
    letters = requests.database.rows('SELECT key, value FROM dead_letters WHERE "offset" = %s', [nothing])
    assert letters == [(None, None)]


def test_avro_request_gets_an_avro_reply(requests: Requests) -> None:
    job = {"key": "in-avro", "schedule": {"text": "manual"}, "target": {"type": "handler", "name": "a"}}
    [offset] = requests.send(encode_fields("Request", {"type": "job_submit", "job": job}), key=b"avro")
    requests.until_read(offset)
    [(value, headers)] = requests.database.rows(
        "SELECT value, headers FROM outbox WHERE topic = %s AND key = 'avro'", [requests.topics.replies]
    )
    assert (value[:2], headers) == (b"\xc3\x01", [b"content-type", b"application/avro"])
    assert [reply.status for reply in requests.replies(b"avro")] == ["accepted"]


def test_replies_have_the_requests_key_and_order(requests: Requests) -> None:
    documents: list[dict[str, Any]] = [submission("ordered", payload=n) | {"request_id": f"o-{n}"} for n in range(20)]
    offsets = requests.send(*documents, key=b"ordered")
    requests.until_read(offsets[-1])
    replies = requests.replies(b"ordered")
    assert [(reply.request_id, reply.job_version) for reply in replies] == [(f"o-{n}", n + 1) for n in range(20)]


def test_replies_keep_their_order_around_a_refused_request(database: Database, info: StackInfo) -> None:
    """In one batch a refusal does not overtake the reply to an earlier request."""
    requests = Requests(database, info.kafka)
    offsets = requests.send(submission("one", payload=1), job(key="one", scedule="manual"), submission("one"))
    with requests.running():
        requests.until_read(offsets[-1])
    written = database.rows("SELECT value FROM outbox WHERE topic = %s ORDER BY id", [requests.topics.replies])
    replies = [from_json(value, Reply) for (value,) in written]
    assert [reply.origin.offset for reply in replies if reply.origin] == offsets
    assert [reply.status for reply in replies] == ["accepted", "rejected", "accepted"]
