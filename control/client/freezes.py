"""`client.freezes`: freeze and thaw a scope, and list the standing freezes."""

from collections.abc import Mapping
from typing import TypedDict, Unpack

from tidewheel.control.client.connection import Connection
from tidewheel.control.explain.resuming import Resumption, preview_thaw
from tidewheel.control.reads.freezes import FreezeSummary, list_freezes


class Scope(TypedDict, total=False):
    """The runs that fit all of these fields; at least one is required.

    Attributes:
        scope: `fleet`, those of all tenants, or `tenant`, those of the client's tenant.
        labels: Of the tenant's jobs that have all of these labels.
        key_prefix: Of the tenant's jobs whose keys begin so.
    """

    scope: str | None
    queue: str | None
    labels: Mapping[str, str] | None
    key_prefix: str | None


class Freezes:
    """Reads and requests about freezes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def freeze(self, *, reason: str | None = None, by: str | None = None, **scope: Unpack[Scope]) -> bool:
        """Start no run of a scope until its thaw, from now on; what runs goes on.

        Args:
            reason: Shown until the thaw.
            **scope: At least one of scope, queue, labels and key_prefix.

        Returns:
            False if this scope was frozen already.

        Raises:
            Refused: A field does not fit, or the labels or the key prefix fit too many jobs.
            Unavailable: The database does not answer.
        """
        return not self._connection.request({"type": "freeze", "reason": reason, "by": by, **scope}).unchanged

    def thaw(self, **scope: Unpack[Scope]) -> None:
        """End the freeze of exactly this scope; `on_resume` decides what came due meanwhile.

        Raises:
            Refused: No standing freeze has this scope.
            Unavailable: The database does not answer.
        """
        self._connection.request({"type": "thaw", **scope})

    def preview_thaw(self, **scope: Unpack[Scope]) -> Resumption:
        """Return what a thaw of exactly this scope does with the occurrences that came due meanwhile.

        Raises:
            Refused: No standing freeze has this scope.
            Unavailable: The database does not answer.
        """
        tenant = None if scope.get("scope") == "fleet" else self._connection.tenant
        with self._connection.snapshot(all_tenants=True) as connection:
            return preview_thaw(
                connection, tenant, queue=scope.get("queue"), labels=scope.get("labels"),
                key_prefix=scope.get("key_prefix"),
            )  # fmt: skip

    def list(self) -> list[FreezeSummary]:
        """Return the standing freezes of the tenant and of the fleet, with what waits under each."""
        with self._connection.snapshot(all_tenants=True) as connection:
            return list_freezes(connection, self._connection.tenant)
