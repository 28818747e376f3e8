"""One way to ask: what every part of `Client` goes through.

A request is applied by the code that intake uses, in a transaction of its own, straight on Tidewheel's database.
"""

import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.enqueue import raise_if_rejected
from tidewheel.errors import Unavailable
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.lock_wait import RowLocked
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.postgres.notify import Channel, Notifier
from tidewheel.postgres.session import CommitUnknown, Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.generated.records import Reply
from tidewheel.settings import Connections
from tidewheel.transitions.installation import read_installation

_SET_REPEATABLE_READ = Statements("tidewheel.control")["set_repeatable_read"]

T = TypeVar("T")

_LOG = logging.getLogger("tidewheel.client")

_TRIES = 5
_BUSY_SECONDS = 10.0  # for what a user's own transaction has in hand; after that the caller decides
_MAKES_RUNS = ("job.trigger", "job.backfill", "run.retry")


class Door:
    """A connection to Tidewheel for one thread; a context manager."""

    def __init__(self, database_url: str | None = None, *, tenant: str = "default") -> None:
        settings = Connections.load(database_url=database_url)
        self._url = settings.database()
        self._tenant = tenant
        self._session = Session(self._url, "tidewheel-client")
        with self._session.transaction() as connection:
            self._installation = read_installation(connection, settings)
        self._notifier = Notifier(self._url, "tidewheel-client-notify")
        self._never = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._notifier.close()
        self._session.close()

    @contextmanager
    def _reading(self) -> Generator[Conn]:
        with self._session.transaction() as connection:
            connection.execute(_SET_REPEATABLE_READ)
            yield connection

    def _ask(self, document: Mapping[str, object], request_id: str | None = None) -> Reply:
        """Ask for something; what is None is left out."""
        [reply] = self._ask_all([{**document, "request_id": request_id}])
        raise_if_rejected(reply)
        return reply

    def _ask_all(self, documents: Sequence[Mapping[str, object]]) -> list[Reply]:
        """Ask for several things in one transaction; the answers in their order, refusals among them."""
        batch = [
            ReceivedRequest(parse_request(without_none({**document, "tenant": self._tenant}))) for document in documents
        ]
        replies = self._apply(batch)
        for channel in (Channel.TIMERS, Channel.OUTBOX, Channel.SIGNALS):
            self._notifier.notify(channel)
        return replies

    def _apply(self, batch: Sequence[ReceivedRequest]) -> list[Reply]:
        # What nothing names could make its runs a second time.
        unnamed = any(one.request.request_id is None and one.request.type in _MAKES_RUNS for one in batch)
        return self._write(lambda connection: apply_requests(connection, self._installation, batch), once=unnamed)

    def _write(self, work: Callable[[Conn], T], *, once: bool = False) -> T:
        """Write in a transaction, tried again while the database does not answer; `once`: not where it may stand."""
        until = monotonic_seconds() + _BUSY_SECONDS
        tries = 1
        while True:
            try:
                return self._write_once(work)
            except CommitUnknown:
                if once or tries >= _TRIES:
                    raise
            except RowLocked:
                # It was waited for a moment already, with nothing in hand in between.
                if monotonic_seconds() >= until:
                    raise
                continue
            except Unavailable as error:
                if tries >= _TRIES:
                    raise
                _LOG.info("trying again: %s", error)
            tries += 1

    def _write_once(self, work: Callable[[Conn], T]) -> T:
        with self._session.transaction() as connection:
            return work(connection)


def without_none(document: Mapping[str, object]) -> dict[str, object]:
    """A document without what was not said."""
    return {name: value for name, value in document.items() if value is not None}
