"""`client.freezes`: freeze and thaw a scope, and list the standing freezes."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidewheel.api_keys import Scope
from tidewheel.control.reads.resuming import MAX_JOBS, Resumption, resumption
from tidewheel.errors import UnknownFreeze
from tidewheel.jobs.requests import FreezeFields, FreezeScope, ThawFields
from tidewheel.nouns.freezes.model import FreezeSummary, FrozenScope
from tidewheel.nouns.freezes.reads import FIND_FREEZE, list_freezes, scope_columns
from tidewheel.nouns.operation import Noun, fields_of, operation
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.nouns.freezes")
_FREEZES = "/api/v1/freezes"
_DUE = 1000  # timers of each shard: more are due only without a scheduler


def _authorize(arguments: Mapping[str, object]) -> Scope | None:
    return Scope.ADMIN if arguments.get("scope") == "fleet" else None


@dataclass(frozen=True, slots=True)
class ChangedFreeze:
    """Result of a freeze or a thaw; `unchanged` if the scope was already frozen, or thawed."""

    unchanged: bool


def preview_thaw(connection: Conn, scope: FrozenScope, *, only: str | None = None) -> Resumption:
    """Return what a thaw of exactly this scope does, to jobs of one tenant only if `only` names it.

    Jobs that another freeze names stay held. Instants whose runs were written ahead count once a scheduler has
    retracted these.
    """
    columns = {**scope_columns(scope), "only": only, "limit": MAX_JOBS + 1, "look": _DUE}
    if connection.execute(FIND_FREEZE, columns).fetchone() is None:
        raise UnknownFreeze(next((name for name in ("key_prefix", "labels", "queue") if getattr(scope, name)), "scope"))
    return resumption(connection, _SQL["read_frozen_timers"], columns, "freeze")


class Freezes(Noun):
    """Freezes: scopes of which no run starts until the thaw."""

    @operation(f"GET {_FREEZES}", "list_freezes", scope=Scope.READ)
    def list(self) -> list[FreezeSummary]:
        """List the freezes in force, each with its waiting runs and held jobs."""
        everywhere = self._call.all_tenants
        with self._call.snapshot(all_tenants=everywhere) as connection:
            return list_freezes(connection, self._call.tenant, counts_all=everywhere)

    @operation(f"GET {_FREEZES}/thaw-preview", "preview_thaw", scope=Scope.READ)
    @fields_of(FreezeScope)
    def preview_thaw(self, asked: FreezeScope) -> Resumption:
        """Return which held occurrences a thaw of exactly this scope would fire, and which it would skip."""
        tenant, everywhere = self._call.tenant, self._call.all_tenants
        scope = FrozenScope(None if asked.scope == "fleet" else tenant, asked.queue, asked.labels, asked.key_prefix)
        with self._call.snapshot(all_tenants=everywhere) as connection:
            return preview_thaw(connection, scope, only=None if everywhere else tenant)

    @operation(
        f"POST {_FREEZES}", "freeze", scope=Scope.OPERATE, authorize=_authorize, answer=ChangedFreeze,
        sent={"queue": "reports", "reason": "printer swap", "by": "anna"},
    )  # fmt: skip
    @fields_of(FreezeFields)
    def freeze(self, sent: FreezeFields) -> bool:
        """Hold all new runs of a scope until you thaw it; running ones finish.

        Raises:
            Refused: A field is invalid, or the labels or the key prefix match too many jobs.
        """
        return not self._request("freeze", sent).unchanged

    @operation(
        f"POST {_FREEZES}:thaw", "thaw", scope=Scope.OPERATE, authorize=_authorize, answer=ChangedFreeze,
        sent={"queue": "reports"},
    )  # fmt: skip
    @fields_of(ThawFields)
    def thaw(self, sent: ThawFields) -> bool:
        """End the freeze of exactly this scope; `on_resume` decides which held occurrences fire.

        Raises:
            Refused: No freeze in force has this scope.
        """
        return not self._request("thaw", sent).unchanged
