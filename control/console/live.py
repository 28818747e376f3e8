"""`/live`: the news that a page has changed, as server-sent events.

A page names its topics: `now` for all runs of its tenant, `run:ID`, `job:ID`. The process looks once a second for each
tenant that is watched, whatever the number of watchers, and not at all without one. A look reads a fingerprint of each
topic. Where it differs from the last, the watchers get `changed`, and each browser reads its own page again. They get
it one after the other, and tenants take turns, so that these reads leave the threads of reads to others.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from uuid import UUID

from fastapi.security import SecurityScopes
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api.authorization import KEY, caller, is_open_of
from tidewheel.control.api.problems import Overloaded
from tidewheel.control.api.streams import Places, Streaming, Watched, read_pulses
from tidewheel.control.api.workers import Turn, Workers, WorkerState
from tidewheel.errors import Unavailable
from tidewheel.ids import read_uuid
from tidewheel.process.service import Shutdown
from tidewheel.turns import Turns

_LOOK_SECONDS = 1.0
_BEAT_SECONDS = 5.0  # a browser that hears nothing for twice as long shows that
_APART_SECONDS = 0.1  # between two news of a process: each of them is a read of a page, of 25 ms or more
_TOPICS = 60
_WATCHERS, _OF_KEY = 256, 24  # a stream is one of the 40 requests that a key may have in progress
_TOPIC = re.compile(r"now|(?:run|job):[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(eq=False, slots=True)
class _Watcher:
    """One open page.

    Args:
        key_id: The key of its reader; None where no key is needed.
        news: Set when one of the topics has changed, and it is this page's turn.
        is_compared: True once a look has read its topics: its page may be older than that look.
    """

    topics: frozenset[str]
    key_id: str | None
    is_compared: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False, slots=True)
class _Tenant:
    """The watchers of one tenant, and what the last look found."""

    watchers: set[_Watcher] = field(default_factory=set[_Watcher])
    found: Mapping[str, str] = field(default_factory=dict[str, str])
    looking: "asyncio.Task[None] | None" = None
    answered: bool = True

    @property
    def is_over(self) -> bool:
        """True once an error has ended the looks: a browser that opens its stream again begins them anew."""
        return self.looking is not None and self.looking.done()


class Live:
    """The streams of the console."""

    def __init__(self, reads: Workers, stop: Shutdown) -> None:
        self._reads, self._stop = reads, stop
        self._places = Places("live pages", _WATCHERS, _OF_KEY)
        self._tenants: dict[str, _Tenant] = {}
        self._turns = Turns[_Watcher]()
        self._telling: asyncio.Task[None] | None = None

    async def stream(self, request: Request) -> Response:
        """Return the stream of a page's topics."""
        found = await caller(request, SecurityScopes([Scope.READ]))
        topics = frozenset(request.query_params.get("topics", "").split(","))
        if len(topics) > _TOPICS or not all(_TOPIC.fullmatch(topic) for topic in topics):
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"name up to {_TOPICS} topics: now, run:ID or job:ID")
        key = request.scope.get(KEY)
        watcher = _Watcher(topics, key.key_id if key else None)
        give_back = self._places.take(found.tenant, watcher.key_id)
        tenant = self._watch(found.tenant, watcher)
        is_open = is_open_of(request)

        def end() -> None:
            give_back()
            tenant.watchers.discard(watcher)
            self._turns.leave(found.tenant, watcher.key_id or "", watcher)

        return Streaming(self._events(tenant, watcher, is_open), end)

    def _watch(self, name: str, watcher: _Watcher) -> _Tenant:
        tenant = self._tenants.setdefault(name, _Tenant())
        tenant.watchers.add(watcher)
        if tenant.looking is None:
            tenant.looking = asyncio.create_task(self._look(name, tenant))
        return tenant

    async def _tell(self) -> None:
        """Give those who wait their news, one after the other."""
        while (found := self._turns.take()) is not None:
            _, watcher = found
            watcher.news.set()
            await asyncio.sleep(_APART_SECONDS)

    async def _look(self, name: str, tenant: _Tenant) -> None:
        """Look while the tenant has watchers."""
        try:
            while tenant.watchers and not self._stop.requested():
                topics = sorted({topic for each in tenant.watchers for topic in each.topics})
                watchers = tuple(tenant.watchers)
                try:
                    found = await self._reads.do(_reading(name, topics), Turn(name))
                except (Unavailable, Overloaded):
                    tenant.answered = False
                else:
                    tenant.answered = True
                    for each in _with_news(tenant, found, watchers):
                        self._turns.wait(name, each.key_id or "", each)
                    if self._telling is None or self._telling.done():
                        self._telling = asyncio.create_task(self._tell())
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            del self._tenants[name]

    async def _events(
        self, tenant: _Tenant, watcher: _Watcher, is_open: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes]:
        now = asyncio.get_running_loop().time
        sent_at = now()
        yield b"retry: 2000\nevent: beat\ndata: -\n\n"
        while not self._stop.requested() and not tenant.is_over:
            if not await is_open():
                yield b"event: gone\ndata: -\n\n"
                return
            name = b""
            if watcher.news.is_set():
                watcher.news.clear()
                name = b"changed"
            elif tenant.answered and now() - sent_at >= _BEAT_SECONDS:
                name = b"beat"
            if name:
                sent_at = now()
                yield b"event: " + name + b"\ndata: -\n\n"
            with suppress(TimeoutError):
                await asyncio.wait_for(watcher.news.wait(), _LOOK_SECONDS)


def _with_news(tenant: _Tenant, found: Mapping[str, str], watchers: Sequence[_Watcher]) -> Iterator[_Watcher]:
    """Keep what a look has found; yield the watchers of what has changed, and the new ones."""
    changed = {topic for topic in tenant.found.keys() & found.keys() if tenant.found[topic] != found[topic]}
    tenant.found = found
    for each in watchers:
        if each in tenant.watchers and (each.topics & changed or not each.is_compared):
            each.is_compared = True
            yield each


def _reading(tenant: str, topics: Sequence[str]) -> Callable[[WorkerState], Mapping[str, str]]:
    def ids(kind: str) -> list[UUID]:
        return [read_uuid(topic.removeprefix(kind)) for topic in topics if topic.startswith(kind)]

    watched = Watched("now" in topics, ids("run:"), ids("job:"))

    def read(state: WorkerState) -> Mapping[str, str]:
        with state.connection(tenant).snapshot() as reading:
            return read_pulses(reading, tenant, watched)

    return read
