"""`client.api_keys`: create, list and revoke keys of the HTTP API; their records and reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final, cast

from psycopg.errors import UniqueViolation
from psycopg.rows import class_row
from pydantic import BeforeValidator, Field

from tidewheel.api_keys import MAX_RATE, Scope, new_key
from tidewheel.audit import ALL_TENANTS, Change, record_change
from tidewheel.control.reads.json_form import one_of
from tidewheel.errors import UnknownApiKey, refuse
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.validation import shown
from tidewheel.jobs.values import MAX_ELEMENTS, Key, Queue, span
from tidewheel.nouns.operation import Noun, Page, Rows, operation, read_page
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.postgres.session import Conn, read_row
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.nouns.api_keys")

ALL_QUEUES = "*"
_LATEST: Final = "infinity", "~"  # behind each key, one with a damaged time among them
_KEYS = "/api/v1/keys"
_DEFAULT_KEYS = 20  # of a tenant without a limit: one for each of its programs and people, and no flood
_DEFAULT_KEY_RATE = 100.0  # as by default of keys without a rate
_YEAR = timedelta(days=365)
_Lifetime = Annotated[timedelta, BeforeValidator(span(timedelta(seconds=1), timedelta(days=3660)))]
_Queues = Annotated[Sequence[Queue], Field(max_length=MAX_ELEMENTS)]
_Rate = Annotated[float, Field(gt=0, le=MAX_RATE)]


def ensure_key_id(key_id: str) -> None:
    """Refuse a text that is the id of no key."""
    if not (key_id.isascii() and key_id.isalnum()):
        raise UnknownApiKey(key_id[:40])


@dataclass(frozen=True, slots=True)
class ApiKeySummary:
    """A key of the HTTP API."""

    key_id: Annotated[str, Field(description="Its id, the part of the key after `tw_`.")]
    name: Annotated[str, Field(description="Its name, which the audit log shows.")]
    tenant: Annotated[str, Field(description="Its tenant; `*` for all.")]
    scopes: Annotated[tuple[Scope, ...], Field(description="Its rights.")]
    rate: Annotated[float | None, Field(description="Its requests per second; null for the setting of the process.")]
    created_at: Annotated[datetime, Field(description="When it was created.")]
    expires_at: Annotated[datetime | None, Field(description="When it expires.")]
    revoked_at: Annotated[datetime | None, Field(description="When it was revoked.")]
    last_used_at: Annotated[datetime | None, Field(description="Its last use, recorded once a minute.")]
    queues: Annotated[
        Sequence[str] | None,
        Field(description="With the scope execute: the queues of its executors, `*` for all; otherwise null."),
    ] = None

    def __post_init__(self) -> None:
        """Take the scopes as the database has them; a key with queues has `execute`."""
        scopes = (*map(Scope, self.scopes), *((Scope.EXECUTE,) if self.queues else ()))
        object.__setattr__(self, "scopes", tuple(dict.fromkeys(scopes)))


def show_api_key(connection: Conn, tenant: str | None, key_id: str) -> ApiKeySummary:
    """Return a key of a tenant, or of any; raise UnknownApiKey if there is none."""
    ensure_key_id(key_id)
    found = read_row(connection, class_row(ApiKeySummary), _SQL["show_api_key"], {"tenant": tenant, "key_id": key_id})
    if found is None:
        raise UnknownApiKey(key_id)
    return found


def list_api_keys(
    connection: Conn, tenant: str | None, *, after: tuple[datetime, str] | None = None, limit: int = 50
) -> Page[ApiKeySummary]:
    """Return a page of the keys of a tenant, of `*` for those of all tenants, or of None for every key."""
    at, key_id = after or _LATEST
    columns = {"tenant": tenant, "before_at": at, "before_id": key_id}
    return read_page(
        connection, class_row(ApiKeySummary), _SQL["list_api_keys"], columns,
        lambda last: (last.created_at, last.key_id), limit=limit, after=after,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NewApiKey:
    """A key that was created."""

    key: Annotated[str, Field(description="The whole key, shown only once and not stored.")]
    summary: Annotated[ApiKeySummary, Field(description="The stored part of the key.")]


@dataclass(frozen=True, slots=True)
class RevokedKey:
    """Result of a revocation: `unchanged` if the key was revoked before."""

    key_id: str
    unchanged: bool


def _scope(given: object) -> Scope:
    try:
        return Scope(str(given))
    except ValueError:
        raise InvalidValue(
            problem=f"{shown(given)} is not a scope", remedy=f"write one of {', '.join(Scope)}"
        ) from None


_Scopes = Sequence[Annotated[Scope | str, BeforeValidator(_scope), one_of(Scope)]]


def _authorize(arguments: Mapping[str, object]) -> Scope | None:
    return Scope.ADMIN if arguments["all_tenants"] else None


class ApiKeys(Noun):
    """Keys of the HTTP API."""

    @operation(
        f"POST {_KEYS}", "create_key", scope=Scope.ADMIN, python_only=("request_id",), authorize=_authorize,
        sent={"name": "ci", "scopes": ["write"], "lifetime": "90d"},
    )  # fmt: skip
    def create(
        self,
        name: Annotated[Key, Field(description="Shown in lists and in the audit log.")],
        scopes: Annotated[
            _Scopes, Field(min_length=1, max_length=5, description=(
                "Its rights; admin includes all but execute, which is for executors in other languages."
            )),
        ],
        *,
        lifetime: Annotated[
            _Lifetime | None,
            Field(description="The time after which it expires; a year by default, null for a key that never expires."),
        ] = _YEAR,
        rate: Annotated[
            _Rate | None, Field(description="Its requests per second; by default the API's setting.")
        ] = None,
        queues: Annotated[
            _Queues, Field(description="With the scope execute: the queues of its executors; by default all.")
        ] = (),
        all_tenants: Annotated[bool, Field(description="True for a key for all tenants.")] = False,
        request_id: str | None = None,
    ) -> NewApiKey:  # fmt: skip
        """Create an API key; only this response contains its secret.

        Clients send the key as Authorization: Bearer. Only a digest is stored: revoke and replace a lost key.

        Raises:
            Refused: The request is a repeat: only the first response contains the key.
        """
        tenant = ALL_TENANTS if all_tenants else self._call.tenant
        known = sorted({Scope(each) for each in scopes}, key=list(Scope).index)
        served = (sorted(set(queues)) or [ALL_QUEUES]) if Scope.EXECUTE in known else None
        if queues and served is None:
            refuse("queues", "need the scope execute", "add that scope, or leave out the queues")
        made = new_key(None if request_id is None else f"{tenant}/{request_id}")
        columns: dict[str, object] = {
            "key_id": made.key_id, "tenant": tenant, "name": name, "secret_hash": made.hash,
            "scopes": [scope.value for scope in known if scope is not Scope.EXECUTE], "queues": served, "rate": rate,
            "lifetime": lifetime,
        }  # fmt: skip

        def add(connection: Conn) -> tuple[datetime, datetime | None]:
            if not all_tenants:
                require_tenant(connection, tenant)
            if not self._call.all_tenants:
                _ensure_within_limits(connection, tenant, rate)
            try:
                adding = _SQL["add_api_key"] if served is None else _SQL["add_executor_key"]
                row = connection.execute(adding, columns, binary=True).fetchone()
            except UniqueViolation:
                problem = f"this request already created the key {made.key_id}, which only the first response shows"
                refuse("request_id", problem, f"if that response was lost, revoke {made.key_id} and create another key")
            record_change(connection, self._call.actor, Change(tenant, "key.create", f"key/{made.key_id}"))
            return cast("tuple[datetime, datetime | None]", row)

        created_at, expires_at = self._call.write(add, once=True, all_tenants=all_tenants)
        summary = ApiKeySummary(
            made.key_id, name, tenant, tuple(known), rate, created_at, expires_at, None, None, served
        )
        return NewApiKey(made.text, summary)

    @operation(f"GET {_KEYS}", "list_keys", scope=Scope.ADMIN, authorize=_authorize)
    def list(
        self,
        *,
        all_tenants: Annotated[bool, Field(description="True for the keys of every tenant.")] = False,
        after: tuple[datetime, str] | None = None,
        limit: Rows = 50,
    ) -> Page[ApiKeySummary]:
        """List API keys, newest first, each with its last use."""
        with self._call.snapshot(all_tenants=all_tenants) as connection:
            return list_api_keys(connection, None if all_tenants else self._call.tenant, after=after, limit=limit)

    @operation(
        f"POST {_KEYS}/{{key_id}}:revoke",
        "revoke_key",
        scope=Scope.ADMIN,
        python_only=("all_tenants",),
        answer=RevokedKey,
    )
    def revoke(self, key_id: str, *, all_tenants: bool = False) -> bool:
        """Revoke an API key; it stops working within a second."""
        ensure_key_id(key_id)
        columns = {"key_id": key_id, "tenant": None if all_tenants else self._call.tenant}

        def revoke(connection: Conn) -> bool:
            row = connection.execute(_SQL["revoke_api_key"], columns, binary=True).fetchone()
            if row is None:
                raise UnknownApiKey(key_id)
            tenant, was_revoked = cast("tuple[str, bool]", row)
            if not was_revoked:
                record_change(connection, self._call.actor, Change(tenant, "key.revoke", f"key/{key_id}"))
            return not was_revoked

        return self._call.write(revoke, all_tenants=all_tenants)


def _ensure_within_limits(connection: Conn, tenant: str, rate: float | None) -> None:
    """Refuse what a tenant's own key may not create: a key more than operators allow, or a faster one."""
    connection.execute(_SQL["lock_keys_of_tenant"], {"tenant": tenant})
    row = connection.execute(_SQL["read_key_limits"], {"tenant": tenant}, binary=True).fetchone()
    count, keys, most = cast("tuple[int, int | None, float | None]", row)
    keys, most = _DEFAULT_KEYS if keys is None else keys, _DEFAULT_KEY_RATE if most is None else most
    operator = f"have an operator run `tidewheel admin tenant limits {tenant}"
    if count >= keys:
        problem = f"tenant {tenant} has {count} API keys; its limit is {keys}"
        refuse("keys", problem, f"revoke one, or {operator} --keys N`")
    if rate is not None and rate > most:
        problem = f"{rate:g} requests a second exceed the limit of tenant {tenant}, which is {most:g}"
        refuse("rate", problem, f"write less, or {operator} --key-rate N`")
