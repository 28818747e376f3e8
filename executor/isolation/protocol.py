"""The protocol between an executor and its worker processes: frames over pipes.

A frame has a head, which is JSON and names its kind, and parts, which are bytes or missing. Both sides are of the same
release, so the protocol has no versions.
"""

import json
import struct
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, cast
from uuid import UUID

from pydantic_core import to_json

from tidewheel.errors import AttemptOver, FieldError, InvalidInput, Unavailable
from tidewheel.executor.context import Context, Flag, logger_of
from tidewheel.executor.context_parts import HandlerChannel, Parent, Previous
from tidewheel.executor.outcome import Outcome, error_text, trace_text
from tidewheel.runs import AttemptOutcome

_SIZES = struct.Struct("!II")
_MAX_BYTES = 16 * 1024 * 1024  # a frame holds a payload or a checkpoint at most; a longer one is a protocol error
_NO_PART = -1


class Kind(StrEnum):
    """Kinds of frames.

    To the worker: setup, attempt, cancel, reply. From it: ready, unready, outcome, heartbeat, next_in, four requests.
    """

    SETUP = "setup"
    ATTEMPT = "attempt"
    CANCEL = "cancel"
    REPLY = "reply"
    READY = "ready"
    UNREADY = "unready"
    OUTCOME = "outcome"
    HEARTBEAT = "heartbeat"
    NEXT_IN = "next_in"
    READ_PREVIOUS = "read_previous"
    READ_PARENTS = "read_parents"
    SAVE = "save"
    ADD_RUNS = "add_runs"


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of the protocol."""

    kind: Kind
    head: Mapping[str, object]
    parts: Sequence[bytes | None] = ()


class ProtocolError(Exception):
    """Bytes that are not a frame: a handler has written to the pipe."""


def encode_frame(frame: Frame) -> bytes:
    """Return a frame as bytes."""
    sizes = [_NO_PART if part is None else len(part) for part in frame.parts]
    head = json.dumps({**frame.head, "kind": frame.kind, "parts": sizes}).encode()
    body = b"".join(part for part in frame.parts if part is not None)
    return _SIZES.pack(len(head), len(body)) + head + body


class FrameReader:
    """Decodes frames from bytes that arrive in any portions."""

    def __init__(self) -> None:
        self._read = bytearray()

    def feed(self, data: bytes) -> Generator[Frame]:
        """Add bytes; yield the frames that are complete."""
        self._read += data
        while len(self._read) >= _SIZES.size:
            head_size, body_size = _SIZES.unpack_from(self._read)
            end = _SIZES.size + head_size + body_size
            if end > _MAX_BYTES:
                raise ProtocolError(f"a frame of {end} bytes is too long")
            if len(self._read) < end:
                return
            taken = bytes(self._read[_SIZES.size : end])
            del self._read[:end]
            yield _decode_frame(taken[:head_size], taken[head_size:])


def _decode_frame(head_text: bytes, body: bytes) -> Frame:
    try:
        head = cast("dict[str, object]", json.loads(head_text))
        kind, sizes = Kind(str(head.pop("kind"))), cast("list[int]", head.pop("parts"))
    except (ValueError, KeyError, AttributeError) as error:
        raise ProtocolError(str(error)) from error
    parts: list[bytes | None] = []
    for size in sizes:
        parts.append(None if size == _NO_PART else body[:size])
        body = body[max(size, 0) :]
    return Frame(kind, head, parts)


def attempt_head(run_id: object, attempt: object) -> dict[str, object]:
    """Return the part of a head that names the attempt: leftover threads of an earlier one may write too."""
    return {"run_id": str(run_id), "attempt": attempt}


def attempt_key(frame: Frame) -> tuple[object, object]:
    """Return the run id and the attempt of a frame."""
    return frame.head["run_id"], frame.head["attempt"]


def outcome_frame(outcome: Outcome, *, spent: bool) -> Frame:
    """Return the frame of an attempt's end; `spent` is True if the process should not be used again."""
    head = {
        "outcome": outcome.kind,
        "error_type": outcome.error_type,
        "error_message": outcome.error_message,
        "trace": outcome.trace,
        "permanent": outcome.permanent,
        "retry_after": None if outcome.retry_after is None else outcome.retry_after.total_seconds(),
        "snooze": outcome.snooze.total_seconds(),
        "not_started": outcome.not_started,
        "completes": outcome.completes,
        "spent": spent,
    }
    return Frame(Kind.OUTCOME, head, [outcome.result])


def outcome_of(frame: Frame) -> Outcome:
    """Return the outcome in a frame; its worker does not know what to redact, and cuts no text before."""
    head = frame.head
    message, trace = cast("str | None", head["error_message"]), cast("str | None", head["trace"])
    after = cast("float | None", head["retry_after"])
    return Outcome(
        AttemptOutcome(str(head["outcome"])),
        result=frame.parts[0],
        error_type=cast("str | None", head["error_type"]),
        error_message=None if message is None else error_text(message),
        trace=None if trace is None else trace_text(trace),
        permanent=bool(head["permanent"]),
        retry_after=None if after is None else timedelta(seconds=after),
        snooze=timedelta(seconds=cast("float", head["snooze"])),
        not_started=bool(head["not_started"]),
        completes=bool(head["completes"]),
    )


def context_of(frame: Frame, cancelled: Flag, channel: HandlerChannel) -> Context:
    """Return the context in an attempt's frame, with the worker's own flag and channel."""
    head = frame.head
    run_id, attempt, job_key = UUID(str(head["run_id"])), cast("int", head["attempt"]), str(head["job_key"])
    return Context(
        run_id=run_id,
        attempt=attempt,
        job_key=job_key,
        tenant=str(head["tenant"]),
        scheduled_at=datetime.fromisoformat(str(head["scheduled_at"])),
        deadline_seconds=cast("float", head["deadline_seconds"]),
        labels=cast("dict[str, str]", head["labels"]),
        idempotency_key=str(run_id),
        traceparent=cast("str | None", head["traceparent"]),
        logger=logger_of(str(run_id), attempt, job_key),
        _cancelled=cancelled,
        _channel=channel,
        _checkpoint=frame.parts[1],
    )


def reply_to(request: Frame, channel: HandlerChannel) -> Frame:
    """Do what a worker requests, and return the reply: the result, or the error."""
    head = attempt_head(*attempt_key(request))
    try:
        return Frame(Kind.REPLY, head, [to_json(_serve(request, channel))])
    except AttemptOver as over:
        return Frame(Kind.REPLY, {**head, "over": str(over)})
    except Unavailable as error:
        return Frame(Kind.REPLY, {**head, "error": str(error)})
    except InvalidInput as refused:
        errors = [(one.path, one.problem, one.remedy) for one in refused.errors]
        return Frame(Kind.REPLY, {**head, "refused": errors})


def reply_too_late(request: Frame) -> Frame:
    """Return the reply to a leftover thread of an attempt that has ended."""
    error = "over" if request.kind is Kind.SAVE else "error"
    return Frame(Kind.REPLY, {**attempt_head(*attempt_key(request)), error: "the requesting attempt is over"})


def result_of(reply: Frame) -> Any:  # noqa: ANN401 - of the request's kind
    """Return the result in a reply as plain values, or raise its error."""
    head = reply.head
    if "over" in head:
        raise AttemptOver(str(head["over"]))
    if "error" in head:
        raise Unavailable(str(head["error"]))
    if "refused" in head:
        raise InvalidInput([FieldError(*error) for error in cast("list[tuple[str, str, str]]", head["refused"])])
    return json.loads(reply.parts[0] or b"null")


def previous_of(reply: Frame) -> Previous:
    """Return the previous runs in a reply."""
    at, result, result_at = result_of(reply)
    return Previous(_instant(at), result, _instant(result_at))


def parents_of(reply: Frame) -> dict[str, Parent]:
    """Return the parents' runs in a reply."""
    return {
        key: Parent(None if run is None else UUID(run), status, result, expired=expired, left_out_bytes=left_out)
        for key, run, status, result, expired, left_out in result_of(reply)
    }


def _serve(request: Frame, channel: HandlerChannel) -> object:
    if request.kind is Kind.SAVE:
        channel.wait_saved()
        return None
    if request.kind is Kind.ADD_RUNS:
        return channel.add_runs(request.parts[0] or b"")
    if request.kind is Kind.READ_PREVIOUS:
        found = channel.previous()
        return found.scheduled_at, found.result, found.result_at
    parents = channel.parents(cast("str | None", request.head["key"]))
    return [
        (key, one.run_id, one.status, None if one.left_out_bytes else one.result, one.expired, one.left_out_bytes)
        for key, one in parents.items()
    ]


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
