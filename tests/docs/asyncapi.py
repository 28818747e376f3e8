"""The AsyncAPI document of the topics, from `Topics.plan` and the message schemas."""

import json
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import NamedTuple

from tests.docs.reference_messages import SCHEMAS
from tidewheel.kafka.topics import Topics
from tidewheel.runs import Lane

PAGE = SCHEMAS / "asyncapi.json"
_TENANT, _QUEUE = "{tenant}", "{queue}"
_AVRO = "application/vnd.apache.avro;version=1.9.0"
_PARAMETERS = {
    "tenant": {"description": "The tenant whose own topic this is; `admin topics apply --tenants` creates it."},
    "queue": {"description": "A queue other than `default`, whose topics have no such part."},
    "lane": {"description": "The priority class of the runs.", "enum": [str(lane) for lane in Lane]},
}


class _Channel(NamedTuple):
    """One topic, or those that differ by a parameter. Tidewheel sends or receives its messages."""

    address: str
    plan: str
    action: str
    key: str
    schema: str | None
    json: bool = True


def _channels() -> Iterator[tuple[str, _Channel]]:
    topics, receive, send = Topics(), "receive", "send"
    job, run = "UUID of the job.", "UUID of the run."
    request, lane = "The job's key.", f"{topics.prefix}.runs.{{lane}}"
    yield "requests", _Channel(topics.requests, topics.requests, receive, request, "request")
    yield "replies", _Channel(topics.replies, topics.replies, send, "The key of the request.", "reply")
    own = topics.requests_of(_TENANT), topics.requests_of("t"), receive, request, "request"
    yield "requestsOfTenant", _Channel(*own)
    answers = topics.replies_of(_TENANT), topics.replies_of("t"), send, "The key of the request.", "reply"
    yield "repliesOfTenant", _Channel(*answers)
    yield "targetReplies", _Channel(topics.target_replies, topics.target_replies, receive, "Any.", None)
    runs = topics.runs("default", Lane.STANDARD)
    yield "runs", _Channel(lane, runs, send, run, "run_request", json=False)
    of_queue = f"{topics.prefix}.runs.{_QUEUE}.{{lane}}"
    yield "runsOfQueue", _Channel(of_queue, runs, send, run, "run_request", json=False)
    yield "completions", _Channel(topics.completions, topics.completions, send, job, "run_completed")
    yield "events", _Channel(topics.events, topics.events, send, job, "lifecycle_event")
    dead = f"{job[:-1]}, or the key of a message that is no request."
    yield "deadLetters", _Channel(topics.dead_letters, topics.dead_letters, send, dead, "dead_letter")
    yield "outputs", _Channel(topics.outputs, topics.outputs, send, run, None)


def asyncapi() -> str:
    """Return the document as JSON text."""
    plan = {topic.name: topic for topic in Topics().plan(tenants=("t",), outputs=True)}
    channels: dict[str, object] = {}
    operations: dict[str, object] = {}
    for name, channel in _channels():
        topic = plan[channel.plan]
        names = [each for each in _PARAMETERS if f"{{{each}}}" in channel.address]
        channels[name] = {
            "address": channel.address,
            "messages": dict(_messages(channel)),
            "parameters": {each: _PARAMETERS[each] for each in names},
            "bindings": {
                "kafka": {
                    "partitions": topic.partitions,
                    "topicConfiguration": {"cleanup.policy": ["delete"], "retention.ms": topic.retention_ms},
                    "bindingVersion": "0.5.0",
                }
            },
        }
        operations[f"{channel.action}{name[0].upper()}{name[1:]}"] = {
            "action": channel.action,
            "channel": {"$ref": f"#/channels/{name}"},
        }
    document = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Tidewheel",
            "version": version("tidewheel"),
            "description": "The topics under the prefix `tidewheel`. Tidewheel receives requests and sends all others.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
    }
    return json.dumps(document, indent=2) + "\n"


def _messages(channel: _Channel) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the messages of a channel by name: one for each encoding."""
    key = {"kafka": {"key": {"type": "string", "description": channel.key}, "bindingVersion": "0.5.0"}}
    if channel.schema is None:
        yield "bytes", {"contentType": "application/octet-stream", "bindings": key}
        return
    avro = {"schemaFormat": _AVRO, "schema": {"$ref": f"{channel.schema}.avsc"}}
    yield "avro", {"contentType": "application/vnd.apache.avro", "payload": avro, "bindings": key}
    if channel.json:
        yield (
            "json",
            {"contentType": "application/json", "payload": {"$ref": f"json/{channel.schema}.json"}, "bindings": key},
        )
