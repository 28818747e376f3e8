"""Records of the audit log: rows of queries, results of the client, JSON of the doors."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, TypedDict

from pydantic import AfterValidator, Field

from tidewheel.audit import MAX_OBJECT
from tidewheel.jobs.values import Instant, one_line
from tidewheel.nouns.operation import Place

_Text = Annotated[str, AfterValidator(one_line(255))]
_Object = Annotated[str, AfterValidator(one_line(MAX_OBJECT))]
_Door = Literal["rest", "kafka", "cli", "client", "console"]


class AuditFilter(TypedDict, total=False):
    """Filter of the audit log, whose entries match all of its fields."""

    since: Annotated[Instant | None, Field(description="Only entries of this instant or later.")]
    until: Annotated[Instant | None, Field(description="Only entries before this instant.")]
    actor: Annotated[_Text | None, Field(description="Only those of this key, user, message or named person.")]
    object: Annotated[_Object | None, Field(description="Only those of this object, such as job/nightly.")]
    action: Annotated[_Text | None, Field(description="Only this action, such as job.submit.")]
    door: Annotated[_Door | None, Field(description="Only by this door.")]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change or an operation, or its refusal."""

    id: int
    at: Annotated[datetime, Field(description="When it was written, by the database's clock.")]
    tenant: Annotated[str, Field(description="Its tenant; `*` for the whole installation.")]
    door: Annotated[str, Field(description="The way by which it came: rest, kafka, cli, client or console.")]
    actor_kind: Annotated[str, Field(description="key, local, user, message, role or system.")]
    actor: Annotated[str, Field(description="The name of the key, of the user, or the coordinates of the message.")]
    verified: Annotated[bool, Field(description="True if Tidewheel or PostgreSQL has verified the actor.")]
    named: Annotated[str | None, Field(description="The person that the sender has named; nothing verifies it.")]
    key_id: Annotated[str | None, Field(description="The API key.")]
    action: Annotated[str, Field(description="The type of the request.")]
    object: str
    request_id: str | None
    version_before: Annotated[int | None, Field(description="The job's version before.")]
    version_after: Annotated[int | None, Field(description="The job's version after.")]
    objects: Annotated[int, Field(description="The number of objects that a batch has changed.")]
    result: Annotated[str, Field(description="`accepted`, or the code of the refusal.")]
    reason: Annotated[str | None, Field(description="The reason that the request gave.")]


@dataclass(frozen=True, slots=True)
class AuditLogPage:
    """Entries of the audit log, the newest first. A page may be empty and have a cursor."""

    entries: Sequence[AuditEntry]
    next_cursor: Place | None
