"""Records on pages equal those of a run: a field that changes makes its page fail.

`docs/topics.md` marks each record with `<!-- record: NAME -->`. The records of `docs/requests*.md` and
`docs/wire-contract.md` have the fields, in their order, of a real reply and a real run's message. The calls of the
latter are in `test_wire_contract.py`.
"""

import json
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import cast

import jsonschema_rs
import pytest
from confluent_kafka import Producer

from tests.docs import record_handlers
from tests.docs.json_blocks import documents
from tests.docs.pages import blocks, fits
from tests.executor.running import Executing
from tests.fixtures.database import Database
from tests.fixtures.reader import Seen, TopicReader
from tests.relay.topics import make_topics
from tests.strict_types import ROOT
from tidewheel.executor.handlers import registered
from tidewheel.executor.output_capture import captured
from tidewheel.local.stack import StackInfo
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import JobDefinition, RunRequest
from tidewheel.testing.stack import Tidewheel

assert record_handlers
TOPICS = ROOT / "docs" / "topics.md"
REQUESTS = sorted((ROOT / "docs").glob("requests*.md"))
WIRE_CONTRACT = ROOT / "docs" / "wire-contract.md"
SCHEMAS = {
    "replies": "reply", "completions": "run_completed", "events": "lifecycle_event", "dead-letters": "dead_letter"
}  # fmt: skip
NAMES = ("reply", "run request", "completion", "event", "dead run", "dead message", "output")
SEND_EMAIL = {"key": "send-email", "schedule": "manual", "target": "send-email"}
TRIGGER = {"type": "job.trigger", "request_id": "r-2", "key": "send-email", "payload": {"to": "a@example.org"}}


@dataclass(frozen=True, slots=True)
class Records:
    """The messages of one history, by topic and in their order."""

    messages: list[Seen]
    prefix: str

    def of(self, topic: str) -> list[Seen]:
        """Return the messages of a topic, named without its prefix."""
        return [seen for seen in self.messages if seen.topic == f"{self.prefix}.{topic}"]

    def shown(self) -> dict[str, str]:
        """Return each record as the page shows it."""
        [reply] = [seen for seen in self.of("replies") if seen.key == b"send-email"]
        [run, *_] = self.of("runs.standard")
        [done, *_] = [seen for seen in self.of("completions") if b"a@example.org" in (seen.value or b"")]
        [skipped] = [seen for seen in self.of("events") if b"occurrence.skipped" in (seen.value or b"")]
        dead = {dict(seen.headers)["tidewheel-dlq-kind"].decode(): seen for seen in self.of("dead-letters")}
        texts = {
            "reply": _text(reply),
            "run request": _text(run, _avro(run.value or b"")),
            "completion": _text(done),
            "event": _text(skipped),
            "dead run": _text(dead["run"]),
            "dead message": _text(next(seen for kind, seen in dead.items() if kind != "run")),
        }
        return {name: text.replace(self.prefix, "tidewheel") for name, text in texts.items()}


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Records:
    """Run jobs that succeed, fail and are missed, and a request that is none."""
    monkeypatch.setenv("TIDEWHEEL_EVENTS_ENCODING", "json")
    monkeypatch.setenv("TIDEWHEEL_EVENTS_RUNS", "all")
    tidewheel = cast("Tidewheel", request.getfixturevalue("tidewheel"))
    reader = TopicReader(tidewheel.kafka, [topic.name for topic in tidewheel.topics.plan(["default"])])
    reader.read_to_end()
    before = len(reader.seen)

    tidewheel.submit(SEND_EMAIL)
    tidewheel.submit({"key": "fails", "schedule": "manual", "target": "fails", "retry": {"max_attempts": 2}})
    tidewheel.submit(SEND_EMAIL | {"key": "tick", "schedule": "@every 5s"})
    producer = Producer({**tidewheel.kafka})
    producer.produce(tidewheel.topics.requests, key="send-email", value=json.dumps(TRIGGER))
    producer.produce(tidewheel.topics.requests, key="x", value='{"type": "job.submit", ')
    producer.flush()
    tidewheel.drain()
    tidewheel.trigger("fails")
    tidewheel.drain()
    tidewheel.client.pause("tick")
    tidewheel.advance(timedelta(minutes=1))
    tidewheel.client.resume("tick")
    tidewheel.drain()

    reader.read_to_end()
    seen = reader.seen[before:]
    reader.close()
    return Records(seen, tidewheel.topics.prefix)


@pytest.mark.kafka
def test_records_of_the_topics_page_are_real_and_fit_their_json_schemas(records: Records) -> None:
    types = {dict(event.headers)["ce_type"].split(b".")[3] for event in records.of("events")}
    assert types >= {b"created", b"skipped", b"started", b"retrying"}
    for topic, stem in SCHEMAS.items():
        schema = json.loads((ROOT / "schemas" / "json" / f"{stem}.json").read_text("utf-8"))
        validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
        found = [seen for seen in records.of(topic) if dict(seen.headers).get("content-type") == b"application/json"]
        assert found
        for seen in found:
            validator.validate(json.loads(seen.value or b""))
            if topic in {"completions", "events"}:
                assert dict(seen.headers)["ce_dataschema"].decode() == schema["$id"]

    real = records.shown()
    shown = {block.name: block for block in blocks(TOPICS) if block.what == "record"}
    assert tuple(shown) == NAMES
    stale = [name for name in real if not fits(shown[name].text, real[name])]
    assert not stale, "\n\n".join(f"{name}: the real record is\n{real[name]}" for name in stale)


@pytest.mark.kafka
def test_replies_and_run_messages_of_pages_have_the_real_fields(records: Records) -> None:
    [reply, _] = records.of("replies")
    expected = list(json.loads(reply.value or b""))
    shown = [document for page in REQUESTS for document in documents(page)]
    replies = [document for document in shown if "status" in document and "origin" in document]
    assert len(replies) > 10
    assert [document["request_id"] for document in replies if list(document) != expected] == [], expected

    [run, *_] = records.of("runs.standard")
    message = decode(run.value or b"", RunRequest)
    real = [_fields(message), _fields(decode(message.definition, JobDefinition))]
    shown = [list(document) for document in documents(WIRE_CONTRACT) if "job_version" in document]
    assert shown == real


@pytest.mark.kafka
def test_record_of_an_output_is_real(database: Database, info: StackInfo) -> None:
    executing = Executing(database, info.kafka)
    executing.with_topics()
    make_topics(info.kafka, [executing.topics.outputs])
    with captured(), executing.running(known=registered(), outputs_topic=True):
        assert executing.run("print-pages").state == "succeeded"
    reader = TopicReader(info.kafka, [executing.topics.outputs])
    reader.read_to_end()
    [piece] = reader.seen
    reader.close()
    [shown] = [block.text for block in blocks(TOPICS) if block.name == "output"]
    assert fits(shown, _text(piece)), f"the real record is\n{_text(piece)}"


def _text(seen: Seen, value: str | None = None) -> str:
    headers = [f"header   {name}: {content.decode()}" for name, content in seen.headers] or ["header   none"]
    text = (seen.value or b"").decode().rstrip("\n").replace("\n", "\n         ") if value is None else value
    return "\n".join([f"key      {(seen.key or b'').decode()}", *headers, f"value    {text}"])


def _fields(record: RunRequest | JobDefinition) -> list[str]:
    return [field.name for field in fields(record)]


def _avro(value: bytes) -> str:
    """Show the marker, the schema's fingerprint, and the first field: a length and the run's id."""
    return f'{value[:2].hex(" ")} {value[2:10].hex(" ")}  {value[10:11].hex()} "{value[11:47].decode()}" …'
