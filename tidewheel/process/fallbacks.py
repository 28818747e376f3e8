"""Count the work that fall-backs do in place of the usual paths, and warn when that is much.

A fall-back that works hides the fault behind it: runs that no message brings start by the sweep, a second late, and
nothing else shows that a topic is dead. Services count in memory. `Presence` passes the counts on every five seconds:
to the metric `work`, to the log, and to the row of the process, where `doctor` reads them.
"""

import logging
import threading
from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from tidewheel.process.metrics import metrics

_LOG = logging.getLogger("tidewheel.fallbacks")

WINDOW_SECONDS: Final = 60.0
"""The time whose work is compared: a fall-back of a few seconds is what it is there for."""

_SHARE = 5  # a fall-back is a fault when it does one part in so many of the work
_LEAST = 10  # pieces of work by it, below which that says nothing
_LEAST_OF_ALL = 3  # the same where it does all the work


class Step(StrEnum):
    """A step of the pipeline with a fall-back."""

    DELIVER = "deliver"
    CLAIM = "claim"
    FINISH = "finish"
    RECORD = "record"
    FIRE = "fire"
    READ = "read"
    APPLY = "apply"


_LOCKS = "find the session that keeps rows of job_runs locked: `SELECT * FROM pg_stat_activity ORDER BY xact_start`"


class FallBack(NamedTuple):
    """A fall-back in words, and the remedy of its cause."""

    text: str
    remedy: str


FALLBACKS: Final[Mapping[Step, FallBack]] = MappingProxyType(
    {
        Step.DELIVER: FallBack(
            "the sweep starts runs whose messages did not arrive",
            "check that a relay runs, then run `tidewheel admin topics apply --queues {queue}`; if a topic was deleted"
            " and created again, restart the queue's executors and the relays",
        ),
        Step.CLAIM: FallBack("other transactions lock runs that executors claim", _LOCKS),
        Step.FINISH: FallBack("other transactions lock runs that end", _LOCKS),
        Step.RECORD: FallBack(
            "PostgreSQL refuses batches of ends, and executors record them in parts",
            "read the executors' log, which names the error of PostgreSQL",
        ),
        Step.FIRE: FallBack(
            "batches of jobs fail, and the schedulers fire the jobs one by one",
            "read the schedulers' log, which names the error and the jobs",
        ),
        Step.READ: FallBack(
            "messages are committed late, and a scan finds them",
            "find the transactions that commit more than a second after enqueueing",
        ),
        Step.APPLY: FallBack(
            "batches of requests fail, and intake applies the requests one by one",
            "read the intakes' log, which names the error and the requests",
        ),
    }
)


class Share(NamedTuple):
    """The work of one step, of one queue where the step has one, in the window."""

    step: Step
    queue: str
    usual: int
    fallback: int

    @property
    def is_fault(self) -> bool:
        """True if the fall-back does a fifth of the work, or all of it."""
        if not self.usual:
            return self.fallback >= _LEAST_OF_ALL
        return self.fallback >= _LEAST and self.fallback * _SHARE >= self.usual + self.fallback

    @property
    def text(self) -> str:
        """The fall-back in words."""
        text = FALLBACKS[self.step].text
        return f"queue {self.queue}: {text}" if self.queue else text

    @property
    def counts(self) -> str:
        """The work of the window, in words."""
        return f"{self.fallback:,} of {self.usual + self.fallback:,} within a minute"

    @property
    def remedy(self) -> str:
        """The remedy of the cause."""
        return FALLBACKS[self.step].remedy.format(queue=self.queue)


_Key = tuple[Step, str]
_Counts = dict[_Key, tuple[int, int]]


class Work:
    """The counts of this process."""

    def __init__(self, seconds: float = WINDOW_SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._counts: dict[_Key, list[int]] = {}
        self._earlier: deque[tuple[float, _Counts]] = deque()
        self._faults: set[_Key] = set()

    def count(self, step: Step, number: int, *, fallback: bool = False, queue: str = "") -> None:
        """Count pieces of work; from any thread."""
        if number:
            with self._lock:
                self._counts.setdefault((step, queue), [0, 0])[fallback] += number

    def pass_on(self, now: float) -> list[Share]:
        """Add to the metric, log what has become a fault, and return the shares of each whole window."""
        with self._lock:
            counts: _Counts = {key: (usual, fallback) for key, (usual, fallback) in self._counts.items()}
        before = self._earlier[-1][1] if self._earlier else {}
        for share in _since(counts, before):
            metrics.count("work", share.usual, share.step, share.queue, "usual")
            metrics.count("work", share.fallback, share.step, share.queue, "fallback")
        self._earlier.append((now, counts))
        while len(self._earlier) > 1 and self._earlier[1][0] <= now - self._seconds:
            self._earlier.popleft()
        began, first = self._earlier[0]
        if began > now - self._seconds:
            return []
        shares = _since(counts, first)
        self._log(shares)
        return shares

    def _log(self, shares: list[Share]) -> None:
        faults = {(share.step, share.queue): share for share in shares if share.is_fault}
        for key, share in faults.items():
            if key not in self._faults:
                _LOG.warning("%s, %s; %s", share.text, share.counts, share.remedy)
        for step, queue in self._faults - faults.keys():
            _LOG.info("no longer: %s", Share(step, queue, 0, 0).text)
        self._faults = set(faults)


def _since(counts: _Counts, before: _Counts) -> list[Share]:
    """Return the work since an earlier count."""
    shares: list[Share] = []
    for key, (usual, fallback) in counts.items():
        usual_before, fallback_before = before.get(key, (0, 0))
        if (usual, fallback) != (usual_before, fallback_before):
            shares.append(Share(*key, usual - usual_before, fallback - fallback_before))
    return shares


work: Final = Work()
"""The counts of this process."""
