"""One attempt's work: its target is run, and how that ended is reported; on the event loop."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from tidewheel.clock import monotonic_seconds
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import CANCELLED, NOT_BEGUN, RELEASED, Outcome, failed, from_exception
from tidewheel.executor.runners.runner import Runner
from tidewheel.executor.timeouts import Timeouts
from tidewheel.process.failpoint import failpoint
from tidewheel.runs import AttemptOutcome
from tidewheel.schemas.generated.records import TargetKind

_LOG = logging.getLogger("tidewheel.executor")


class Work:
    """Runs attempts of every kind of target.

    Args:
        runners: By kind.
        grace_seconds: Between telling an attempt that its time is over and fencing it off.
        is_silent: Whether nobody has heard of this executor for as long as its lease.
    """

    def __init__(
        self, runners: Mapping[TargetKind, Runner], *, grace_seconds: float, is_silent: Callable[[], bool]
    ) -> None:
        self._runners, self._grace_seconds, self._is_silent = runners, grace_seconds, is_silent

    def watch(self, attempt: Attempt, task: "asyncio.Task[None]", began: float) -> Timeouts:
        """Let the timeouts of an attempt strike that has a task of its own, and let it be cancelled."""
        attempt.cancel_cooperatively = task.cancel
        return Timeouts(attempt, asyncio.get_running_loop(), began=began, grace_seconds=self._grace_seconds)

    async def run(self, attempt: Attempt) -> None:
        """Run one attempt and report how it ended."""
        if attempt.cancelled.is_set() or self._is_silent():
            # Asked to stop already; or this process stood still since its claim, and others may have taken it for lost.
            attempt.report(CANCELLED if attempt.cancelled.is_set() else NOT_BEGUN)
            return
        failpoint("attempt.before_effect")
        if not attempt.begin():  # it has waited for this loop so long that it was handed on
            return
        if attempt.started.schedule_to_close_at is not None:
            attempt.note_start(monotonic_seconds())
        runner = self._runners.get(attempt.definition.target.kind)
        try:
            outcome = await runner.run(attempt) if runner else _unsupported(attempt)
        except asyncio.CancelledError as error:
            # Asked for by us, or raised by the handler's own code, which is a failure like any other.
            outcome = CANCELLED if attempt.cancelled.is_set() else from_exception(error)
        except BaseException as error:  # noqa: BLE001 - a runner's fault is its attempt's outcome, never the executor's end
            outcome = from_exception(error)
        if attempt.struck is not None and outcome.kind is not AttemptOutcome.SUCCEEDED:
            outcome = attempt.struck
        failpoint("attempt.after_effect")
        if attempt.struck is RELEASED and outcome.kind is not AttemptOutcome.SUCCEEDED:
            hand_back(attempt, RELEASED)
        attempt.report(outcome)


def hand_back(attempt: Attempt, outcome: Outcome) -> None:
    """Report the end of an attempt that this executor can work on no longer."""
    if attempt.report(outcome) and outcome.kind is AttemptOutcome.RELEASED:
        _LOG.info("handed back", extra={"run_id": str(attempt.run_id), "attempt": attempt.started.attempt})


def _unsupported(attempt: Attempt) -> Outcome:
    kind = attempt.definition.target.kind
    return failed("UnsupportedTarget", f"this executor's release has no target {kind}; upgrade it", permanent=True)
