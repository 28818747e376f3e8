"""Claim runs in one transaction.

A run that is not claimed here needs nothing more: it is in the table, and the sweep of an executor that can run it
finds it.

If the answer to a claim's COMMIT is lost, the claimed rows are read back under this executor's id until the database
answers. An attempt that is claimed and does not run would be found only when the lease ends.

A run that would replace the active run of its job, while another transaction has that row locked, is tried once more
0.05 s later: usually the active run was about to end. After that the sweep finds it, within seconds.
"""

import logging
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NoReturn
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.executor.handler_services import REFUSED_ALIKE
from tidewheel.executor.lease import ENDLESS, Lease
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import CommitUnknown, Conn, RowsLocked, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.fallbacks import Step, work
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Backoff, Shutdown
from tidewheel.transitions.claim import (
    Claim,
    Claimed,
    Started,
    claim_keyed,
    claim_runs,
    claim_uniform,
    contest_runs,
    read_claims,
    share_old_claims,
    split_by_places,
)
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.requeue import append_started
from tidewheel.transitions.run_keys import LimitedTenants

_LOG = logging.getLogger("tidewheel.executor")

_LOCK_LEASE_FOR_CLAIM = Statements("tidewheel.executor")["lock_lease_for_claim"]

_LOCKED_SECONDS = 0.05  # until the next try of a row that another transaction has locked
_HELD_SECONDS = 5.0  # for so long a row that another transaction held is left out of the statement for all
_ALONE_SECONDS = 1.0  # of claims one by one: runs that they start wait for the last of them
_FAILED_SECONDS = 60.0  # for so long a run whose claim failed alone is left out: its row may be corrected by then


class LeaseLost(Unavailable):
    """A reaper has ended this executor's lease; the heartbeat registers it again."""


class Claimer:
    """Claims runs for one thread, over that thread's session."""

    def __init__(
        self,
        session: Session,
        installation: Installation,
        executor_id: UUID,
        stop: Shutdown,
        *,
        lease_lost: Callable[[], None],
        notify: Callable[[Channel], None],
        lease: Callable[[], Lease] = lambda: ENDLESS,
    ) -> None:
        self._session, self._installation = session, installation
        self._executor_id, self._stop, self._lease_lost, self._notify = executor_id, stop, lease_lost, notify
        self._read_lease, self.lease = lease, lease()
        self._limited = LimitedTenants()
        self._held: dict[UUID, float] = {}  # rows that another transaction held, and until when to expect that
        self._failed: dict[UUID, float] = {}  # runs whose claim failed alone, and until when they are left out

    def claim_in_parts(self, claims: Sequence[Claim], *, source: str) -> Iterator[Sequence[Started]]:
        """Claim a batch: first the runs that need no place of a key, then the others.

        A claim of a hot key waits for the transactions that hold the key's row. The others must start meanwhile: so the
        next part is claimed when the caller has started the runs of the one before.
        """
        free, keyed = split_by_places(claims, self._limited.known)
        if not (free and keyed):
            yield self.claim(claims, source=source).started
            return
        yield self.claim(free, source=source).started
        try:
            started = self.claim(keyed, source=source).started
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - as in `_log_left`
            _log_left(keyed, error)
            return
        yield started

    def claim(self, claims: Sequence[Claim], *, source: str) -> Claimed:
        """Claim a batch: runs that are not claimed are lost, buffered behind their job's active run, or left.

        The source is `message` or `sweep`, for the metrics.

        Raises:
            Unavailable: Nothing was claimed.
        """
        # Read before the claim: a process that is stopped inside it may have lost the runs when it goes on.
        self.lease = lease = self._read_lease()
        claimed = self._claim_all(claims)
        if claimed.overlaps.undecided:
            left = [claim for claim in claims if claim.run_id in claimed.overlaps.undecided]
            claimed.started = claimed.started + self._claim_again(left)
        if self.lease is not lease:
            # Some were read back under another lease. The others were claimed under one that may be over.
            claimed.started = self._read_back(claims, claimed.started)
        metrics.count("claims", len(claimed.started), "won", source)
        metrics.count("claims", len(claims) - len(claimed.started), "lost", source)
        return claimed

    def left_out(self) -> Collection[UUID]:
        """Return the runs that were left out within the last minute."""
        now = monotonic_seconds()
        self._failed = {run_id: until for run_id, until in self._failed.items() if until > now}
        return self._failed.keys()

    def leave_out(self, run_id: UUID) -> None:
        """Claim a run no more for a minute, whose row or message cannot be read."""
        self._failed[run_id] = monotonic_seconds() + _FAILED_SECONDS

    def close(self) -> None:
        """Close its session; called by the thread that claims, when it ends."""
        self._session.close()

    def _claim_all(self, claims: Sequence[Claim]) -> Claimed:
        """Claim what one statement can claim; then decide about the rest, in a transaction of its own.

        After an error of a run, such as a row that cannot be read, the runs are claimed one by one.
        """
        now = monotonic_seconds()
        self._held = {run_id: until for run_id, until in self._held.items() if until > now}
        if self._failed:
            left = self.left_out()
            claims = [claim for claim in claims if claim.run_id not in left]
        if not claims:
            return Claimed()
        locked = False
        free = [claim for claim in claims if claim.run_id not in self._held] if self._held else claims
        try:
            claimed = self._claim(free, self._uniform)
        except RowsLocked:
            claimed, locked = Claimed(), True
        except (Unavailable, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - the fault of one run stops no other
            return self._claim_each(claims, error)
        passed = len(claims) if locked else len(claims) - len(free)
        work.count(Step.CLAIM, passed, fallback=True)
        work.count(Step.CLAIM, len(claims) - passed)
        rest = [claim for claim in _without(claims, claimed.started) if claim.run_id not in claimed.waiting]
        if not rest:
            return claimed
        try:
            # Who has just met a locked row does not wait for it once more.
            decided = self._claim_contested(rest, waits=not passed)
        except MemoryError:
            raise
        except Exception as error:
            if claimed.started:
                _log_left(rest, error)
                return claimed
            if isinstance(error, Unavailable):
                raise
            decided = self._claim_each(rest, error)
        if locked:
            until = now + _HELD_SECONDS
            self._held |= {claim.run_id: until for claim in _without(rest, decided.started)}
        decided.started = claimed.started + decided.started
        return decided

    def _uniform(self, connection: Conn, claims: Sequence[Claim]) -> Claimed:
        limited = self._limited.read(connection)
        free, keyed = split_by_places(claims, limited)
        started = claim_uniform(connection, free, executor_id=self._executor_id)
        if not keyed:
            return Claimed(started)
        # Last, because it locks keys.
        claimed = claim_keyed(connection, self._installation, keyed, executor_id=self._executor_id, limited=limited)
        claimed.started = started + claimed.started
        return claimed

    def _decide(self, connection: Conn, claims: Sequence[Claim]) -> Claimed:
        limited = self._limited.read(connection)
        return claim_runs(
            connection, self._installation, claims, executor_id=self._executor_id, contested=True, limited=limited
        )

    def _claim_contested(self, claims: Sequence[Claim], *, waits: bool = True) -> Claimed:
        with self._session.transaction() as connection:
            claims = contest_runs(connection, claims, waits=waits)
        return self._claim(claims, self._decide) if claims else Claimed()

    def _claim_each(self, claims: Sequence[Claim], error: Exception) -> Claimed:
        """Claim runs one by one for a second after an error of them all; the rest is left to the sweep.

        Raises:
            Exception: This error: the first runs fail alike, so it is none of a row.
        """
        _LOG.warning("claiming %d runs failed (%s); this executor claims them one by one", len(claims), error)
        work.count(Step.CLAIM, len(claims), fallback=True)
        found, failed, ends_at = Claimed(), list[Claim](), monotonic_seconds() + _ALONE_SECONDS
        for number, claim in enumerate(random.sample(claims, len(claims))):
            if monotonic_seconds() >= ends_at:
                _LOG.warning("%d runs are left to the sweep", len(claims) - number)
                break
            try:
                one = self._claim_contested([claim])
            except Unavailable as unavailable:
                _log_left([claim], unavailable)
            except MemoryError:
                raise  # of this process, which ends
            except Exception as failure:
                failed.append(claim)
                if len(failed) == number + 1 == REFUSED_ALIKE:
                    raise error from failure
                text = "this executor cannot claim run %s (%s); it leaves the run out for a minute"
                _LOG.error(text, claim.run_id, failure, extra={"run_id": str(claim.run_id)})
            else:
                found.started += one.started
                found.overlaps.undecided |= one.overlaps.undecided
        for claim in failed:
            self.leave_out(claim.run_id)
        # A later claim may have replaced a run of an earlier one, which no handler has seen yet.
        if found.started:
            found.started = self._read_back(claims, found.started)
        return found

    def _claim(self, claims: Sequence[Claim], write: Callable[[Conn, Sequence[Claim]], Claimed]) -> Claimed:
        if self.lease.is_over():
            self._refuse_without_lease()
        claimed = Claimed()
        try:
            with self._session.transaction() as connection:
                self._lock_lease(connection)
                claimed = write(connection, claims)
                append_started(connection, self._installation, claimed.started, self._executor_id)
                failpoint("claim.before_commit")
        except CommitUnknown as error:
            # Notified although the commit is uncertain: a needless wake-up costs less than a late grace period.
            self._notify_executors(claimed)
            # Only runs that were started here: another thread of this executor may have claimed the others before.
            _LOG.warning("the reply to a claim's COMMIT was lost (%s); the executor reads the claim back", error)
            return Claimed(started=self._read_back(claims, claimed.started))
        except LeaseLost:
            self._lease_lost()
            raise
        failpoint("claim.after_commit")
        self._notify_executors(claimed)
        return claimed

    def _refuse_without_lease(self) -> NoReturn:
        """Refuse to claim without a recent heartbeat: another executor may have taken this one for lost."""
        self._lease_lost()
        raise Unavailable("this executor's heartbeat is overdue; claims wait for the next heartbeat")

    def _claim_again(self, claims: Sequence[Claim]) -> list[Started]:
        self._stop.wait(_LOCKED_SECONDS)
        try:
            return self._claim_contested(claims).started
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - as in `_log_left`
            _log_left(claims, error)
            return []

    def _notify_executors(self, claimed: Claimed) -> None:
        if claimed.signalled:
            self._notify(Channel.SIGNALS)
        if claimed.promoted:
            self._notify(Channel.OUTBOX)

    def _lock_lease(self, connection: Conn) -> None:
        row = connection.execute(_LOCK_LEASE_FOR_CLAIM, {"executor_id": self._executor_id}).fetchone()
        if row is None:
            message = "this executor's lease was ended after its heartbeats stopped; the executor registers again"
            raise LeaseLost(message)
        if row[0] is not True:
            share_old_claims(connection)

    def _read_back(self, claims: Sequence[Claim], started: Sequence[Started]) -> list[Started]:
        """Return those of the started runs that are still this executor's."""
        ids = {one.run_id for one in started}
        by_id = {claim.run_id: claim for claim in claims if claim.run_id in ids}
        backoff = Backoff(self._stop, "reading back a claim")
        while True:
            try:
                # Runs that are still this executor's belong to its present lease, also if that of their claim is over.
                self.lease = self._read_lease()
                if self.lease.is_over():
                    self._refuse_without_lease()
                with self._session.transaction() as connection:
                    found = read_claims(connection, list(by_id.values()), executor_id=self._executor_id)
            except Unavailable as error:
                # During a shutdown without a database the lease ends, and the runs go back uncounted.
                if self._stop.requested():
                    raise
                backoff.wait(error)
                continue
            backoff.reset()
            return [one._replace(claimed_from=by_id[one.run_id].claimed_from) for one in found]


def _log_left(claims: Sequence[Claim], error: Exception) -> None:
    """Log an error of a second transaction, which does not stop the runs that the first one has claimed."""
    expected = isinstance(error, Unavailable)
    level = logging.INFO if expected else logging.ERROR
    _LOG.log(level, "%d runs are left to the sweep: %s", len(claims), error, exc_info=not expected)


def _without(claims: Sequence[Claim], started: Sequence[Started]) -> list[Claim]:
    done = {one.run_id.int for one in started}
    return [claim for claim in claims if claim.run_id.int not in done]
