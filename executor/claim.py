"""Claiming a batch in one transaction, and what follows when the answer to its COMMIT is lost.

The rows are known before COMMIT is sent; after a lost one they are read back under this executor's id until the
database answers, because an attempt that stands and is not run would be found only when the lease ends.

A run that would replace the holder of its job's turn, while somebody has the holder's row, is tried once more a moment
later: mostly the holder was about to end. After that the sweep brings it, within seconds.
"""

import logging
from collections.abc import Callable, Sequence
from uuid import UUID

from tidewheel.errors import Unavailable
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import CommitUnknown, Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Backoff, Shutdown
from tidewheel.transitions.claim import Claim, Claimed, Started, claim_runs, read_claims
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.executor")

_HOLD_LEASE = Statements("tidewheel.executor")["hold_lease"]

_BUSY_SECONDS = 0.05  # a row that somebody else has locked is looked at again this soon


class LeaseLost(Unavailable):
    """This executor's lease was ended by a reaper; its heartbeat enters it again."""


class Claimer:
    """Claims for one thread, over that thread's session."""

    def __init__(
        self,
        session: Session,
        installation: Installation,
        executor_id: UUID,
        stop: Shutdown,
        *,
        lease_lost: Callable[[], None],
        poke: Callable[[Channel], None],
        silent: Callable[[], bool] = lambda: False,
    ) -> None:
        self._session, self._installation = session, installation
        self._executor_id, self._stop, self._lease_lost, self._poke = executor_id, stop, lease_lost, poke
        self._silent = silent

    def claim(self, claims: Sequence[Claim], *, way: str) -> Claimed:
        """Claim a batch.

        Args:
            claims: The wishes.
            way: `message` or `sweep`, for the metrics.

        Returns:
            What is this executor's now; everything else is lost, waits for its turn, or is left.

        Raises:
            Unavailable: Nothing was claimed.
        """
        claimed = self._claim(claims)
        if claimed.overlaps.undecided:
            left = [claim for claim in claims if claim.run_id in claimed.overlaps.undecided]
            claimed.started = claimed.started + self._once_more(left)
        metrics.count("claims", len(claimed.started), "won", way)
        metrics.count("claims", len(claims) - len(claimed.started), "lost", way)
        return claimed

    def close(self) -> None:
        """Close its session; called by the thread that claims, when it ends."""
        self._session.close()

    def _claim(self, claims: Sequence[Claim]) -> Claimed:
        self._require_heard()
        claimed = Claimed()
        try:
            with self._session.transaction() as connection:
                self._hold_lease(connection)
                claimed = claim_runs(connection, self._installation, claims, executor_id=self._executor_id)
                failpoint("claim.before_commit")
        except CommitUnknown as error:
            # Whom it told is not known either: being woken for nothing costs less than a grace period that begins late.
            self._wake_executors(claimed)
            # Only what was started here: what another thread of this executor has claimed before stands as well.
            started = {one.run_id for one in claimed.started}
            return Claimed(started=self._read_back([claim for claim in claims if claim.run_id in started], error))
        except LeaseLost:
            self._lease_lost()
            raise
        failpoint("claim.after_commit")
        self._wake_executors(claimed)
        return claimed

    def _require_heard(self) -> None:
        """Nothing is claimed in silence, nor begun that was: it would be handed back, for others may have taken it.

        Raises:
            Unavailable: Nobody has heard of this executor for as long as its lease.
        """
        if self._silent():
            self._lease_lost()
            message = "this executor's heartbeat is overdue; nothing is claimed before it is heard again"
            raise Unavailable(message)

    def _once_more(self, claims: Sequence[Claim]) -> list[Started]:
        self._stop.wait(_BUSY_SECONDS)
        try:
            return self._claim(claims).started
        except Unavailable as error:
            # What was claimed before must be begun, whatever becomes of these.
            _LOG.info("%d runs are left to the sweep: %s", len(claims), error)
            return []

    def _wake_executors(self, claimed: Claimed) -> None:
        if claimed.signalled:
            self._poke(Channel.SIGNALS)

    def _hold_lease(self, connection: Conn) -> None:
        if connection.execute(_HOLD_LEASE, {"executor_id": self._executor_id}).fetchone() is None:
            message = "this executor's lease was ended while it was silent; entering again"
            raise LeaseLost(message)

    def _read_back(self, claims: Sequence[Claim], lost: CommitUnknown) -> list[Started]:
        _LOG.warning("the answer to a claim's COMMIT was lost (%s); reading back what stands", lost)
        backoff = Backoff(self._stop, "reading back a claim")
        while True:
            try:
                self._require_heard()
                with self._session.transaction() as connection:
                    standing = read_claims(connection, claims, executor_id=self._executor_id)
            except Unavailable as error:
                # Asked to stop and no database: the lease will end, and the runs go back without charge.
                if self._stop.requested():
                    raise
                backoff.wait(error)
                continue
            backoff.reset()
            return standing
