"""Apply a batch of messages and write the replies, in the transaction that stores their offsets.

A tenant's own topic sets the tenant of its messages, and their replies go to that tenant's topic of replies.

A message that cannot be decoded goes to the dead letters byte for byte; of one that is too long, the head, the length
and the SHA-256 digest are kept. A refused request gets a reply. None of them blocks the messages behind it.

A Kafka target replies with a message that carries its task token in a header, so that the value is the result as it is.
The reply ends the attempt and gets no reply itself: one that comes too late is logged and dropped.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias

import psycopg
from confluent_kafka import Message

from tidewheel.audit import ACTOR_HEADER, person
from tidewheel.errors import FieldError, Refused, UndecodableMessage
from tidewheel.intake.apply import BLOCKS_CLAIMS, apply_with, is_recorded
from tidewheel.intake.request import (
    ReceivedRequest,
    encoding_of,
    read_document,
    read_request,
    rejected_unread,
    reply_row,
    type_by_name,
)
from tidewheel.intake.runs import CancelNeedsClaims
from tidewheel.intake.writing import Writing
from tidewheel.jobs.invalid import UnreadableValue
from tidewheel.jobs.parsing import RequestIdentity, RequestRefused, parse_request, request_identity
from tidewheel.jobs.requests import RunComplete
from tidewheel.jobs.strict_json import MAX_DOCUMENT_BYTES, read_value
from tidewheel.jobs.values import MAX_ERROR_CHARACTERS, MAX_RESULT_BYTES, is_traceparent
from tidewheel.kafka.clients import bytes_of
from tidewheel.outbox import OutboxRow, append
from tidewheel.postgres.session import Conn, at_commit
from tidewheel.process import tracing
from tidewheel.process.metrics import metrics
from tidewheel.schemas.generated.records import Reply, RequestOrigin, RequestType
from tidewheel.task_tokens import TASK_TOKEN_HEADER, TaskTokens
from tidewheel.transitions.dead_letters import DeadMessage, dead_letter_message
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.tenant_refusals import deletions_of

if TYPE_CHECKING:
    from tidewheel.process.spans import Spans

_LOG = logging.getLogger("tidewheel.intake")

_MAX_OTHER_BYTES = 64 * 1024  # of a message's key and headers together, which a reply or a republished message repeats
_HEAD_BYTES = 64 * 1024  # of a value that no request can be read from; thousands of such messages cost little
_KEY_BYTES = 4096  # of a key that is too long: enough to recognize its sender

STATUS_HEADER = "tidewheel-status"
ERROR_TYPE_HEADER = "tidewheel-error-type"

_BLANK = {code: " " for code in (*range(32), 127) if chr(code) not in "\n\r\t"}  # no request's text may have these

Headers: TypeAlias = Sequence[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None] | None
Decoded: TypeAlias = ReceivedRequest | UndecodableMessage | RequestRefused


class RequestTimedOut(Exception):
    """One request takes longer than the database allows a transaction."""


class NeedsOwnTransaction(Exception):
    """Some messages of a batch need a transaction each; nothing was written."""

    def __init__(self, messages: Sequence[Message]) -> None:
        super().__init__("cancellations by filter or of workflows, freezes, and cancels of locked runs come alone")
        self.messages = messages


def apply_batch(
    connection: Conn,
    installation: Installation,
    messages: Sequence[Message],
    failure: Exception | None,
    now: datetime,
    *,
    written: set[RequestType] | None = None,
) -> None:
    """Apply messages of one topic or both in the caller's transaction; replies come after requests.

    With the failure of an earlier try requests are rejected, and replies become dead letters.

    Raises:
        NeedsOwnTransaction: The batch contains cancellations by filter or of workflows, freezes, or a cancel of a
            locked run, beside other messages. They block all claims until their commit: roll back and apply each of
            those alone.
    """
    replies = [message for message in messages if message.topic() == installation.topics.target_replies]
    requests = [message for message in messages if message.topic() != installation.topics.target_replies]
    decoded = [(message, decode_message(installation, message, failure)) for message in requests]
    alone = [
        message
        for message, one in decoded
        if isinstance(one, ReceivedRequest) and isinstance(one.request, BLOCKS_CLAIMS)
    ]
    if alone and len(messages) > 1:
        raise NeedsOwnTransaction(alone)
    writing = Writing(connection, installation, written=written)
    try:
        rows = _apply_requests(writing, decoded, now) if requests else []
    except CancelNeedsClaims as error:
        raise NeedsOwnTransaction([one for one in requests if origin_of(one) == error.origin]) from error
    if replies:
        rows += _apply_target_replies(writing, replies, failure, now)
    writing.append(rows)
    writing.settle()


def bury_batch(connection: Conn, installation: Installation, origin: RequestOrigin, end: int, now: datetime) -> None:
    """Store a dead letter for a batch that the client cannot unpack; it ends before the offset `end`."""
    reason = (
        f"the batch of {end - origin.offset} messages from this offset cannot be unpacked, or only to too many bytes"
    )
    tenant = installation.topics.tenant_of(origin.topic)
    if tenant is not None and deletions_of(connection, [tenant]):
        return  # no row of a deleted tenant is written
    at_commit(connection, partial(metrics.count, "undecodable_requests", end - origin.offset))
    dead = DeadMessage(origin.topic, origin.partition, origin.offset, None, None, reason, cut_from=0, tenant=tenant)
    append(connection, [dead_letter_message(connection, installation, dead, now)], shards=installation.shards)


def origin_of(message: Message) -> RequestOrigin:
    """Return the topic, the partition and the offset of a message."""
    return RequestOrigin(topic=message.topic() or "", partition=message.partition() or 0, offset=message.offset() or 0)


def type_of(message: Message, installation: Installation) -> RequestType:
    """Return the type of a message's request, however wrong the rest of it is."""
    if message.topic() == installation.topics.target_replies:
        return RequestType.RUN_COMPLETE
    try:
        document, _ = read_document(_bytes(message.value()) or b"")
        return type_by_name(request_identity(document).type)
    except (UndecodableMessage, RequestRefused):
        return RequestType.UNKNOWN


def decode_message(installation: Installation, message: Message, failure: Exception | None = None) -> Decoded:
    """Decode a message into a request, or into its refusal, such as by the `failure` of an earlier try."""
    value = _bytes(message.value()) or b""
    try:
        _ensure_short(message)
        if failure is not None:
            return _refused_by_failure(installation, message, failure)
        request, encoding = read_request(value, _tenant(installation, message))
    except (UndecodableMessage, RequestRefused) as error:
        return error.without_frames()
    received = ReceivedRequest(request, origin_of(message), encoding, _bytes(message.key()), message.timestamp()[1])
    if headers := dict(_pairs(message.headers())):
        received.sent_traceparent = _traceparent(headers.get("traceparent"))
        if is_recorded(received):
            received.named = person(headers.get(ACTOR_HEADER))
    return received


def _traceparent(header: bytes | str | None) -> str | None:
    """Return the trace context of a header; None if it is not valid, as W3C Trace Context says."""
    text = header.decode("ascii", "replace") if isinstance(header, bytes) else header
    return text if is_traceparent(text) else None


def _apply_requests(writing: Writing, decoded: Sequence[tuple[Message, Decoded]], now: datetime) -> list[OutboxRow]:
    installation = writing.installation
    replies = iter(apply_with(writing, [one for _, one in decoded if isinstance(one, ReceivedRequest)]))
    tenants = {
        tenant
        for message, one in decoded
        if isinstance(one, UndecodableMessage) and (tenant := _tenant(installation, message)) is not None
    }
    deleted = deletions_of(writing.connection, tenants) if tenants else {}
    rows: list[OutboxRow] = []
    # In the order of the requests: a client that sends several under one key gets the replies in that order.
    for message, one in decoded:
        if isinstance(one, ReceivedRequest):
            reply = next(replies)
            if tracing.spans is not None and one.traceparent is not None:
                at_commit(writing.connection, partial(_trace, tracing.spans, one, reply, one.traceparent, now))
            topic = installation.topics.replies_to(message.topic() or "")
            rows.append(reply_row(installation, reply, one.reply_key, one.encoding, now, topic=topic, about=one.job_id))
        elif isinstance(one, UndecodableMessage):
            tenant = _tenant(installation, message)
            refusal = deleted.get(tenant) if tenant is not None else None
            if refusal is None:
                rows.append(_dead_letter(writing, message, str(one), now))
            if (key := _bytes(message.key())) is not None and len(key) <= _MAX_OTHER_BYTES:
                identity, undecodable = _undecodable(tenant, key, one)
                rows.append(_rejection(writing, message, identity, refusal or undecodable, now))
        else:
            rows.append(_rejection(writing, message, one.identity, one, now))
    return rows


def _trace(spans: "Spans", received: ReceivedRequest, reply: Reply, traceparent: str, began: datetime) -> None:
    origin = received.origin
    assert origin is not None  # noqa: S101 - it came by Kafka
    about: dict[str, str | int | bool] = {
        "messaging.destination.partition.id": str(origin.partition),
        "messaging.kafka.offset": origin.offset,
        "tidewheel.request.type": received.request.type,
        "tidewheel.request.status": reply.status.value,
        "tidewheel.tenant": received.tenant,
        "tidewheel.job.key": received.key or "",
        "tidewheel.run_id": reply.run_id or "",
    }
    spans.request(traceparent, origin.topic, began, about)


def _rejection(
    writing: Writing, message: Message, identity: RequestIdentity, refused: Refused, now: datetime
) -> OutboxRow:
    reply, installation = rejected_unread(identity, refused, origin_of(message)), writing.installation
    at_commit(writing.connection, partial(metrics.count, "requests", 1, reply.type, reply.status))
    topic = installation.topics.replies_to(message.topic() or "")
    return reply_row(
        installation, reply, _bytes(message.key()), encoding_of(_bytes(message.value()) or b""), now, topic=topic
    )


def _tenant(installation: Installation, message: Message) -> str | None:
    return installation.topics.tenant_of(message.topic() or "")


def _undecodable(tenant: str | None, key: bytes, error: UndecodableMessage) -> tuple[RequestIdentity, Refused]:
    """Return the identity and the error of the reply to a dead-lettered message."""
    try:
        name = key.decode()
    except UnicodeDecodeError:
        name = None  # the reply's own key has the bytes
    refused = Refused([FieldError("", str(error), "send it again as a request; the message is a dead letter now")])
    refused.code = "undecodable"
    return RequestIdentity(None, None, tenant, name, None), refused


def _apply_target_replies(
    writing: Writing, messages: Sequence[Message], failure: Exception | None, now: datetime
) -> list[OutboxRow]:
    rows: list[OutboxRow] = []
    batch: list[ReceivedRequest] = []
    for message in messages:
        if failure is not None:
            rows.append(_dead_letter(writing, message, _why(failure), now))
            continue
        try:
            _ensure_short(message)
            tokens = writing.installation.task_tokens
            request = read_target_reply(message.headers(), _bytes(message.value()), tokens)
            batch.append(ReceivedRequest(request, origin_of(message)))
        except UndecodableMessage as error:
            rows.append(_dead_letter(writing, message, str(error), now))
    for reply in apply_with(writing, batch):
        if reply.code is not None:
            problems = "; ".join(f"{error.path}: {error.problem}" for error in reply.errors)
            _LOG.info("a target's reply is ignored: %s", problems, extra={"run_id": reply.run_id})
    return rows


def _dead_letter(writing: Writing, message: Message, reason: str, now: datetime) -> OutboxRow:
    connection, installation = writing.connection, writing.installation
    at_commit(connection, partial(metrics.count, "undecodable_requests"))
    origin = origin_of(message)
    place = origin.topic, origin.partition, origin.offset
    key, value, tenant = _bytes(message.key()), _bytes(message.value()), _tenant(installation, message)
    if _why_too_long(message) is not None or len(value or b"") > _HEAD_BYTES:
        size, head = len(value or b""), (value or b"")[:_HEAD_BYTES]
        reason = (
            f"{reason}; the first {len(head)} of {size} bytes are stored, SHA-256 {sha256(value or b'').hexdigest()}"
        )
        dead = DeadMessage(*place, key and key[:_KEY_BYTES], head, reason, cut_from=size, tenant=tenant)
    else:
        # The token of a reply is a header; the headers of a request are not used.
        is_reply = origin.topic == installation.topics.target_replies
        pairs = _pairs(message.headers())
        headers = [(name, value) for name, value in pairs if is_reply and isinstance(value, bytes)]
        dead = DeadMessage(*place, key, value, reason, headers, tenant=tenant)
    return dead_letter_message(connection, installation, dead, now)


def _ensure_short(message: Message) -> None:
    if (why := _why_too_long(message)) is not None:
        raise UndecodableMessage(why)


def _why_too_long(message: Message) -> str | None:
    if (size := len(_bytes(message.value()) or b"")) > MAX_DOCUMENT_BYTES:
        return f"the message has {size} bytes; send at most {MAX_DOCUMENT_BYTES}"
    if (size := bytes_of([message]) - size) > _MAX_OTHER_BYTES:
        return f"the key and the headers have {size} bytes; send at most {_MAX_OTHER_BYTES}"
    return None


def _pairs(headers: Headers) -> Iterable[tuple[str, bytes | str | None]]:
    return headers.items() if isinstance(headers, Mapping) else headers or ()


def _bytes(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _refused_by_failure(installation: Installation, message: Message, failure: Exception) -> RequestRefused:
    """Return the refusal of a request that can be decoded but not applied."""
    document, _ = read_document(_bytes(message.value()) or b"")
    identity = request_identity(document)
    if (tenant := _tenant(installation, message)) is not None:
        identity = replace(identity, tenant=tenant)
    remedy = "split the request"
    if not isinstance(failure, RequestTimedOut):
        remedy = "correct the request, or report this error with the request_id"
    return RequestRefused((FieldError("", _why(failure), remedy),), identity)


def _why(failure: Exception) -> str:
    if isinstance(failure, RequestTimedOut):
        return "the request took longer than a transaction may, and was rolled back"
    # The primary message only: the detail of a PostgreSQL error quotes the row.
    problem = failure.diag.message_primary if isinstance(failure, psycopg.Error) else None
    return f"the request could not be applied: {problem or type(failure).__name__}"


def read_target_reply(headers: Headers, value: bytes | None, tokens: TaskTokens) -> RunComplete:
    """Return the `run.complete` request that a target's reply means; its value is a result or an error.

    Raises:
        UndecodableMessage: The message has no token, a foreign token, or a result that is not JSON.
    """
    texts = _texts(headers)
    token = texts.get(TASK_TOKEN_HEADER)
    if token is None:
        raise UndecodableMessage(f"the header {TASK_TOKEN_HEADER} is missing; send back the token of the message")
    if tokens.read(token) is None:
        raise UndecodableMessage(f"the header {TASK_TOKEN_HEADER} is not a task token of this installation")
    return _request({"type": "run.complete", "token": token, **_outcome(texts, value or b"")})


def _outcome(headers: Mapping[str, str], value: bytes) -> dict[str, object]:
    status = headers.get(STATUS_HEADER, "succeeded")
    if status == "failed":
        return _failure(headers.get(ERROR_TYPE_HEADER), value)
    if status != "succeeded":
        raise UndecodableMessage(f"the header {STATUS_HEADER} is {status[:64]!r}; write succeeded or failed")
    if not value:
        return {}
    if len(value) > MAX_RESULT_BYTES:
        # As with a handler: the effect is done, and a retry would repeat it only for its return value.
        problem = f"the result has {len(value)} bytes, more than {MAX_RESULT_BYTES}; send a reference instead"
        return {"status": "failed", "error_type": "ResultTooLarge", "error_message": problem, "permanent": True}
    result = read_value(value)
    if isinstance(result, UnreadableValue):
        raise UndecodableMessage(f"the result cannot be read: {result.problem}")
    return {"result": result}


def _failure(error_type: str | None, value: bytes) -> dict[str, object]:
    text = value[: 4 * MAX_ERROR_CHARACTERS].decode("utf-8", "replace").translate(_BLANK)
    failure: dict[str, object] = {"status": "failed", "error_message": text[:MAX_ERROR_CHARACTERS]}
    return failure if error_type is None else failure | {"error_type": error_type}


def _request(document: Mapping[str, object]) -> RunComplete:
    try:
        request = parse_request(document)
    except RequestRefused as refused:
        raise UndecodableMessage(str(refused)) from refused
    assert isinstance(request, RunComplete)  # noqa: S101 - by its type
    return request


def _texts(headers: Headers) -> dict[str, str]:
    return {
        name.lower(): value if isinstance(value, str) else value.decode("utf-8", "replace")
        for name, value in _pairs(headers)
        if value is not None
    }
