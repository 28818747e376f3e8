"""Kinds of bulk work: what a batch of each finds and changes, in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from tidewheel.errors import FieldError, Refused
from tidewheel.jobs.values import parse_timestamp
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.dead_letters import (
    DeadLetterRef,
    LetterScan,
    lock_dead_letters,
    purge,
    republish,
    scan_dead_letters,
)
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.manual_retry import (
    RetryRequest,
    find_retried,
    retry_runs,
    scan_failed_runs,
)
from tidewheel.transitions.works import Cursor, OpenWork, Rejections

_SQL = Statements("tidewheel.scheduler")
_LOCK_FAILED_RUNS = _SQL["lock_failed_runs"]
_LOCK_DEAD_LETTERS_OF = _SQL["lock_dead_letters_of"]

T = TypeVar("T")

_LOOKED_AT = 2000  # dead letters of one batch: some milliseconds, where an error is rare
_LETTER_COLUMNS = ("ids", "kind", "job_id", "status", "error_type", "queue", "lane", "since", "until", "redriven")


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """The next things of a work by their ids, and the cursor after them; None if nothing was looked at."""

    things: Mapping[int | str, T]
    cursor: Cursor | None
    is_last: bool


class Kind(Protocol[T]):
    """A kind of work: `batch` is its largest batch, `remedy` what helps a thing whose own data fail."""

    batch: int
    remedy: str

    def next(self, connection: Conn, work: OpenWork, limit: int) -> Batch[T] | None:
        """Find the next things, and lock them if that is needed; None if another transaction holds the first."""
        ...

    def apply(
        self, connection: Conn, installation: Installation, work: OpenWork, batch: Batch[T]
    ) -> tuple[int, Rejections]:
        """Change them; return how many it has changed, and the errors of the rejected ones."""
        ...


class Redrive:
    """New runs of dead runs, dead messages published again.

    A batch ends before a dead letter that another transaction holds, and the next one begins there: it may roll back.
    """

    batch = 50  # of one transaction: some tens of milliseconds
    remedy = "correct the job, or purge this dead letter"

    def next(self, connection: Conn, work: OpenWork, limit: int) -> Batch[DeadLetterRef] | None:
        """Find and lock the next dead letters."""
        found = _scan(connection, work, limit)
        numbers = [each.id for each in found.letters]
        locked = lock_dead_letters(connection, numbers) if numbers else set[int]()
        letters = list(takewhile(lambda each: each.id in locked, found.letters))
        if numbers and not letters:
            return None
        return _batch(letters, found.last if len(letters) == len(numbers) else letters[-1])

    def apply(
        self, connection: Conn, installation: Installation, work: OpenWork, batch: Batch[DeadLetterRef]
    ) -> tuple[int, Rejections]:
        """Redrive them."""
        letters = batch.things.values()
        runs = [(each.id, each.run_id) for each in letters if each.run_id is not None]
        done = retry_runs(connection, installation, [RetryRequest(work.tenant, run_id) for _, run_id in runs])
        rejected: dict[int | str, Sequence[FieldError]] = {
            number: each.errors for (number, _), each in zip(runs, done, strict=True) if isinstance(each, Refused)
        }
        redriven = len(runs) - len(rejected)
        messages = [each.id for each in letters if each.run_id is None]
        if messages:
            published, cut = republish(connection, installation, messages, read_now(connection))
            redriven += published
            for number, size in cut.items():
                problem = f"the message had {size} bytes, of which only the first are stored"
                rejected[number] = (FieldError("id", problem, "send a shorter message"),)
        return redriven, rejected


class Purge:
    """Deletions of dead letters.

    A batch waits for a redrive under way, and then leaves what no longer fits the filter by redrives.
    """

    batch = 1000  # of one transaction: some tens of milliseconds
    remedy = "give ids or a filter without this dead letter"

    def next(self, connection: Conn, work: OpenWork, limit: int) -> Batch[DeadLetterRef]:
        """Find the next dead letters."""
        found = _scan(connection, work, limit)
        return _batch(found.letters, found.last)

    def apply(
        self, connection: Conn, installation: Installation, work: OpenWork, batch: Batch[DeadLetterRef]
    ) -> tuple[int, Rejections]:
        """Delete them."""
        del installation
        return purge(connection, [each.id for each in batch.things.values()], redriven=work.filter.get("redriven")), {}


class Retry:
    """New runs of failed and timed-out ones. A run that has a retry when its turn comes is left out.

    A batch locks the failed runs and their dead letters, which excludes another retry and a redrive of the same runs.
    """

    batch = 50  # as of a redrive
    remedy = "correct the job, or leave its runs out by the filter"

    def next(self, connection: Conn, work: OpenWork, limit: int) -> Batch[UUID]:
        """Find the next failed runs."""
        until, after = parse_timestamp(work.filter["until"]), UUID(work.cursor["id"])
        found, last = scan_failed_runs(
            connection, work.tenant, work.filter, until=until, ended_until=work.created_at, after=after, limit=limit,
            look=_LOOKED_AT,
        )  # fmt: skip
        reached = last or next(reversed(found), None)
        cursor = None if reached is None else {"id": str(reached)}
        return Batch({str(each): each for each in found}, cursor, is_last=last is None)

    def apply(
        self, connection: Conn, installation: Installation, work: OpenWork, batch: Batch[UUID]
    ) -> tuple[int, Rejections]:
        """Retry them."""
        locked: dict[str, object] = {"run_ids": uuids(batch.things.values())}
        connection.execute(_LOCK_FAILED_RUNS, locked)
        connection.execute(_LOCK_DEAD_LETTERS_OF, locked)
        retried = find_retried(connection, batch.things.values())
        new = [each for each in batch.things.values() if each not in retried]
        requests = [RetryRequest(work.tenant, each) for each in new]
        done = retry_runs(connection, installation, requests, as_of=work.filter["versions"] == "as_of")
        rejected: dict[int | str, Sequence[FieldError]] = {
            str(run_id): each.errors for run_id, each in zip(new, done, strict=True) if isinstance(each, Refused)
        }
        return len(new) - len(rejected), rejected


def _scan(connection: Conn, work: OpenWork, limit: int) -> LetterScan:
    columns = {name: work.filter.get(name) for name in _LETTER_COLUMNS}
    place = {"after_at": work.cursor["at"], "after_id": work.cursor["id"]}
    return scan_dead_letters(
        connection, {**columns, **place, "tenant": work.tenant, "limit": limit, "look": _LOOKED_AT}
    )


def _batch(letters: Sequence[DeadLetterRef], last: DeadLetterRef | None) -> Batch[DeadLetterRef]:
    """Return a batch up to the dead letter after which the walk goes on; None at its end."""
    reached = last or next(reversed(letters), None)
    cursor = None if reached is None else {"at": reached.created_at.isoformat(), "id": reached.id}
    return Batch({each.id: each for each in letters}, cursor, is_last=last is None)


KINDS: Mapping[str, Kind[Any]] = MappingProxyType({"redrive": Redrive(), "purge": Purge(), "retry": Retry()})
