"""Records of freezes: rows of queries, results of the client, JSON of the doors."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from tidewheel.jobs.values import format_second

MAX_WAITING = 10_000
"""The runs that are counted for each freeze: more are shown as at least so many."""
_SCOPES = {"tenant": "the tenant", "fleet": "the fleet", "key_prefix": "keys that begin with"}


@dataclass(frozen=True, slots=True)
class FrozenScope:
    """The runs that match all of these fields."""

    tenant: Annotated[str | None, Field(description="The tenant; null for the fleet.")]
    queue: Annotated[str | None, Field(description="Its queue, if it has one.")]
    labels: Annotated[Mapping[str, str] | None, Field(description="The labels of its jobs, if it has any.")]
    key_prefix: Annotated[str | None, Field(description="The prefix of its jobs' keys, if it has one.")]

    def covers(self, other: "FrozenScope") -> bool:
        """Return True if it has all runs of another scope."""
        return (
            self.tenant in {None, other.tenant}
            and self.queue in {None, other.queue}
            and (self.labels or {}).items() <= (other.labels or {}).items()
            and (other.key_prefix or "").startswith(self.key_prefix or "")
        )

    def named(self) -> dict[str, Any]:
        """Return its fields as a request has them: a narrower scope than the tenant names no tenant."""
        given = {"queue": self.queue, "labels": dict(self.labels or {}), "key_prefix": self.key_prefix}
        narrow = {name: value for name, value in given.items() if value}
        scope = "fleet" if self.tenant is None else "tenant"
        return narrow if narrow and self.tenant is not None else {"scope": scope, **narrow}

    def narrow(self) -> str:
        """Return its parts below the tenant in words; empty without one.

        >>> FrozenScope("acme", "reports", {"team": "billing"}, "etl/").narrow()
        'queue reports, label team=billing, keys that begin with etl/'
        """
        parts = [f"queue={self.queue}"] if self.queue is not None else []
        parts += [f"label={name}={value}" for name, value in (self.labels or {}).items()]
        parts += [f"key_prefix={self.key_prefix}"] if self.key_prefix is not None else []
        return _in_words(parts)

    @property
    def scope(self) -> str:
        """The scope in words.

        >>> FrozenScope(None, "reports", None, None).scope
        'queue reports of the fleet'
        """
        owner = "the fleet" if self.tenant is None else f"tenant {self.tenant}"
        narrow = self.narrow()
        return f"{narrow} of {owner}" if narrow else owner


@dataclass(frozen=True, slots=True)
class Freeze(FrozenScope):
    """A freeze in force. It covers the runs that match all its fields."""

    by: Annotated[str | None, Field(description="The name in the request, unverified.")]
    reason: Annotated[str | None, Field(description="The reason in the request.")]
    since: Annotated[datetime, Field(description="When it was written.")]

    @property
    def words(self) -> str:
        """The scope, the time, the operator and the reason, as part of a sentence."""
        by = f" by {self.by}" if self.by else ""
        why = f": {self.reason}" if self.reason else ""
        return f"frozen since {format_second(self.since)}{by} ({self.scope}){why}"

    @property
    def thaw_command(self) -> str:
        """The command that ends it.

        >>> from datetime import UTC
        >>> Freeze("acme", None, {"team": "a b"}, None, None, None, datetime(2026, 11, 22, tzinfo=UTC)).thaw_command
        "tidewheel thaw --tenant acme --label 'team=a b'"
        """
        words = ["--fleet"] if self.tenant is None else ["--tenant", self.tenant]
        words += ["--queue", self.queue] if self.queue is not None else []
        for name, value in (self.labels or {}).items():
            words += ["--label", f"{name}={value}"]
        words += ["--key-prefix", self.key_prefix] if self.key_prefix is not None else []
        return shlex.join(["tidewheel", "thaw", *words, *([] if self.tenant is None or self.narrow() else ["--all"])])


class FreezeChange(NamedTuple):
    """A freeze or a thaw as the audit log has it; a scope is such as `freeze/queue=reports`."""

    at: datetime
    begins: bool
    object: str
    by: str

    @property
    def scope(self) -> str:
        """The scope in words.

        >>> FreezeChange(datetime.min, True, "freeze/queue=reports,key_prefix=etl/", "ops").scope
        'queue reports, keys that begin with etl/'
        """
        return _in_words(self._parts)

    @property
    def _parts(self) -> list[str]:
        return self.object.partition("/")[2].split(",")

    def names(self, *, queue: str, key: str | None, labels: Mapping[str, str]) -> bool:
        """Return True if its scope has a run of this queue, of a job with this key and these labels."""
        return all(
            part in {"tenant", "fleet", f"queue={queue}"}
            or part in {f"label={name}={value}" for name, value in labels.items()}
            or (part.startswith("key_prefix=") and (key or "").startswith(part.partition("=")[2]))
            for part in self._parts
        )


@dataclass(frozen=True, slots=True)
class FreezeSummary:
    """A freeze in force, with its waiting runs and held jobs."""

    freeze: Annotated[Freeze, Field(description="The freeze.")]
    jobs: Annotated[int | None, Field(description="The number of its jobs, if it has labels or a key prefix.")]
    open_runs: Annotated[
        int,
        Field(
            description="The number of its runs that would start without any freeze, now or later: at most"
            " `MAX_WAITING`, of the first 20,000 open runs."
        ),
    ]
    waiting: Annotated[int, Field(description="The number of these runs that are due now.")]
    held: Annotated[int, Field(description="The number of jobs whose timer it holds, at most `MAX_WAITING`.")]

    @property
    def is_capped(self) -> bool:
        """True if there may be more runs than `open_runs`."""
        return self.open_runs >= MAX_WAITING


class Freezable(NamedTuple):
    """The open runs that a freeze would concern."""

    open_runs: int  # those that it would keep from starting
    waiting: int  # those that are due now
    under_way: int  # those that would go on
    at_least: bool  # there may be more of each


def _in_words(parts: Iterable[str]) -> str:
    named = (part.partition("=") for part in parts)
    return ", ".join(f"{_SCOPES.get(name, name)} {value}".rstrip() for name, _, value in named)
