"""Dead letters by the client: reading, redriving and purging them.

Each letter is redriven once: what is made of it is written in the transaction that locks and marks it. So whoever is
interrupted simply asks again, and so does whoever was refused and has mended what was wrong. A run that is redriven and
fails again is a new letter, which is left for another time.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Unpack

from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.connection import Door
from tidewheel.control.reads.dead_letters import (
    COUNTED,
    DeadLetterDetail,
    DeadLetterPage,
    DeadLetterSummary,
    Letter,
    LetterFilter,
    LetterKind,
    count_letters,
    list_dead_letters,
    oldest_dead_letters,
    show_dead_letter,
    walk_letters,
)
from tidewheel.errors import FieldError
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.locks import read_now
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.transitions.dead_letters import lock_dead_runs, purge, republish
from tidewheel.transitions.installation import Installation

_AT_ONCE = 50  # letters redriven in one transaction: some tens of milliseconds
_TICKS = 10.0  # a second of a given rate is cut into so many, as long as there is a letter for each
_PURGED_AT_ONCE = 1000
_SHOWN = 10  # of a dry run
_KEPT = 100  # refusals that are told one by one

Tell = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class RefusedLetter:
    """A letter that could not be redriven.

    Args:
        id: Its id.
        errors: Why.
    """

    id: int
    errors: tuple[FieldError, ...]


@dataclass(slots=True)
class Redriven:
    """What was redriven.

    Args:
        wanted: How many letters the filter named that had not been redriven before; those counted are 10,000 at most.
        at_least: Whether there were more.
        first: Of a dry run: the first ten.
        redriven: How many were redriven.
        refused: How many could not be.
        refusals: The first hundred of these.
    """

    wanted: int
    at_least: bool
    first: tuple[DeadLetterSummary, ...] = ()
    redriven: int = 0
    refused: int = 0
    refusals: list[RefusedLetter] = field(default_factory=list[RefusedLetter])


@dataclass(frozen=True, slots=True)
class Purged:
    """What was purged.

    Args:
        wanted: How many letters the filter named; those counted are 10,000 at most.
        at_least: Whether there were more.
        first: Of a dry run: the first ten.
        purged: How many were removed.
    """

    wanted: int
    at_least: bool
    first: tuple[DeadLetterSummary, ...] = ()
    purged: int = 0


class LetterDoor(Door):
    """The part of the client that is about dead letters."""

    def dead_letters(
        self, *, after: int | None = None, most: int = 50, **which: Unpack[LetterFilter]
    ) -> DeadLetterPage:
        """A page of dead letters, the newest first, after one of them where `after` is given.

        Raises:
            Refused: A filter does not fit, or there is no such job.
        """
        with self._reading() as connection:
            return list_dead_letters(connection, self._tenant, which, after=after, most=most)

    def dead_letter(self, number: int) -> DeadLetterDetail:
        """One dead letter, with its run's attempts and retries.

        Raises:
            UnknownDeadLetter: There is none of this id in this tenant.
        """
        with self._reading() as connection:
            return show_dead_letter(connection, self._tenant, number)

    def redrive(
        self,
        *,
        rate: float | None = None,
        dry_run: bool = False,
        tell: Tell | None = None,
        **which: Unpack[LetterFilter],
    ) -> Redriven:
        """Make new runs of dead letters, and put messages that were no requests on their topic again; oldest first.

        What was redriven before is passed over, so that an interrupted call can be repeated.

        Args:
            rate: How many a second at most.
            dry_run: Only count them, and show the first ten.
            tell: Called with how many are done with, after each few.
            which: Those that are wanted.

        Raises:
            Refused: A filter does not fit, or there is no such job. A single letter that cannot be redriven is told in
                the answer.
            Unavailable: The database does not answer; repeat the call to go on.
        """
        which = {**which, "redriven": False}
        counted, first, newest = self._look(which)
        done = Redriven(*_told(counted))
        if dry_run or newest is None:
            done.first = first
            return done
        # What is redriven now and fails again is made later than any of these.
        which["until"] = newest.created_at
        size = _AT_ONCE if rate is None else max(1, min(_AT_ONCE, int(rate / _TICKS)))
        begun, handled = monotonic_seconds(), 0
        for letters in self._walk(which, size):
            if rate is not None:
                Event().wait(max(begun + handled / rate - monotonic_seconds(), 0.0))
            self._redrive(letters, done)
            handled += len(letters)
            if tell is not None:
                tell(handled)
        return done

    def purge_dead_letters(
        self, *, dry_run: bool = False, tell: Tell | None = None, **which: Unpack[LetterFilter]
    ) -> Purged:
        """Remove dead letters; the runs themselves stay as long as they are kept.

        Args:
            dry_run: Only count them, and show the first ten.
            tell: Called with how many are done with, after each few.
            which: Those that are meant.

        Raises:
            Refused: A filter does not fit, or there is no such job.
            Unavailable: The database does not answer; repeat the call to go on.
        """
        counted, first, newest = self._look(which)
        if dry_run or newest is None:
            return Purged(*_told(counted), first=first)
        which = {**which, "until": newest.created_at}
        purged = 0
        for letters in self._walk(which, _PURGED_AT_ONCE):
            ids = [letter.id for letter in letters]
            purged += self._write(partial(_purge, ids))
            if tell is not None:
                tell(purged)
        return Purged(*_told(counted), purged=purged)

    def _look(self, which: LetterFilter) -> tuple[int, tuple[DeadLetterSummary, ...], DeadLetterSummary | None]:
        """How many there are, the first ten, and the newest."""
        with self._reading() as connection:
            for number in which.get("ids") or ():
                show_dead_letter(connection, self._tenant, number)
            newest = list_dead_letters(connection, self._tenant, which, most=1).letters
            return (
                count_letters(connection, self._tenant, which),
                oldest_dead_letters(connection, self._tenant, which, most=_SHOWN),
                newest[0] if newest else None,
            )

    def _walk(self, which: LetterFilter, most: int) -> Generator[list[Letter]]:
        last: Letter | None = None
        while True:
            with self._reading() as connection:
                letters = walk_letters(connection, self._tenant, which, after=last, most=most)
            if not letters:
                return
            last = letters[-1]
            yield letters

    def _redrive(self, letters: Sequence[Letter], done: Redriven) -> None:
        runs = [letter.id for letter in letters if letter.kind == LetterKind.RUN]
        if runs:
            self._retry(runs, done)
        messages = [letter.id for letter in letters if letter.kind == LetterKind.MESSAGE]
        if messages:
            done.redriven += len(self._send_again(messages))

    def _retry(self, ids: Sequence[int], done: Redriven) -> None:
        # Told again after a lost COMMIT, the letters say themselves what was made of them.
        answered = self._write(partial(_retry, self._installation, self._tenant, ids))
        for channel in (Channel.TIMERS, Channel.OUTBOX):
            self._notifier.notify(channel)
        for number, reply in answered:
            if reply is None or reply.status is ReplyStatus.ACCEPTED:
                done.redriven += 1
                continue
            done.refused += 1
            if len(done.refusals) < _KEPT:
                errors = tuple(FieldError(error.path, error.problem, error.remedy) for error in reply.errors)
                done.refusals.append(RefusedLetter(number, errors))

    def _send_again(self, ids: Sequence[int]) -> set[int]:
        sent = self._write(lambda connection: republish(connection, self._installation, ids, read_now(connection)))
        self._notifier.notify(Channel.OUTBOX)
        return sent


def _told(counted: int) -> tuple[int, bool]:
    return min(counted, COUNTED), counted > COUNTED


def _retry(
    installation: Installation, tenant: str, ids: Sequence[int], connection: Conn
) -> list[tuple[int, Reply | None]]:
    """Make new runs of those of which nobody has made one yet; the answers, none for the others.

    Without a request_id: it would repeat a refusal for as long as answers are kept, whatever was mended meanwhile. The
    letters' locks see to it that each becomes one run.
    """
    letters = lock_dead_runs(connection, ids)
    wanted = [letter for letter in letters if letter.redriven_run_id is None]
    documents = ({"type": "run.retry", "tenant": tenant, "run_id": str(letter.run_id)} for letter in wanted)
    replies = apply_requests(
        connection, installation, [ReceivedRequest(parse_request(document)) for document in documents]
    )
    answers = {letter.id: reply for letter, reply in zip(wanted, replies, strict=True)}
    return [(letter.id, answers.get(letter.id)) for letter in letters]


def _purge(ids: Sequence[int], connection: Conn) -> int:
    return purge(connection, ids)
