"""Check API keys before a body is read: secret, revocation, expiry, rate, concurrent requests.

A key is read from the database at most once a second, so that a revocation acts within a second. The process keeps what
it has read of real keys only. A key that it does not know waits for a stranger's turn before it is looked up.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import TypeAlias, TypeVar

from psycopg.rows import class_row
from starlette.responses import Response

from tidewheel.api_keys import ApiKey, Bucket, Scope
from tidewheel.control.api.problems import problem, unauthorized
from tidewheel.control.api.workers import Turn, Workers, WorkerState
from tidewheel.errors import Unavailable
from tidewheel.nouns.api_keys.sign_ins import BOUNDS, SignIn, add_sign_in, end_sign_in, take_link
from tidewheel.postgres.session import Conn, read_row
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")

T = TypeVar("T")

_WARNING = timedelta(minutes=10)  # enough to get another key
_FRESH_SECONDS = 1.0
_MOST_AT_ONCE = 40  # requests of one key: 32 of them may be streams
_KEPT = 1000  # keys beyond which those of one tenant that are not in use are forgotten
_NEW = Turn("new keys")

ShownKey: TypeAlias = ApiKey | SignIn
"""The key that a request shows: itself, or by a sign-in."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key as the database has it."""

    key_id: str
    tenant: str
    name: str
    secret_hash: bytes
    scopes: Sequence[str]
    rate: float | None
    revoked: bool
    expires_at: datetime | None
    read_at: datetime
    max_rate: float | None
    to_record: bool
    queues: Sequence[str] | None
    sign_ins: Mapping[str, str | None]

    def opens_to(self, shown: ShownKey) -> bool:
        """Return True if the secret of the key was shown, or that of one of its sign-ins."""
        return shown.fits(self.secret_hash, self.sign_ins)

    @property
    def expired(self) -> bool:
        """True once it has expired."""
        return self.expires_at is not None and self.expires_at <= self.read_at

    @property
    def warns_at(self) -> datetime | None:
        """The instant from which pages warn that the key expires."""
        return None if self.expires_at is None else self.expires_at - _WARNING

    @property
    def expires_soon(self) -> bool:
        """True once pages warn that it expires."""
        return self.warns_at is not None and self.warns_at <= self.read_at

    @property
    def rights(self) -> frozenset[Scope]:
        """Its scopes: `admin` has all of them but `execute`, which a key with queues has."""
        scopes = frozenset(map(Scope, self.scopes))
        if Scope.ADMIN in scopes:
            scopes = frozenset(Scope) - {Scope.EXECUTE}
        return scopes | {Scope.EXECUTE} if self.queues else scopes


class KeyUse:
    """The use of one key in this process."""

    def __init__(self, stored: StoredKey, rate: float, now: float) -> None:
        self.stored, self.read_at, self.in_progress = stored, now, 0
        self.bucket = Bucket(rate, now)

    def renew(self, stored: StoredKey, rate: float, now: float) -> None:
        """Keep what was read again."""
        if stored.rate != self.stored.rate:
            self.bucket.change(rate)
        self.stored, self.read_at = stored, now

    def wait(self, now: float) -> float:
        """Take a request from the rate; return 0, or the seconds after which one may follow."""
        return 1.0 if self.in_progress >= _MOST_AT_ONCE else self.bucket.take(now)


class KeyCheck:
    """The keys that this process has seen.

    Args:
        rate: Requests a second of a key without a rate of its own.
    """

    def __init__(self, workers: Workers, rate: float) -> None:
        self._workers, self._rate = workers, rate
        self._uses: dict[str, KeyUse] = {}
        self._tenants: dict[str, Bucket] = {}  # those with a limit, which operators set
        self._reading: dict[str, asyncio.Task[StoredKey | None]] = {}

    def known(self, key: ShownKey) -> StoredKey | None:
        """Return the key of this id with this secret as the process has last read it; None if it has not."""
        use = self._uses.get(key.key_id)
        return use.stored if use is not None and use.stored.opens_to(key) else None

    async def begin(self, key: ShownKey) -> KeyUse | Response:
        """Return the use of a key, with one more request in progress; refuse it if too many are being read."""
        use = await self._read(key)
        if use is None or not use.stored.opens_to(key):
            return unauthorized("there is no such API key; `tidewheel admin api-key list` lists the existing ones")
        if use.stored.revoked or use.stored.expired:
            state = "was revoked" if use.stored.revoked else "has expired"
            return unauthorized(f"the API key {key.key_id} {state}; use another one")
        now = asyncio.get_running_loop().time()
        who = f"the API key {key.key_id} has"
        if (seconds := use.wait(now)) == 0 and (seconds := self._wait_of_tenant(use.stored, now)) > 0:
            who = f"the API keys of tenant {use.stored.tenant} have"
        if seconds > 0:
            detail = f"{who} sent too many requests at once; retry later"
            again = {"Retry-After": str(math.ceil(seconds))}
            return problem(HTTPStatus.TOO_MANY_REQUESTS, "rate_limited", detail, headers=again)
        use.in_progress += 1
        return use

    def spend(self, use: KeyUse, requests: int) -> None:
        """Take further requests from the rates of a key and of its tenant: one was the work of many."""
        use.bucket.spend(requests)
        if use.stored.max_rate is not None and (bucket := self._tenants.get(use.stored.tenant)) is not None:
            bucket.spend(requests)

    async def is_open(self, key: ShownKey) -> bool:
        """Return False once a key that was accepted has been revoked or has expired, or its sign-in is over."""
        try:
            use = await self._read(key)
        except Unavailable:
            return True  # then there is nothing to read either
        return use is not None and use.stored.opens_to(key) and not (use.stored.revoked or use.stored.expired)

    async def _read(self, key: ShownKey) -> KeyUse | None:
        now = asyncio.get_running_loop().time()
        use = self._uses.get(key.key_id)
        # Another process may just have added a sign-in. A request that shows one has waited for a stranger's turn.
        if (
            use is not None
            and now - use.read_at < _FRESH_SECONDS
            and (use.stored.opens_to(key) or not isinstance(key, SignIn))
        ):
            return use
        reading = self._reading.get(key.key_id)
        if reading is None:
            reading = asyncio.create_task(self._workers.do(partial(_find, key), self._turn(key)))
            self._reading[key.key_id] = reading
            reading.add_done_callback(partial(self._over, key.key_id))
        # Shielded: others may wait for it too.
        stored = await asyncio.shield(reading)
        if stored is None:
            self._uses.pop(key.key_id, None)
            return None
        rate = stored.rate or self._rate
        use = self._uses.get(key.key_id)
        if use is None:
            self._forget()
            use = self._uses[key.key_id] = KeyUse(stored, rate, now)
        elif use.stored is not stored:
            use.renew(stored, rate, now)
        return use

    async def sign_in(self, key_id: str, name: str | None) -> SignIn | None:
        """Begin a sign-in of a key that was shown; None if it has gone meanwhile."""
        made = await self._workers.do(partial(_in_transaction, partial(add_sign_in, key_id=key_id, name=name)))
        self._read_again(key_id)
        return made

    async def open_link(self, text: str) -> SignIn | None:
        """Begin the sign-in of a link that is opened for the first time."""
        return await self._workers.do(partial(_in_transaction, partial(take_link, text=text)))

    async def sign_out(self, sign_in: SignIn) -> None:
        """End a sign-in; other processes refuse it within a second."""
        await self._workers.do(partial(_in_transaction, partial(end_sign_in, sign_in=sign_in)))
        self._read_again(sign_in.key_id)

    def _wait_of_tenant(self, stored: StoredKey, now: float) -> float:
        """Take a request from the rate of a tenant; return 0, or the seconds after which one may follow."""
        if stored.max_rate is None:
            return 0.0
        bucket = self._tenants.setdefault(stored.tenant, Bucket(stored.max_rate, now))
        bucket.change(stored.max_rate)
        return bucket.take(now)

    def _read_again(self, key_id: str) -> None:
        if (use := self._uses.get(key_id)) is not None:
            use.read_at = float("-inf")

    def _over(self, key_id: str, reading: "asyncio.Task[StoredKey | None]") -> None:
        del self._reading[key_id]
        if not reading.cancelled():
            reading.exception()  # retrieved, also where no caller waits any longer

    def _turn(self, key: ShownKey) -> Turn:
        known = self.known(key)
        return _NEW if known is None else Turn(known.tenant, known.key_id)

    def _forget(self) -> None:
        """Make room: forget the keys of the tenant that has the most, unless they are in use."""
        if len(self._uses) >= _KEPT:
            [(tenant, _)] = Counter(use.stored.tenant for use in self._uses.values()).most_common(1)
            self._uses = {
                key_id: use for key_id, use in self._uses.items() if use.in_progress or use.stored.tenant != tenant
            }


def _find(key: ShownKey, state: WorkerState) -> StoredKey | None:
    """Read a key, and record its use if its secret was shown."""
    columns: dict[str, object] = {"key_id": key.key_id, **BOUNDS}
    with state.session.transaction() as connection:
        if isinstance(key, SignIn):
            connection.execute(_SQL["record_sign_in_use"], {**BOUNDS, "digest": key.digest})
        found = read_row(connection, class_row(StoredKey), _SQL["find_api_key"], columns)
        if found is not None and found.to_record and not found.revoked and found.opens_to(key):
            connection.execute(_SQL["record_api_key_use"], columns)
    return found


def _in_transaction(work: Callable[[Conn], T], state: WorkerState) -> T:
    with state.session.transaction() as connection:
        return work(connection)
