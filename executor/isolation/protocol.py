"""The protocol between an executor and its worker processes: frames over pipes.

A frame has a head, which is JSON and names its kind, and parts, which are bytes or missing. Both sides are of the same
release, so the protocol has no versions.
"""

import json
import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import cast
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

    To the worker: setup, attempt, cancel, previous runs, parents, saved, added. From the worker: ready, unready,
    outcome, heartbeat, request for previous runs, for parents, for a save, for runs to add.
    """

    SETUP = "setup"
    ATTEMPT = "attempt"
    CANCEL = "cancel"
    PREVIOUS = "previous"
    READY = "ready"
    UNREADY = "unready"
    OUTCOME = "outcome"
    HEARTBEAT = "heartbeat"
    READ_PREVIOUS = "read_previous"
    PARENTS = "parents"
    READ_PARENTS = "read_parents"
    SAVE = "save"
    SAVED = "saved"
    ADD_RUNS = "add_runs"
    ADDED = "added"


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
                message = f"a frame of {end} bytes is too long"
                raise ProtocolError(message)
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


def previous_frame(request: Frame, read: Callable[[], Previous]) -> Frame:
    """Return the reply to a request for previous runs: the runs, or the error of reading them."""
    attempt = attempt_head(*attempt_key(request))
    try:
        found = read()
    except Unavailable as error:
        return Frame(Kind.PREVIOUS, {**attempt, "error": str(error)}, [None])
    head = {**attempt, "at": _text(found.scheduled_at), "result_at": _text(found.result_at)}
    return Frame(Kind.PREVIOUS, head, [to_json(found.result)])


def previous_of(frame: Frame) -> Previous:
    """Return the previous runs in a frame."""
    if "error" in frame.head:
        raise Unavailable(str(frame.head["error"]))
    result = json.loads(frame.parts[0] or b"null")
    return Previous(_instant(frame.head["at"]), result, _instant(frame.head["result_at"]))


def parents_frame(request: Frame, read: Callable[[str | None], Mapping[str, Parent]]) -> Frame:
    """Return the reply to a request for the parents' runs: the runs, or the error of reading them."""
    attempt = attempt_head(*attempt_key(request))
    try:
        found = read(cast("str | None", request.head["key"]))
    except Unavailable as error:
        return Frame(Kind.PARENTS, {**attempt, "error": str(error)}, [None])
    rows = [
        (key, one.run_id, one.status, None if one.left_out_bytes else one.result, one.expired, one.left_out_bytes)
        for key, one in found.items()
    ]
    return Frame(Kind.PARENTS, attempt, [to_json(rows)])


def parents_of(frame: Frame) -> dict[str, Parent]:
    """Return the parents' runs in a frame."""
    if "error" in frame.head:
        raise Unavailable(str(frame.head["error"]))
    return {
        key: Parent(None if run is None else UUID(run), status, result, expired=expired, left_out_bytes=left_out)
        for key, run, status, result, expired, left_out in json.loads(frame.parts[0] or b"[]")
    }


def saved_frame(request: Frame, wait_saved: Callable[[], None]) -> Frame:
    """Return the reply to a request for a save: it was saved, or the error of waiting for it."""
    attempt = attempt_head(*attempt_key(request))
    try:
        wait_saved()
    except AttemptOver as over:
        return Frame(Kind.SAVED, {**attempt, "over": str(over)})
    return Frame(Kind.SAVED, attempt)


def verify_saved(frame: Frame) -> None:
    """Raise the error of a save."""
    if "over" in frame.head:
        raise AttemptOver(str(frame.head["over"]))


def added_frame(request: Frame, add: Callable[[bytes], bool]) -> Frame:
    """Return the reply to a request to add runs: the result, or its error."""
    attempt = attempt_head(*attempt_key(request))
    try:
        return Frame(Kind.ADDED, {**attempt, "added": add(request.parts[0] or b"")})
    except AttemptOver as over:
        return Frame(Kind.ADDED, {**attempt, "over": str(over)})
    except Unavailable as error:
        return Frame(Kind.ADDED, {**attempt, "error": str(error)})
    except InvalidInput as refused:
        errors = [(one.path, one.problem, one.remedy) for one in refused.errors]
        return Frame(Kind.ADDED, {**attempt, "refused": errors})


def added_of(frame: Frame) -> bool:
    """Return the result of adding runs, or raise its error."""
    head = frame.head
    if "over" in head:
        raise AttemptOver(str(head["over"]))
    if "error" in head:
        raise Unavailable(str(head["error"]))
    if "refused" in head:
        raise InvalidInput([FieldError(*error) for error in cast("list[tuple[str, str, str]]", head["refused"])])
    return bool(head["added"])


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _instant(text: object) -> datetime | None:
    return None if text is None else datetime.fromisoformat(str(text))
