"""A request on its way through intake, whichever door it came by.

Answers, on their way to the replies topic.
"""

from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from json.encoder import encode_basestring
from typing import Literal
from uuid import UUID

from tidewheel.errors import FieldError, Refused
from tidewheel.ids import JobId, bucket_of, job_id, shard_of
from tidewheel.jobs.parsing import RequestIdentity
from tidewheel.jobs.requests import JobSubmit, JobTrigger, Request, RunCancel, RunRetry
from tidewheel.jobs.spec import canonical_spec
from tidewheel.jobs.strict_json import canonical
from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import OutboxClass, OutboxRow, pack
from tidewheel.schemas.codec import encode, encode_json
from tidewheel.schemas.generated import records
from tidewheel.schemas.generated.records import Reply, ReplyStatus, RequestOrigin, RequestType
from tidewheel.transitions.installation import Installation

Encoding = Literal["json", "avro"]


@dataclass(slots=True, eq=False)
class Incoming:
    """One request to be applied.

    Attributes:
        request: What is asked.
        origin: Where it was read, if on Kafka.
        encoding: How it was written; the reply is written likewise.
        reply_key: The key of its message.
        tenant: Whose request it is.
        key: The key of the job concerned; for a job submitted without one, what names it.
    """

    request: Request
    origin: records.RequestOrigin | None = None
    encoding: Encoding = "json"
    reply_key: bytes | None = None
    tenant: str = field(init=False)
    key: str | None = field(init=False)
    _job_id: JobId | None = field(init=False, default=None)
    _spec_hash: bytes | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Look once at what is asked for again and again."""
        request = self.request
        self.tenant = request.tenant
        if isinstance(request, JobSubmit):
            self.key = request.job.key or request.request_id or self._coordinates()
        else:
            self.key = getattr(request, "key", None)

    @property
    def kind(self) -> records.RequestType:
        """The request's type as replies say it."""
        return _KINDS[self.request.type]

    @property
    def job_id(self) -> JobId:
        """The id of the job concerned."""
        if self._job_id is None:
            self._job_id = job_id(self.tenant, self.key or "")
        return self._job_id

    @property
    def spec_hash(self) -> bytes:
        """What tells a submitted spec from another, before defaults."""
        if self._spec_hash is None:
            request = self.request
            assert isinstance(request, JobSubmit)  # noqa: S101 - nothing else has a spec
            spec, known = request.job, request.known
            if known is None:
                self._spec_hash = sha256(canonical_spec(spec)).digest()
            else:
                self._spec_hash = known.pattern.spec_hash(known.timing, spec.key, spec.payload)
        return self._spec_hash

    def body_hash(self) -> bytes:
        """What tells a repeat from another request under the same request_id."""
        request = self.request
        asked = (request.type, request.tenant, request.traceparent)
        if isinstance(request, JobSubmit):
            body = _submit_body(*asked, request.if_version, request.job.paused)
            return sha256(body + self.spec_hash).digest()
        if isinstance(request, JobTrigger):
            times = (_text(request.delay), _text(request.run_at))
            carried = request.carried
            kind, content = (carried.content_type, carried.content) if carried else (None, b"")
            body = canonical([*asked, request.key, *times, request.labels, request.overlap, kind])
            return sha256(body + content).digest()
        return self.former_body_hash()

    def former_body_hash(self) -> bytes:
        """The same as releases before this one remember it."""
        document = self.request.model_dump(mode="python", exclude_unset=True, exclude={"request_id"})
        return sha256(canonical(_plain(document))).digest()

    def seed(self) -> bytes | None:
        """What names a triggered run: the request_id, or the message's coordinates; None where there is neither."""
        name = self.request.request_id or self._coordinates()
        return name.encode() if name else None

    def _coordinates(self) -> str | None:
        return f"{self.origin.topic}/{self.origin.partition}/{self.origin.offset}" if self.origin else None


def accepted(incoming: Incoming, **facts: object) -> records.Reply:
    """The answer to a request that was carried out."""
    return _reply(incoming, records.ReplyStatus.ACCEPTED, **facts)


def accepted_new(incoming: Incoming, job_id: str, next_run_at: datetime | None) -> records.Reply:
    """The answer to a submit that has made its job; written out, for the sake of those that come by the thousand."""
    return records.Reply(
        request_id=incoming.request.request_id,
        type=records.RequestType.JOB_SUBMIT,
        tenant=incoming.tenant,
        key=incoming.key,
        status=records.ReplyStatus.ACCEPTED,
        job_id=job_id,
        job_version=1,
        next_run_at=next_run_at,
        unchanged=False,
        errors=(),
        origin=incoming.origin,
    )


def rejected(incoming: Incoming, refused: Refused) -> records.Reply:
    """The answer to a request that was refused."""
    errors = tuple(reply_error(error) for error in refused.errors)
    return _reply(incoming, records.ReplyStatus.REJECTED, code=refused.code, errors=errors)


def rejected_unread(identity: RequestIdentity, refused: Refused, origin: records.RequestOrigin | None) -> records.Reply:
    """The answer to a request that could be read but not accepted as one."""
    kind = (
        records.RequestType.UNKNOWN if identity.type is None else records.RequestType(identity.type.replace(".", "_"))
    )
    return records.Reply(
        request_id=identity.request_id,
        type=kind,
        tenant=identity.tenant or "default",
        key=identity.key,
        run_id=identity.run_id,
        status=records.ReplyStatus.REJECTED,
        unchanged=False,
        code=refused.code,
        errors=tuple(reply_error(error) for error in refused.errors),
        origin=origin,
    )


def reply_error(error: FieldError) -> records.ReplyError:
    """A field's error as replies say it."""
    return records.ReplyError(path=error.path, problem=error.problem, remedy=error.remedy)


def _reply(incoming: Incoming, status: records.ReplyStatus, **facts: object) -> records.Reply:
    request = incoming.request
    known: dict[str, object] = {
        "request_id": request.request_id,
        "type": incoming.kind,
        "tenant": incoming.tenant,
        "key": incoming.key,
        "run_id": request.run_id if isinstance(request, RunCancel | RunRetry) else None,
        "status": status,
        "unchanged": False,
        "errors": (),
        "origin": incoming.origin,
    }
    return records.Reply(**(known | facts))  # type: ignore[arg-type]  # names and types are the callers' literals


_KINDS = {kind.replace("_", "."): kind for kind in records.RequestType}


@lru_cache(maxsize=1024)  # most submits say nothing but their spec
def _submit_body(*asked: str | int | None) -> bytes:
    return canonical(asked)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str | int | float | bool | None) else str(value)


_HEADERS = {
    "json": pack([("content-type", b"application/json")]),
    "avro": pack([("content-type", b"application/avro")]),
}


def reply_row(
    installation: Installation,
    reply: Reply,
    key: bytes | None,
    encoding: Encoding,
    now: datetime,
    *,
    about: UUID | None = None,
) -> OutboxRow:
    """The outbox row of an answer: under the request's own key, in the request's own encoding.

    Args:
        installation: Topics and shards.
        reply: The answer.
        key: The request's own.
        encoding: The request's own.
        now: The database's clock.
        about: The id of the job concerned, where it is known.
    """
    shard = shard_of(bucket_of(about or job_id(reply.tenant, reply.key or "")), installation.shards)
    value = _json(reply) if encoding == "json" else encode(reply)
    topic = installation.topics.replies
    return OutboxRow(shard, OutboxClass.EVENTS, topic, key, value, now, _HEADERS[encoding])


def _json(reply: Reply) -> bytes:
    """What `encode_json` returns; an acceptance is written in place, which takes a fifth of the time."""
    if reply.status is not ReplyStatus.ACCEPTED or reply.errors or reply.code is not None:
        return encode_json(reply)
    return (
        f'{{"request_id":{_text_replies(reply.request_id)},"type":"{_TYPES[reply.type]}","tenant":{_text_replies(reply.tenant)}'
        f',"key":{_text_replies(reply.key)},"status":"accepted","job_id":{_text_replies(reply.job_id)}'
        f',"job_version":{_number(reply.job_version)},"run_id":{_text_replies(reply.run_id)}'
        f',"run_status":{_text_replies(reply.run_status)},"next_run_at":{_instant(reply.next_run_at)}'
        f',"backfill_id":{_text_replies(reply.backfill_id)},"backfill_status":{_text_replies(reply.backfill_status)}'
        f',"occurrences":{_number(reply.occurrences)},"cancellation_id":{_number(reply.cancellation_id)}'
        f',"unchanged":{"true" if reply.unchanged else "false"},"code":null,"errors":[]'
        f',"origin":{_origin(reply.origin)}}}'
    ).encode()


def _text_replies(value: str | None) -> str:
    return "null" if value is None else encode_basestring(value)


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


@lru_cache(maxsize=4096)  # the requests of a batch share theirs
def _instant(value: datetime | None) -> str:
    return "null" if value is None else f'"{format_timestamp(value)}"'


def _origin(origin: RequestOrigin | None) -> str:
    if origin is None:
        return "null"
    return f'{{"topic":{_text_replies(origin.topic)},"partition":{origin.partition},"offset":{origin.offset}}}'


_TYPES = {kind: kind.value.replace("_", ".") for kind in RequestType}
