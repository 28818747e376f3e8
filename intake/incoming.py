"""A request on its way through intake, whichever door it came by."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from tidewheel.errors import FieldError, Refused
from tidewheel.jobs.requests import JobSubmit, Request, RequestIdentity, RunCancel, RunRetry
from tidewheel.jobs.strict_json import canonical
from tidewheel.schemas import records

Encoding = Literal["json", "avro"]


@dataclass(frozen=True, slots=True)
class Incoming:
    """One request to be applied.

    Args:
        request: What is asked.
        origin: Where it was read, if on Kafka.
        encoding: How it was written; the reply is written likewise.
        reply_key: The key of its message.
    """

    request: Request
    origin: records.RequestOrigin | None = None
    encoding: Encoding = "json"
    reply_key: bytes | None = None

    @property
    def tenant(self) -> str:
        """Whose request it is."""
        return self.request.tenant

    @property
    def key(self) -> str | None:
        """The key of the job concerned; for a job submitted without one, what names it."""
        if isinstance(self.request, JobSubmit):
            return self.request.job.key or self.request.request_id or self._coordinates()
        return getattr(self.request, "key", None)

    @property
    def kind(self) -> records.RequestType:
        """The request's type as replies say it."""
        return records.RequestType(self.request.type.replace(".", "_"))

    def body_hash(self) -> bytes:
        """What tells a repeat from another request under the same request_id."""
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
    known: dict[str, object] = {
        "request_id": incoming.request.request_id,
        "type": incoming.kind,
        "tenant": incoming.tenant,
        "key": incoming.key,
        "run_id": incoming.request.run_id if isinstance(incoming.request, RunCancel | RunRetry) else None,
        "status": status,
        "unchanged": False,
        "errors": (),
        "origin": incoming.origin,
    }
    return records.Reply(**{**known, **facts})  # type: ignore[arg-type]  # names and types are the callers' literals


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str | int | float | bool | None) else str(value)
