"""`client.limits` and `client.ordering_keys`: limits of concurrency keys, and blocked ordering keys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.arguments import as_int
from tidewheel.control.client.connection import Connection, drop_none
from tidewheel.control.reads.limits import (
    BlockedKey,
    KeyInUse,
    LimitSummary,
    list_blocked_keys,
    list_keys,
    list_limits,
    read_blocked_key,
)
from tidewheel.control.reads.tenants import require_tenant
from tidewheel.errors import InvalidInput, refuse
from tidewheel.ids import RunId
from tidewheel.jobs.concurrency import KeyLimit
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.validation import validate
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn
from tidewheel.transitions.key_limits import MOST_PREFIXES, KeyPattern, apply_limit, remove_limit, set_limit
from tidewheel.transitions.order_keys import skip_blocker
from tidewheel.transitions.places import Limit

_APPLY_SECONDS = 5.0  # for the keys of a prefix; the scheduler applies the limit to the rest within a minute


@dataclass(frozen=True, slots=True)
class ChangedLimit:
    """The result of a change of a limit.

    Args:
        unchanged: True if there was nothing to remove.
        started: The number of waiting runs that got a place.
        complete: False if the scheduler applies it to further waiting runs, within a minute or with their next claim.
    """

    unchanged: bool
    started: int
    complete: bool


class Limits:
    """Reads and changes of limits of concurrency keys."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def set(
        self, key: str, *, at_once: int | None = None, rate: str | None = None, burst: int | None = None
    ) -> ChangedLimit:
        """Set the limit of a key, or of each key that begins so; it replaces those of jobs from now on.

        A raised limit starts waiting runs at once. A lower one ends no run: places drain.

        Args:
            key: The key, or the beginning of keys and an asterisk. The key itself goes before a prefix, and the longest
                prefix before shorter ones.
            at_once: The number of its runs that are active at once; no bound if there is a rate only.
            rate: The number of its attempts that start in a time, such as `100/min`.
            burst: The number of starts at once after a rest.
        """
        given = drop_none({"key": key, "at_once": at_once, "rate": rate, "burst": burst})
        try:
            wanted = validate(KeyLimit, given)
        except InvalidValue as error:
            raise InvalidInput(error.errors) from error
        limit = Limit(wanted.places if wanted.at_once is not None else None, wanted.every_us, wanted.burst or 1)

        def change(connection: Conn, pattern: KeyPattern) -> bool:
            if not set_limit(connection, pattern, limit, self._connection.actor.words):
                remedy = "remove one, or use fewer and shorter prefixes"
                refuse("key", f"the tenant has limits of {MOST_PREFIXES} prefixes already", remedy)
            return True

        return self._change(key, "limit.set", change)

    def remove(self, key: str) -> ChangedLimit:
        """Remove the limit of a key or a prefix; that of a shorter prefix or of the jobs applies from now on."""
        return self._change(key, "limit.remove", remove_limit)

    def list(self, *, after: str | None = None, limit: int = 50) -> Sequence[LimitSummary]:
        """List limits: those of keys by key, then those of prefixes; each with what runs and waits."""
        with self._connection.snapshot() as connection:
            return list_limits(connection, self._connection.tenant, after=after, limit=as_int(limit, "limit"))

    def keys(self, *, prefix: str = "", after: str = "", limit: int = 50) -> Sequence[KeyInUse]:
        """List keys in use by key, each with its limit in force, and what runs and waits."""
        with self._connection.snapshot() as connection:
            return list_keys(
                connection, self._connection.tenant, prefix=prefix, after=after, limit=as_int(limit, "limit")
            )

    def _change(self, key: str, action: str, change: Callable[[Conn, KeyPattern], bool]) -> ChangedLimit:
        own = self._connection
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


@dataclass(frozen=True, slots=True)
class UnblockedKey:
    """The result of unblocking a key.

    Args:
        run_id: The retry; the run that had failed if it was skipped.
        skipped: True if the next run starts without a retry.
    """

    run_id: RunId
    skipped: bool


class OrderingKeys:
    """List and unblock keys."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def blocked(self, *, after: tuple[datetime, str] | None = None, limit: int = 50) -> Sequence[BlockedKey]:
        """Return the blocked keys, the longest first, after the `blocked_at` and `key` of the page before."""
        with self._connection.snapshot() as connection:
            return list_blocked_keys(connection, self._connection.tenant, after=after, limit=as_int(limit, "limit"))

    def unblock(self, key: str, *, skip: bool = False, request_id: str | None = None) -> UnblockedKey:
        """Retry the failed run of a blocked key, whose success lets the next one start.

        Args:
            skip: True to let the next run start without a retry.
            request_id: A repeated id makes no second retry; not with `skip`.
        """
        own = self._connection
        if skip:
            if request_id is not None:
                refuse("request_id", "a skip makes no run", "leave it out")
            # Not twice: a repeat after a lost COMMIT would skip the failure of the next run.
            skipped = own.write(lambda connection: self._skip(connection, key), once=True)
            own.notify(Channel.OUTBOX)
            return UnblockedKey(RunId(skipped), skipped=True)
        with own.transaction() as connection:
            found = read_blocked_key(connection, own.tenant, key)
        if found is None:
            refuse(
                "key",
                f"the ordering key {key!r} is not blocked",
                "`tidewheel admin ordering-key list` lists those that are",
            )
        document = {"type": "run.retry", "run_id": str(found.blocked_by)}
        if found.retried_by is not None:
            refuse("key", f"run {found.retried_by} retries the failed run", "wait for its end")
        return UnblockedKey(RunId(UUID(own.request(document, request_id).run_id)), skipped=False)

    def _skip(self, connection: Conn, key: str) -> UUID:
        blocker = skip_blocker(connection, self._connection.installation, self._connection.tenant, key)
        self._connection.record(connection, "ordering_key.skip", f"ordering_key/{key}")
        return blocker
