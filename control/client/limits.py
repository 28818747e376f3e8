"""`client.limits`: set, remove and list limits of concurrency keys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.arguments import as_int
from tidewheel.control.client.connection import Connection, drop_none
from tidewheel.control.reads.limits import KeyInUse, LimitSummary, list_keys, list_limits
from tidewheel.control.reads.tenants import require_tenant
from tidewheel.errors import InvalidInput, refuse
from tidewheel.jobs.concurrency import KeyLimit
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.validation import validate
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn
from tidewheel.transitions.key_limits import MOST_PREFIXES, KeyPattern, apply_limit, remove_limit, set_limit
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
