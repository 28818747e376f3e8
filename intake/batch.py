"""What is made of a batch of messages: read, applied, answered, in the transaction that moves their offsets.

What cannot be read goes to the dead letters byte for byte, what is refused is answered; neither blocks what follows.
Target replies are ends told by token, and nobody waits for an answer to them: one that comes too late is dropped.

Replies of Kafka targets: the end of an attempt, told by a message that carries its task token.

The token lies in a header, so that the value is the result as it is, whatever writes it.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

import psycopg
from confluent_kafka import Message

from tidewheel.errors import FieldError, UndecodableMessage
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import Encoding, Incoming, rejected_unread, reply_row
from tidewheel.jobs.invalid import Misread
from tidewheel.jobs.parsing import RequestRefused, parse_request, request_identity
from tidewheel.jobs.requests import RunComplete, RunsCancel
from tidewheel.jobs.strict_json import read_value
from tidewheel.jobs.values import MAX_RESULT_BYTES
from tidewheel.outbox import OutboxRow, append
from tidewheel.postgres.session import Conn
from tidewheel.process.metrics import metrics
from tidewheel.schemas.codec import is_avro
from tidewheel.schemas.generated.records import RequestOrigin
from tidewheel.schemas.requests import read_document, read_request
from tidewheel.task_tokens import TASK_TOKEN_HEADER, read_task_token
from tidewheel.transitions.dead_letters import DeadRequest, bury_request
from tidewheel.transitions.installation import Installation

STATUS_HEADER = "tidewheel-status"
ERROR_TYPE_HEADER = "tidewheel-error-type"

_MESSAGE_CHARACTERS = 4096
_BLANK = {code: " " for code in (*range(32), 127) if chr(code) not in "\n\r\t"}  # what is no text in a request

Headers: TypeAlias = Sequence[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None] | None


def read_target_reply(headers: Headers, value: bytes | None, key: bytes) -> RunComplete:
    """Return the request that a reply means.

    Args:
        headers: Of the message: the token, and whether it is a failure.
        value: The result as JSON text, or none; of a failure what went wrong, as text.
        key: What this installation's tokens are signed with.

    Raises:
        UndecodableMessage: It is no reply to anything: no token, a foreign one, or a result that is no JSON.
    """
    given = _texts(headers)
    token = given.get(TASK_TOKEN_HEADER)
    if token is None:
        message = f"there is no header {TASK_TOKEN_HEADER}; send back the one that came with the message"
        raise UndecodableMessage(message)
    if read_task_token(key, token) is None:
        message = f"the header {TASK_TOKEN_HEADER} is no task token of this installation"
        raise UndecodableMessage(message)
    return _request({"type": "run.complete", "token": token, **_end(given, value or b"")})


def _end(given: Mapping[str, str], value: bytes) -> dict[str, object]:
    status = given.get(STATUS_HEADER, "succeeded")
    if status == "failed":
        return _failure(given.get(ERROR_TYPE_HEADER), value)
    if status != "succeeded":
        message = f"the header {STATUS_HEADER} says {status[:64]!r}; write succeeded or failed"
        raise UndecodableMessage(message)
    if not value:
        return {}
    if len(value) > MAX_RESULT_BYTES:
        # As with a handler: its effect is done, and a retry would repeat it for the sake of a return value.
        problem = f"the result has {len(value)} bytes, more than {MAX_RESULT_BYTES}; send a reference instead"
        return {"status": "failed", "error_type": "ResultTooLarge", "error_message": problem, "permanent": True}
    result = read_value(value)
    if isinstance(result, Misread):
        message = f"the result cannot be read: {result.problem}"
        raise UndecodableMessage(message)
    return {"result": result}


def _failure(error_type: str | None, value: bytes) -> dict[str, object]:
    text = value[: 4 * _MESSAGE_CHARACTERS].decode("utf-8", "replace").translate(_BLANK)
    said: dict[str, object] = {"status": "failed", "error_message": text[:_MESSAGE_CHARACTERS]}
    return said if error_type is None else said | {"error_type": error_type}


def _request(document: Mapping[str, object]) -> RunComplete:
    try:
        request = parse_request(document)
    except RequestRefused as refused:
        raise UndecodableMessage(str(refused)) from refused
    assert isinstance(request, RunComplete)  # noqa: S101 - by its type
    return request


def _texts(headers: Headers) -> dict[str, str]:
    """The headers as text; of one that is given twice, the last."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return {name.lower(): _text(value) for name, value in pairs if value is not None}


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


_LOG = logging.getLogger("tidewheel.intake")


class TooLong(Exception):
    """One request takes longer than the database allows a transaction."""


class Apart(Exception):
    """A message of a batch that has to be a transaction of its own; nothing was written.

    Args:
        messages: All of these.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        super().__init__("cancellations by filter are applied one by one")
        self.messages = messages


def take_in(
    connection: Conn, installation: Installation, messages: Sequence[Message], failure: Exception | None, now: datetime
) -> None:
    """Apply messages, in the caller's transaction.

    Args:
        connection: Inside a transaction.
        installation: Topics, shards, encoding.
        messages: Of one topic or both, in the order they are to be applied.
        failure: Why they are not to be applied but refused, where an earlier try has shown that.
        now: By the database's clock.

    Raises:
        Apart: One of several messages is a cancellation by filter, which lets no claim begin until its commit: roll
            back and apply each of those alone.
    """
    replies = [message for message in messages if message.topic() == installation.topics.target_replies]
    requests = [message for message in messages if message.topic() != installation.topics.target_replies]
    read = [(message, _read(message, failure)) for message in requests]
    apart = [message for message, one in read if isinstance(one, Incoming) and isinstance(one.request, RunsCancel)]
    if apart and len(messages) > 1:
        raise Apart(apart)
    rows = _take_requests(connection, installation, read, now) if requests else []
    rows += _take_target_replies(connection, installation, replies, failure, now) if replies else []
    append(connection, rows, shards=installation.shards)


def origin_of(message: Message) -> RequestOrigin:
    """Where a message was read."""
    return RequestOrigin(topic=message.topic() or "", partition=message.partition() or 0, offset=message.offset() or 0)


def _read(message: Message, failure: Exception | None) -> Incoming | UndecodableMessage | RequestRefused:
    """The request that a message carries, or why there is none to be applied."""
    value = _bytes(message.value()) or b""
    try:
        if failure is not None:
            return _failed_on_data(value, failure)
        request, encoding = read_request(value)
    except (UndecodableMessage, RequestRefused) as error:
        return error
    return Incoming(request, origin_of(message), encoding, _bytes(message.key()))


def _take_requests(
    connection: Conn,
    installation: Installation,
    read: Sequence[tuple[Message, Incoming | UndecodableMessage | RequestRefused]],
    now: datetime,
) -> list[OutboxRow]:
    replies = iter(apply_requests(connection, installation, [one for _, one in read if isinstance(one, Incoming)]))
    rows: list[OutboxRow] = []
    # In the order of the requests: who sends several about one job under one key has their answers in that order.
    for message, one in read:
        if isinstance(one, Incoming):
            reply = next(replies)
            rows.append(reply_row(installation, reply, one.reply_key, one.encoding, now, about=one.job_id))
        elif isinstance(one, UndecodableMessage):
            rows.append(_buried(connection, installation, message, str(one), now))
        else:
            reply = rejected_unread(one.identity, one, origin_of(message))
            metrics.count("requests", 1, reply.type, reply.status)
            rows.append(reply_row(installation, reply, _bytes(message.key()), _encoding(_bytes(message.value())), now))
    return rows


def _take_target_replies(
    connection: Conn, installation: Installation, messages: Sequence[Message], failure: Exception | None, now: datetime
) -> list[OutboxRow]:
    rows: list[OutboxRow] = []
    batch: list[Incoming] = []
    for message in messages:
        if failure is not None:
            rows.append(_buried(connection, installation, message, _why(failure), now))
            continue
        try:
            request = read_target_reply(message.headers(), _bytes(message.value()), installation.task_token_key)
            batch.append(Incoming(request, origin_of(message)))
        except UndecodableMessage as error:
            rows.append(_buried(connection, installation, message, str(error), now))
    for reply in apply_requests(connection, installation, batch):
        if reply.code is not None:
            said = "; ".join(f"{error.path}: {error.problem}" for error in reply.errors)
            _LOG.info("a target's reply changes nothing: %s", said, extra={"run_id": reply.run_id})
    return rows


def _buried(connection: Conn, installation: Installation, message: Message, reason: str, now: datetime) -> OutboxRow:
    metrics.count("undecodable_requests")
    origin = origin_of(message)
    key, value = _bytes(message.key()), _bytes(message.value())
    # A reply is nothing without its token; nobody reads the headers of a request.
    headers = _headers(message) if origin.topic == installation.topics.target_replies else ()
    dead = DeadRequest(origin.topic, origin.partition, origin.offset, key, value, reason, headers)
    return bury_request(connection, installation, dead, now)


def _headers(message: Message) -> list[tuple[str, bytes]]:
    given = message.headers() or ()
    pairs = given.items() if isinstance(given, Mapping) else given
    return [(name, value) for name, value in pairs if isinstance(value, bytes)]


def _bytes(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _encoding(value: bytes | None) -> Encoding:
    return "avro" if value and is_avro(value) else "json"


def _failed_on_data(value: bytes | None, failure: Exception) -> RequestRefused:
    """The rejection of a request that can be read but not written."""
    document, _ = read_document(value or b"")
    remedy = "ask for less in one request"
    if not isinstance(failure, TooLong):
        remedy = "correct the request, or report this with its request_id"
    return RequestRefused((FieldError("", _why(failure), remedy),), request_identity(document))


def _why(failure: Exception) -> str:
    if isinstance(failure, TooLong):
        return "it takes longer than a transaction may, and was undone"
    # PostgreSQL's own words in one line, without the row that it would quote beside them.
    said = failure.diag.message_primary if isinstance(failure, psycopg.Error) else None
    return f"it could not be applied: {said or type(failure).__name__}"
