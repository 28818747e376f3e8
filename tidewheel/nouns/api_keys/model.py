"""Records of API keys: rows of queries, results of the client, JSON of the doors."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import Field

from tidewheel.api_keys import Scope

ALL_QUEUES = "*"


@dataclass(frozen=True, slots=True)
class ApiKeySummary:
    """A key of the HTTP API."""

    key_id: Annotated[str, Field(description="Its id, the part of the key after `tw_`.")]
    name: Annotated[str, Field(description="Its name, which the audit log shows.")]
    tenant: Annotated[str, Field(description="Its tenant; `*` for all.")]
    scopes: Annotated[tuple[Scope, ...], Field(description="Its rights.")]
    rate: Annotated[float | None, Field(description="Its requests a second; null for the setting of the process.")]
    created_at: Annotated[datetime, Field(description="When it was created.")]
    expires_at: Annotated[datetime | None, Field(description="When it expires.")]
    revoked_at: Annotated[datetime | None, Field(description="When it was revoked.")]
    last_used_at: Annotated[datetime | None, Field(description="Its last use, which is recorded once a minute.")]
    queues: Annotated[
        Sequence[str] | None,
        Field(description="With the scope execute the queues of its executors, `*` for all; null without."),
    ] = None

    def __post_init__(self) -> None:
        """Take the scopes as the database has them; a key with queues has `execute`."""
        scopes = (*map(Scope, self.scopes), *((Scope.EXECUTE,) if self.queues else ()))
        object.__setattr__(self, "scopes", tuple(dict.fromkeys(scopes)))


@dataclass(frozen=True, slots=True)
class NewApiKey:
    """A key that was created."""

    key: Annotated[str, Field(description="The whole key, which is not stored and is shown once.")]
    summary: Annotated[ApiKeySummary, Field(description="What is stored of it.")]


@dataclass(frozen=True, slots=True)
class RevokedKey:
    """Result of a revocation: `unchanged` if the key was revoked before."""

    key_id: str
    unchanged: bool
