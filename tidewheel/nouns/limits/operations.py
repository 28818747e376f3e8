"""`client.limits`, `client.ordering_keys`: limits of concurrency keys, blocked ordering keys."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated
from uuid import UUID

from psycopg.rows import class_row
from pydantic import AfterValidator, Field

from tidewheel.api_keys import Scope
from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.connection import drop_none
from tidewheel.errors import refuse
from tidewheel.ids import RunId, order_id
from tidewheel.jobs.keys import MOST_AT_ONCE, MOST_BURST, KeyLimit, rate_words
from tidewheel.jobs.values import one_line
from tidewheel.nouns.operation import Noun, Page, Rows, checked, operation, read_page, reads
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn, read_row
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.held_back import skip_blocker
from tidewheel.transitions.key_limits import MOST_PREFIXES, KeyPattern, apply_limit, remove_limit, set_limit
from tidewheel.transitions.places import Limit

_SQL = Statements("tidewheel.nouns.limits")

COUNTED = 1000
"""The keys of a prefix that are looked at, and the waiting runs that are counted, for each line."""

_LIMITS = "/api/v1/limits"
_ORDERING_KEYS = "/api/v1/ordering-keys"
_APPLY_SECONDS = 5.0  # for the keys of a prefix; the scheduler applies the limit to the rest within a minute

_Text = Annotated[str, AfterValidator(one_line(255))]
_Pattern = Annotated[_Text, Field(description="The key, or the beginning of keys and an asterisk.")]
_OrderingKey = Annotated[_Text, Field(description="The ordering key.")]
_Places = Annotated[int, Field(ge=0, le=MOST_AT_ONCE)]
_Starts = Annotated[int, Field(ge=1, le=MOST_BURST)]


@dataclass(frozen=True, slots=True)
class BoundedKey:
    """A key or a prefix with its limit and its running and waiting runs."""

    key: Annotated[str, Field(description="The key, or the prefix with its asterisk.")]
    at_once: Annotated[int | None, Field(description="The places of each key; null if unlimited.")]
    rate: Annotated[
        str | None, Field(description="The maximum rate of starts of each key, such as `100/min`; null if unlimited.")
    ]
    burst: Annotated[int, Field(description="The starts at once after idle time.")]
    running: Annotated[int, Field(description="The number of places in use.")]
    waiting: Annotated[int, Field(description="The number of waiting runs, up to 1,000.")]

    def __post_init__(self) -> None:
        """Take the rate as the database has it, in microseconds between two starts."""
        if isinstance(self.rate, int):
            object.__setattr__(self, "rate", rate_words(self.rate))


@dataclass(frozen=True, slots=True)
class LimitSummary(BoundedKey):
    """The limit of a key or a prefix that an operator has set."""

    set_by: Annotated[str, Field(description="The actor and the door.")]
    set_at: Annotated[datetime, Field(description="When it was set.")]
    keys: Annotated[int, Field(description="The number of its keys in use, up to 1,000.")]


def list_limits(connection: Conn, tenant: str, *, after: _Text | None = None, limit: Rows = 50) -> Page[LimitSummary]:
    """List limits, each with its running and waiting runs."""
    require_tenant(connection, tenant)
    begin = after or ""
    columns: dict[str, object] = {
        "tenant": tenant, "is_prefix": begin.endswith("*"), "after": begin.removesuffix("*"), "counted": COUNTED,
    }  # fmt: skip
    return read_page(
        connection, class_row(LimitSummary), _SQL["list_key_limits"], columns, lambda last: last.key, limit=limit
    )


@dataclass(frozen=True, slots=True)
class KeyInUse(BoundedKey):
    """A key whose runs have been claimed within the last ten minutes, hold places, or wait."""

    next_at: Annotated[
        datetime | None,
        Field(description="When the scheduler next checks for a free place; null if a run's end frees the next place."),
    ]


def list_keys(
    connection: Conn,
    tenant: str,
    *,
    prefix: Annotated[_Text | None, Field(description="Only keys that begin with this text.")] = None,
    after: _Text | None = None,
    limit: Rows = 50,
) -> Page[KeyInUse]:
    """List keys in use, each with its limit and its running and waiting runs."""
    require_tenant(connection, tenant)
    first = prefix or ""
    columns: dict[str, object] = {
        "tenant": tenant, "after": after or "", "first": first, "last": first + "\U0010ffff", "counted": COUNTED,
    }  # fmt: skip
    return read_page(
        connection, class_row(KeyInUse), _SQL["list_keys_in_use"], columns, lambda last: last.key, limit=limit
    )


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A blocked key."""

    key: Annotated[str, Field(description="The ordering key.")]
    blocked_by: Annotated[UUID, Field(description="The run that failed.")]
    blocked_at: Annotated[datetime, Field(description="The time since which later runs wait.")]
    retried_by: Annotated[UUID | None, Field(description="The open retry of that run.")]
    waiting: Annotated[int, Field(description="The number of waiting runs, up to 1,000.")]


def list_blocked_keys(
    connection: Conn, tenant: str, *, after: tuple[datetime, _Text] | None = None, limit: Rows = 50
) -> Page[BlockedKey]:
    """List ordering keys blocked by a failed run, longest blocked first."""
    at, key = after or (None, None)
    columns: dict[str, object] = {
        "tenant": tenant, "after": at, "after_id": None if key is None else order_id(tenant, key), "counted": COUNTED,
    }  # fmt: skip
    return read_page(
        connection, class_row(BlockedKey), _SQL["list_blocked_keys"], columns, lambda last: (last.blocked_at, last.key),
        limit=limit, after=after,
    )  # fmt: skip


def read_blocked_key(connection: Conn, tenant: str, key: str) -> BlockedKey | None:
    """Return a key if it is blocked."""
    columns: dict[str, object] = {"key_id": order_id(tenant, key), "counted": COUNTED}
    return read_row(connection, class_row(BlockedKey), _SQL["read_blocked_key"], columns)


@dataclass(frozen=True, slots=True)
class ChangedLimit:
    """The result of a change of a limit."""

    unchanged: Annotated[bool, Field(description="True if there was nothing to remove.")]
    started: Annotated[int, Field(description="The number of waiting runs that got a place.")]
    complete: Annotated[
        bool,
        Field(
            description="False if the scheduler applies the change to more runs within a minute or at their next claim."
        ),
    ]


@dataclass(frozen=True, slots=True)
class UnblockedKey:
    """The result of unblocking a key."""

    run_id: Annotated[RunId, Field(description="The retry, or the failed run if it was skipped.")]
    skipped: Annotated[bool, Field(description="True if the next run starts without a retry.")]


class Limits(Noun):
    """Limits of concurrency keys."""

    @operation(
        f"POST {_LIMITS}", "set_limit", scope=Scope.OPERATE, sent={"key": "api/*", "at_once": 3, "rate": "100/min"}
    )
    def set(
        self,
        key: _Pattern,
        *,
        at_once: Annotated[
            _Places | None,
            Field(description="The maximum number of active runs; unlimited if only a rate is given."),
        ] = None,
        rate: Annotated[_Text | None, Field(description="The maximum rate of starts, such as `100/min`.")] = None,
        burst: Annotated[_Starts | None, Field(description="The number of starts at once after idle time.")] = None,
    ) -> ChangedLimit:
        """Set the limit of a key, or of each key with a prefix; it overrides the jobs' own limits.

        The limit of a key overrides that of a prefix, and a longer prefix overrides a shorter one. A raised limit
        starts waiting runs at once. A lowered limit does not end runs: their places become free as they end.
        """
        wanted = checked(KeyLimit, drop_none({"key": key, "at_once": at_once, "rate": rate, "burst": burst}))
        limit = Limit(wanted.places if wanted.at_once is not None else None, wanted.every_us, wanted.burst or 1)

        def change(connection: Conn, pattern: KeyPattern) -> bool:
            if not set_limit(connection, pattern, limit, self._call.actor.words):
                remedy = "remove one, or use fewer and shorter prefixes"
                refuse("key", f"the tenant already has limits of {MOST_PREFIXES} prefixes", remedy)
            return True

        return self._change(key, "limit.set", change)

    @operation(f"POST {_LIMITS}:remove", "remove_limit", scope=Scope.OPERATE, sent={"key": "api/*"})
    def remove(self, key: _Pattern) -> ChangedLimit:
        """Remove a limit; the next shorter prefix, or the jobs' own limits, apply again."""
        return self._change(key, "limit.remove", remove_limit)

    list = operation(f"GET {_LIMITS}", "list_limits", scope=Scope.READ)(reads(list_limits))
    keys = operation(f"GET {_LIMITS}/keys", "list_keys_in_use", scope=Scope.READ)(reads(list_keys))

    def _change(self, key: str, action: str, change: Callable[[Conn, KeyPattern], bool]) -> ChangedLimit:
        own = self._call
        pattern = KeyPattern.of(own.tenant, key)

        def work(connection: Conn) -> tuple[bool, int, str | None]:
            require_tenant(connection, own.tenant)
            if not change(connection, pattern):
                return False, 0, None
            own.record(connection, action, f"limit/{pattern}")
            started, after = apply_limit(connection, own.installation, pattern)
            return True, started, after

        changed, started, after = own.write(work)
        until = monotonic_seconds() + _APPLY_SECONDS
        while after is not None and monotonic_seconds() < until:
            step = own.write(partial(apply_limit, installation=own.installation, pattern=pattern, after=after))
            started, after = started + step.promoted, step.after
        if started:
            own.notify(Channel.OUTBOX)
        return ChangedLimit(not changed, started, after is None)


class OrderingKeys(Noun):
    """Ordering keys."""

    blocked = operation(f"GET {_ORDERING_KEYS}", "list_blocked_keys", scope=Scope.READ)(reads(list_blocked_keys))

    @operation(
        f"POST {_ORDERING_KEYS}:unblock",
        "unblock_key",
        scope=Scope.OPERATE,
        python_only=("request_id",),
        sent={"key": "acme"},
    )
    def unblock(
        self,
        key: _OrderingKey,
        *,
        skip: Annotated[
            bool, Field(description="True to let the next run start without a retry of the failed run.")
        ] = False,
        request_id: str | None = None,
    ) -> UnblockedKey:
        """Retry the failed run of an ordering key; its success lets the next run start."""
        own = self._call
        if skip:
            if request_id is not None:
                refuse("request_id", "a skip does not create a run", "leave it out")
            # Not twice: a repeat after a lost COMMIT would skip the failure of the next run.
            skipped = own.write(partial(self._skip, key=key), once=True)
            own.notify(Channel.OUTBOX)
            return UnblockedKey(RunId(skipped), skipped=True)
        with own.transaction() as connection:
            found = read_blocked_key(connection, own.tenant, key)
        if found is None:
            remedy = "`tidewheel admin ordering-key list` lists blocked keys"
            refuse("key", f"the ordering key {key!r} is not blocked", remedy)
        if found.retried_by is not None:
            refuse("key", f"run {found.retried_by} retries the failed run", "wait until it ends")
        reply = own.request({"type": "run.retry", "run_id": str(found.blocked_by)}, request_id)
        return UnblockedKey(RunId(UUID(reply.run_id)), skipped=False)

    def _skip(self, connection: Conn, key: str) -> UUID:
        blocker = skip_blocker(connection, self._call.installation, self._call.tenant, key)
        self._call.record(connection, "ordering_key.skip", f"ordering_key/{key}")
        return blocker
