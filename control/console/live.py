"""`/live`: the news that a page has changed, as server-sent events.

A page names its topics: `now` for all runs of its tenant, `run:ID`, `job:ID`. The process looks once a second for each
tenant that is watched, whatever the number of watchers, and not at all without one. A look reads a fingerprint of each
topic. Where it differs from the last, the watchers get `changed`, and each browser reads its own page again.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from uuid import UUID

from fastapi.security import SecurityScopes
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api.bearer import IS_OPEN
from tidewheel.control.api.callers import caller
from tidewheel.control.api.problems import Overloaded
from tidewheel.control.api.streaming import Streaming
from tidewheel.control.api.workers import Workers, WorkerState
from tidewheel.control.reads.pulses import Watched, read_pulses
from tidewheel.errors import Unavailable
from tidewheel.process.service import Shutdown

_LOOK_SECONDS = 1.0
_BEAT_SECONDS = 5.0  # a browser that hears nothing for twice as long shows that
_TOPICS = 60
_WATCHERS = 256
_TOPIC = re.compile(r"now|(?:run|job):[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(eq=False, slots=True)
class _Watcher:
    """One open page.

    Args:
        topics: What it shows.
        news: Set when one of them has changed.
        is_compared: True once a look has read them: its page may be older than that look.
    """

    topics: frozenset[str]
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
    """The streams of the console.

    Args:
        reads: The threads of streams.
        stop: Ends every stream.
    """

    def __init__(self, reads: Workers, stop: Shutdown) -> None:
        self._reads, self._stop = reads, stop
        self._tenants: dict[str, _Tenant] = {}

    async def stream(self, request: Request) -> Response:
        """Return the stream of a page's topics."""
        found = await caller(request, SecurityScopes([Scope.READ]))
        topics = frozenset(request.query_params.get("topics", "").split(","))
        if len(topics) > _TOPICS or not all(_TOPIC.fullmatch(topic) for topic in topics):
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"name up to {_TOPICS} topics: now, run:ID or job:ID")
        if sum(len(each.watchers) for each in self._tenants.values()) >= _WATCHERS:
            message = f"{_WATCHERS} pages are watched; repeat the request in a moment"
            raise Overloaded(message)
        watcher = _Watcher(topics)
        tenant = self._watch(found.tenant, watcher)
        is_open = request.scope.get(IS_OPEN, _always)
        return Streaming(self._events(tenant, watcher, is_open), lambda: tenant.watchers.discard(watcher))

    def _watch(self, name: str, watcher: _Watcher) -> _Tenant:
        tenant = self._tenants.setdefault(name, _Tenant())
        tenant.watchers.add(watcher)
        if tenant.looking is None:
            tenant.looking = asyncio.create_task(self._look(name, tenant))
        return tenant

    async def _look(self, name: str, tenant: _Tenant) -> None:
        """Look while the tenant has watchers."""
        try:
            while tenant.watchers and not self._stop.requested():
                topics = sorted({topic for each in tenant.watchers for topic in each.topics})
                watchers = tuple(tenant.watchers)
                try:
                    found = await self._reads.do(_reading(name, topics))
                except (Unavailable, Overloaded):
                    tenant.answered = False
                else:
                    tenant.answered = True
                    _compare(tenant, found, watchers)
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
            await _for_a_moment(watcher.news)


def _compare(tenant: _Tenant, found: Mapping[str, str], watchers: Sequence[_Watcher]) -> None:
    """Wake the watchers of what has changed, and those whose topics no look has read before."""
    changed = {topic for topic in tenant.found.keys() & found.keys() if tenant.found[topic] != found[topic]}
    tenant.found = found
    for each in watchers:
        if each.topics & changed or not each.is_compared:
            each.is_compared = True
            each.news.set()


async def _for_a_moment(news: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(news.wait(), _LOOK_SECONDS)
    except TimeoutError:
        return


async def _always() -> bool:
    return True


def _reading(tenant: str, topics: Sequence[str]) -> Callable[[WorkerState], Mapping[str, str]]:
    def ids(kind: str) -> list[UUID]:
        return [UUID(topic.removeprefix(kind)) for topic in topics if topic.startswith(kind)]

    watched = Watched("now" in topics, ids("run:"), ids("job:"))

    def read(state: WorkerState) -> Mapping[str, str]:
        with state.connection(tenant).snapshot() as reading:
            return read_pulses(reading, tenant, watched)

    return read
