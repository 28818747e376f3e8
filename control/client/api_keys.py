"""`client.api_keys`: create, list and revoke keys of the HTTP API."""

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from psycopg.errors import UniqueViolation
from pydantic import TypeAdapter, ValidationError

from tidewheel.api_keys import Scope, new_key
from tidewheel.audit import ALL_TENANTS, Change, record_change
from tidewheel.control.client.arguments import as_int
from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.api_keys import ApiKeyPage, ApiKeySummary, list_api_keys
from tidewheel.control.reads.tenants import require_tenant
from tidewheel.errors import UnknownApiKey, refuse
from tidewheel.jobs.values import Queue
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")
_ADD_API_KEY = _SQL["add_api_key"]
_ADD_EXECUTOR_KEY = _SQL["add_executor_key"]
_LOCK_KEYS_OF_TENANT = _SQL["lock_keys_of_tenant"]
_READ_KEY_LIMITS = _SQL["read_key_limits"]
_REVOKE_API_KEY = _SQL["revoke_api_key"]

ALL_QUEUES = "*"
MAX_RATE = 1_000_000
_QUEUES = TypeAdapter[Sequence[str]](Sequence[Queue])
_DEFAULT_KEYS = 20  # of a tenant without a limit: one for each of its programs and people, and no flood
_DEFAULT_KEY_RATE = 100.0  # as by default of keys without a rate
MAX_LIFETIME = timedelta(days=3660)
DEFAULT_LIFETIME = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class NewApiKey:
    """A key that was created.

    Args:
        key: The whole key, which is not stored and is shown once.
        summary: What is stored of it.
    """

    key: str
    summary: ApiKeySummary


class ApiKeys:
    """Requests about keys of the HTTP API."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(
        self,
        name: str,
        scopes: Sequence[Scope | str],
        *,
        all_tenants: bool = False,
        lifetime: timedelta | None = DEFAULT_LIFETIME,
        rate: float | None = None,
        queues: Sequence[str] = (),
        request_id: str | None = None,
    ) -> NewApiKey:
        """Create a key of the client's tenant.

        Args:
            name: Shown in lists and in the audit log.
            scopes: Its rights: read, write, operate, admin, which has all of these; execute, for executors.
            lifetime: The time after which it expires, by default a year; None for a key that never does.
            rate: Its requests a second; by default the setting of the API.
            queues: With the scope execute the queues of its executors; by default all.
            request_id: The id of the request: a repeat of it is refused, because only the first answer has the key.

        Raises:
            Refused: An argument does not fit, there is no such tenant, or the request is a repeat.
        """
        tenant = ALL_TENANTS if all_tenants else self._connection.tenant
        known = sorted({_scope(each) for each in scopes}, key=list(Scope).index)
        _ensure_fits(name, known, lifetime, rate)
        served = _queues(queues) if Scope.EXECUTE in known else None
        if queues and served is None:
            refuse("queues", "they belong to the scope execute", "add that scope, or leave them out")
        made = new_key(None if request_id is None else f"{tenant}/{request_id}")
        columns: dict[str, object] = {
            "key_id": made.key_id, "tenant": tenant, "name": name, "secret_hash": made.hash,
            "scopes": [scope.value for scope in known if scope is not Scope.EXECUTE], "queues": served, "rate": rate,
            "lifetime": lifetime,
        }  # fmt: skip

        def add(connection: Conn) -> tuple[datetime, datetime | None]:
            if not all_tenants:
                require_tenant(connection, tenant)
            if self._connection.actor.tenant is not None:
                _ensure_within_limits(connection, tenant, rate)
            try:
                adding = _ADD_API_KEY if served is None else _ADD_EXECUTOR_KEY
                row = connection.execute(adding, columns, binary=True).fetchone()
            except UniqueViolation:
                problem = f"this request has made the key {made.key_id}, and only its first answer shows it"
                refuse("request_id", problem, f"if it was not seen, revoke {made.key_id}; then open the form again")
            record_change(connection, self._connection.actor, Change(tenant, "key.create", f"key/{made.key_id}"))
            return cast("tuple[datetime, datetime | None]", row)

        created_at, expires_at = self._connection.write(add, once=True, all_tenants=all_tenants)
        summary = ApiKeySummary(
            made.key_id, name, tenant, tuple(known), rate, created_at, expires_at, None, None, served
        )
        return NewApiKey(made.text, summary)

    def list(
        self, *, all_tenants: bool = False, after: tuple[datetime, str] | None = None, limit: int = 50
    ) -> ApiKeyPage:
        """List the keys of the client's tenant, the newest first; with `all_tenants` every key."""
        with self._connection.snapshot(all_tenants=all_tenants) as connection:
            tenant = None if all_tenants else self._connection.tenant
            return list_api_keys(connection, tenant, after=after, limit=as_int(limit, "limit"))

    def revoke(self, key_id: str, *, all_tenants: bool = False) -> bool:
        """Revoke a key within a second, of the client's tenant or any; return False if it was revoked before."""
        columns = {"key_id": key_id, "tenant": None if all_tenants else self._connection.tenant}

        def revoke(connection: Conn) -> bool:
            row = connection.execute(_REVOKE_API_KEY, columns, binary=True).fetchone()
            if row is None:
                raise UnknownApiKey(key_id)
            tenant, was_revoked = cast("tuple[str, bool]", row)
            if not was_revoked:
                record_change(connection, self._connection.actor, Change(tenant, "key.revoke", f"key/{key_id}"))
            return not was_revoked

        return self._connection.write(revoke, all_tenants=all_tenants)


def _queues(given: Sequence[str]) -> builtins.list[str]:
    """Return queues in order, `*` for all."""
    try:
        return sorted(set(_QUEUES.validate_python(given))) or [ALL_QUEUES]
    except ValidationError as error:
        refuse("queues", error.errors()[0]["msg"], "write names of queues")


def _scope(given: Scope | str) -> Scope:
    try:
        return Scope(given)
    except ValueError:
        refuse("scopes", f"{given!r} is no scope", f"write one of {', '.join(Scope)}")


def _ensure_within_limits(connection: Conn, tenant: str, rate: float | None) -> None:
    """Refuse what a tenant's own key may not create: a key more than operators allow, or a faster one."""
    connection.execute(_LOCK_KEYS_OF_TENANT, {"tenant": tenant})
    row = connection.execute(_READ_KEY_LIMITS, {"tenant": tenant}, binary=True).fetchone()
    count, keys, most = cast("tuple[int, int | None, float | None]", row)
    keys, most = _DEFAULT_KEYS if keys is None else keys, _DEFAULT_KEY_RATE if most is None else most
    if count >= keys:
        problem = f"tenant {tenant} has {count} API keys, and its limit is {keys}"
        refuse(
            "keys", problem, f"revoke one, or have an operator run `tidewheel admin tenant limits {tenant} --keys N`"
        )
    if rate is not None and rate > most:
        problem = f"{rate:g} requests a second are more than the {most:g} of tenant {tenant}"
        refuse(
            "rate",
            problem,
            f"write less, or have an operator run `tidewheel admin tenant limits {tenant} --key-rate N`",
        )


def _ensure_fits(name: str, scopes: Sequence[Scope], lifetime: timedelta | None, rate: float | None) -> None:
    if not (name.strip() and name.isprintable() and len(name) <= 255):
        refuse("name", "it is empty, too long, or has characters that cannot be shown", "write 1 to 255 characters")
    if not scopes:
        refuse("scopes", "a key without a scope opens nothing", f"write some of {', '.join(Scope)}")
    if lifetime is not None and not timedelta(0) < lifetime <= MAX_LIFETIME:
        refuse("lifetime", f"{lifetime} is not a lifetime", f"write at most {MAX_LIFETIME.days} days, such as 90d")
    if rate is not None and not 0 < rate <= MAX_RATE:
        refuse("rate", f"{rate} is not a rate", f"write a number of requests a second, at most {MAX_RATE}")
