"""Progress of cancellations and works in one form, with their pace over the last half minute.

The rows of bulk work have counts, and no history. A page that is opened first has the rate since the acceptance. Work
that was paused meanwhile has the same rate: so the time left is shown only while it runs. A page that stays open reads
the rows again with each change, so a process remembers for half a minute what it read.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, NamedTuple

from tidewheel.control.console.words import NO_REASON, agreed, counted, number
from tidewheel.control.reads.stored import readable
from tidewheel.jobs.strict_json import as_list
from tidewheel.jobs.values import parse_timestamp
from tidewheel.nouns.operation import participle
from tidewheel.nouns.runs.model import Cancellation
from tidewheel.nouns.works.operations import COUNTED, KINDS, Changes
from tidewheel.nouns.works.operations import Work as StoredWork
from tidewheel.transitions.cancellation import LOOKED_AT

_SPAN = timedelta(seconds=30)
_STALE = 2 * _SPAN  # no page has read it for so long
_TOO_EARLY = timedelta(seconds=5)  # a rate of the first batches says little
_MOST = 500  # works that are remembered


@dataclass(frozen=True, slots=True)
class Work:
    """Bulk work with its progress.

    Args:
        state: `running`, `paused`, `finished`, `cancelled`; of a backfill of a deleted job `ending`.
        gone: How many others took; 0 while that is not known.
        kept: How many a cancelled redrive left as dead letters; 0 while that is not known.
        is_recent: True if that is the rate of the last 30 s, False if it is that since the acceptance.
        stuck: True if it runs, and has done nothing for a minute.
    """

    kind: str
    id: str
    state: str
    about: Sequence[str]
    done: int
    total: int | None
    created_at: datetime
    finished_at: datetime | None = None
    reason: str | None = None
    failed: int = 0
    gone: int = 0
    kept: int = 0
    at_least: bool = False
    rate: float | None = None
    is_recent: bool = False
    left: timedelta | None = None
    stuck: bool = False

    @property
    def words(self) -> Changes:
        """The words of its kind."""
        return KINDS.get(self.kind, Changes("run" if self.kind == "cancellation" else "thing", self.kind))

    @property
    def name(self) -> str:
        """Its kind in words."""
        return f"retry of {self.words.noun}s" if self.words.verb == "retry" else self.kind

    @property
    def participle(self) -> str:
        """The past participle of its verb."""
        return participle(self.words.verb)

    @property
    def noun(self) -> str:
        """The word for the things that it counts, as many as `total`."""
        return f"{self.words.noun}{'' if self.total == 1 else 's'}"

    @property
    def base(self) -> str:
        """The words for the things of `total`, where it may do less than that; else empty."""
        is_done = self.finished_at is not None and self.done == self.total
        return "" if self.kind == "backfill" or self.total is None or is_done else "that matched at its start"

    @property
    def gone_words(self) -> str:
        """Sentences about dead letters or runs that others took, or that are left; empty for none."""
        many, others, ends = counted(self.gone, self.words.noun), self.words.others, self.state == "cancelled"
        if not others:
            them = agreed(self.gone, "itself", "themselves")
            return f"{many} ended before, by {them} or by another request." if self.gone else ""
        took = f"{others} took {many}{'' if ends else ' first'}." if self.gone else ""
        left = f"{counted(self.kept, 'dead letter')} {agreed(self.kept, 'is', 'are')} left as before."
        return f"{took} {left if ends and self.kept else ''}".strip()


def _of_backfill(row: StoredWork, now: datetime) -> Work:
    """Return the progress of a backfill: occurrences that are processed."""
    given: Mapping[str, Any] = {**row.filter, **row.facts}
    stored = f"work {row.work_id}"
    ends = readable("filter", stored, lambda: [parse_timestamp(given[at]) for at in ("from", "to")], list[datetime]())
    about = [str(given.get("job", "a job that is deleted")), *([_range(*ends)] if ends else [])]
    rest = row.matched_count - given["needed"]
    had = f" ({number(rest)} with a run before)" if rest > 0 else ""
    about += [f"{counted(row.matched_count, 'occurrence')}{had}", f"at most {given['max_concurrent']} open at once"]
    state = "ending" if given["ending"] else row.state
    work = Work(row.kind, str(row.work_id), state, about, row.done_count, row.matched_count, row.created_at,
                row.finished_at, row.reason)  # fmt: skip
    return _paced(work, now)


def of_cancellation(row: Cancellation, now: datetime) -> Work:
    """Return the progress of a cancellation by filter: runs that ended or were requested to stop."""
    about = list(filter_words(row))
    about += [] if row.include_started else ["only runs that have not started"]
    state = "running" if row.finished_at is None else "finished"
    total = None if row.named_count is None else max(row.named_count, row.cancelled_count)
    gone = total - row.cancelled_count if row.finished_at and total is not None and total <= LOOKED_AT else 0
    work = Work("cancellation", str(row.cancellation_id), state, about, row.cancelled_count, total, row.created_at,
                finished_at=row.finished_at, reason=None if row.reason == NO_REASON else row.reason,
                gone=gone)  # fmt: skip
    return _paced(_bounded(work, LOOKED_AT), now)


def of_work(row: StoredWork, now: datetime) -> Work:
    """Return the progress of a work: things that are done or rejected."""
    if row.kind == "backfill":
        return _of_backfill(row, now)
    about = list(filter_words(row)) or ["all"]
    about += [f"at most {row.rate:g} per second"] if row.rate else []
    gone = row.matched_count - row.processed if row.state == "finished" and row.matched_count <= COUNTED else 0
    work = Work(row.kind, str(row.work_id), row.state, about, row.processed, row.matched_count, row.created_at,
                finished_at=row.finished_at, reason=row.reason, failed=row.rejected_count,
                gone=max(gone, 0))  # fmt: skip
    return _paced(_bounded(work, COUNTED), now)


def ordered(found: Sequence[Work]) -> list[Work]:
    """Return bulk work in the order of the page: what has not ended first, then the newest."""
    newest = sorted(sorted(found, key=lambda each: each.kind), key=lambda each: each.created_at, reverse=True)
    return sorted(newest, key=lambda each: each.finished_at is not None)


def _range(first: datetime, last: datetime) -> str:
    """Return a range of instants, with its times if both are of one day.

    >>> _range(datetime(2026, 11, 21, 9), datetime(2026, 11, 21, 11))
    '21 Nov 2026 09:00 to 11:00 UTC'
    """
    if first.date() == last.date():
        return f"{first:%-d %b %Y %H:%M} to {last:%H:%M} UTC"
    return f"{first:%-d %b %Y} to {last:%-d %b %Y}"


def _bounded(work: Work, most: int) -> Work:
    """Return the work with a lower bound as its total, if that was counted to a bound."""
    if work.total is None or work.total <= most:
        return work
    return replace(work, total=max(most, work.done), at_least=True)


def _paced(work: Work, now: datetime) -> Work:
    """Return the work with its rate and the time left."""
    took = (work.finished_at or now) - work.created_at
    work = replace(work, stuck=work.state == "running" and not work.done and took > _STALE)
    if not work.done or took < _TOO_EARLY:
        return work
    rate = work.done / took.total_seconds()
    return replace(work, rate=rate, left=time_left(work, rate))


def time_left(work: Work, rate: float) -> timedelta | None:
    """Return the time left at a rate; None if the total is not known, or nothing goes on."""
    if work.total is None or work.at_least or work.state != "running" or work.done >= work.total or not rate:
        return None
    return timedelta(seconds=round((work.total - work.done) / rate))


_WORDED = {"job", "job_id", "error_type", "status", "kind", "ids", "since", "until", "redriven", "versions"}
"""Fields of a work's filter that have words of their own, or none."""


def filter_words(row: Cancellation | StoredWork) -> Iterator[str]:
    """Yield the filters of bulk work, one phrase each; none if it concerns all."""
    if isinstance(row, Cancellation):
        yield from [f"job {row.key}"] if row.key is not None else []
        yield from (f"label {name}={value}" for name, value in row.labels.items())
        named = {"handler": row.handler, "cause": row.cause, "queue": row.queue, "lane": row.lane}
        yield from (f"{name} {value}" for name, value in named.items() if value)
        return
    given: Mapping[str, Any] = row.filter
    yield from [f"job {given['job']}"] if "job" in given else []
    yield from [str(given["error_type"])] if "error_type" in given else []
    yield from [str(given["status"]).replace("_", " ")] if "status" in given else []
    yield from ["messages"] if given.get("kind") == "message" else []
    yield from [counted(len(ids), "dead letter")] if (ids := as_list(given.get("ids"))) else []
    yield from (f"{name.replace('_', ' ')} {value}" for name, value in given.items() if name not in _WORDED)


class _Read(NamedTuple):
    at: datetime
    done: int


@dataclass(frozen=True, slots=True)
class Paces:
    """The counts of bulk work that were read within the last minute."""

    _read: OrderedDict[str, deque[_Read]] = field(default_factory=OrderedDict[str, deque[_Read]])
    _lock: Lock = field(default_factory=Lock)

    def __len__(self) -> int:
        return len(self._read)

    def seen(self, work: Work, now: datetime) -> Work:
        """Remember the count of a work; return it with its rate over the last 30 s, if that is known."""
        if work.state != "running":
            return work
        with self._lock:
            first = self._first(work, now)
        if now - first.at < _TOO_EARLY or work.done < first.done:
            return work
        rate = (work.done - first.done) / (now - first.at).total_seconds()
        return replace(work, rate=rate, is_recent=True, left=time_left(work, rate))

    def _first(self, work: Work, now: datetime) -> _Read:
        """Return what the span begins with: the newest count that is old enough, or the oldest one."""
        name = f"{work.kind}/{work.id}"
        counts = self._read.setdefault(name, deque())
        self._read.move_to_end(name)
        while len(self._read) > _MOST:
            self._read.popitem(last=False)
        while counts and counts[0].at <= now - _STALE:
            counts.popleft()
        while len(counts) > 1 and counts[1].at <= now - _SPAN:
            counts.popleft()
        if not counts or counts[-1].at < now:
            counts.append(_Read(now, work.done))
        return counts[0]
