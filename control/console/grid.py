"""The grid of jobs and time as shapes, and the condition of a job, as pure functions.

A bar above the line counts runs that succeeded, one below it runs that failed. An outlined bar is due, a lozenge did
not start. All rows of a grid have the same cells, so that one line of now runs through them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import NamedTuple, TypeVar

from tidewheel.control.console.words import family_of, number
from tidewheel.nouns.jobs.model import JobSummary
from tidewheel.runs import DEAD_LETTERED, SCHEDULED, RunState
from tidewheel.schedules.decision import HoldReason

T = TypeVar("T")

NAMES: Mapping[str, str] = {
    "g": "succeeded", "b": "failed", "a": "waiting", "m": "running", "t": "retrying", "k": "skipped", "u": "cancelled",
}  # fmt: skip
"""The letters of runs in a cell: those of their families, but for skipped ones.

A bin that is due has a `d`, and so has a run that may not start yet.
"""
CONDITIONS: Mapping[str, tuple[str, str]] = {
    "failing": (RunState.FAILED, "b"), "failing intermittently": ("warning", "b"),
    "waiting": (RunState.QUEUED, "a"), "skipping": (RunState.SKIPPED, "k"), "retrying": (RunState.RETRYING, "t"),
    "recovered": (RunState.SUCCEEDED, "b"), "well": (RunState.SUCCEEDED, ""),
}  # fmt: skip
"""The conditions of a job, the worst first, with the state whose mark each has and the letter of the runs it hurts."""

WAITING = frozenset({RunState.QUEUED, RunState.BUFFERED, RunState.BLOCKED})
"""The states of runs that are due and have not started."""

_LETTERS = {RunState.SKIPPED: "k", SCHEDULED: "d", **{str(each): "a" for each in WAITING}}  # else that of the family
_SHARE = 0.1  # of the runs of a window: fewer waits or skips are no trouble of the job
_SOON = timedelta(seconds=10)  # a wait that is over by then needs no operator


class Pitch(NamedTuple):
    """The width of a cell with the gap in it, the place of the line and the height of a row, in pixels."""

    width: int
    gap: int
    base: int
    height: int

    def glyph(self, letter: str) -> str:
        """Return the path of a mark of this pitch in a box of 9 by 10 pixels, for a legend."""
        return f"M4.5 5{_marks(self)[letter][1]}"


NARROW, WIDE = Pitch(9, 2, 13, 26), Pitch(13, 3, 13, 24)


class Strip(NamedTuple):
    """The row of a job: its cells as text, its runs by letter and in words, paths with their classes."""

    cells: str
    total: Counter[str]
    words: str
    paths: Sequence[tuple[str, str]]


def strip(
    runs: Sequence[Mapping[str, int]], due: Sequence[bool], pitch: Pitch, running_since: int | None = None
) -> Strip:
    """Return the row of runs by state in each bin up to now, and of bins ahead.

    Args:
        running_since: The bin in which the run that runs now began, the first one if it began before.
    """
    total, cells = Counter[str](), [_cell(each) for each in runs]
    for cell in filter(None, cells):
        total.update(cell)
    cells += [Counter(d=1) if each else Counter() for each in due]
    texts = ["".join(f"{letter}{many}" for letter, many in sorted(cell.items())) or "-" for cell in cells]
    text = " ".join(each if many == 1 else f"{each}*{many}" for each, _, many in segments(texts))
    words = [f"{number(total[letter])} {name}" for letter, name in {**NAMES, "d": SCHEDULED}.items() if letter in total]
    words += ["upcoming"] if any(due) and "d" not in total else []
    paths = list(_paths(cells, pitch))
    if running_since is not None:
        words += [] if total["m"] else [f"{NAMES['m']} since before"]
        begin, y = running_since * pitch.width, pitch.base - 5
        paths.append(("w", f"M{begin} {y}H{len(runs) * pitch.width}"))
    return Strip(text, total, ", ".join(words) or ("no run" if cells else "no figures"), paths)


def _cell(states: Mapping[str, int]) -> Counter[str]:
    found = Counter[str]()
    for each, many in states.items():
        if many:
            found[_LETTERS.get(each) or family_of(each)[0]] += many
    return found


def level(runs: int, most: int) -> int:
    """Return the height of a bar from 1 to 3 beside that of the largest bin of its row; 0 without a run.

    >>> [level(runs, 100) for runs in (0, 1, 24, 25, 66, 67)], level(1, 1)
    ([0, 1, 1, 2, 2, 3], 3)
    """
    if not runs or most == 1:
        return 3 * runs
    return 1 + (4 * runs >= most) + (3 * runs >= 2 * most)


def segments(values: Sequence[T]) -> Iterator[tuple[T, int, int]]:
    """Yield each value with its first place and the number of equal neighbours.

    >>> list(segments("aab"))
    [('a', 0, 2), ('b', 2, 1)]
    """
    first = 0
    for value, group in groupby(values):
        many = len(list(group))
        yield value, first, many
        first += many


def condition(job: JobSummary, total: Counter[str], now: datetime, *, is_unwell: bool | None = None) -> str:
    """Return the condition of a job; `is_unwell` is None where only the runs of the window are known."""
    last, many, surely = job.last_run, max(_SHARE * total.total(), 2), {"well"}
    if job.hold_reason == HoldReason.QUARANTINED or (last and last.state in DEAD_LETTERED):
        surely.add("failing")
    if last and now - last.scheduled_at > _SOON and last.state in WAITING:
        surely.add("waiting")
    fails = "b" in total if is_unwell is None else is_unwell
    at_times = (("failing intermittently", fails), ("recovered", "b" in total), ("retrying", "t" in total))
    surely |= {name for name, holds in at_times if holds}
    by_share = {"waiting", "skipping"}
    return next(n for n, (_, of) in CONDITIONS.items() if n in surely or (n in by_share and total[of] >= many))


def _paths(cells: Sequence[Counter[str]], pitch: Pitch) -> Iterator[tuple[str, str]]:
    """Yield a path for each level of bars, whose dashes paint the cells, and one for each kind of mark."""
    most = max((max(cell["g"], cell["b"]) for cell in cells), default=0)
    heights = {"g": [round(share * (pitch.base - 5)) for share in (0.38, 0.7, 1)], "b": [3, 6, 9]}
    for letter, pixels in heights.items():
        found = list(segments([level(cell[letter], most) for cell in cells]))
        for at, height in enumerate(pixels, 1):
            y = pitch.base + 1 + height / 2 if letter == "b" else pitch.base - height / 2
            lines = [
                f"M{first * pitch.width + pitch.gap / 2:g} {y:g}h{many * pitch.width - pitch.gap}"
                for each, first, many in found
                if each == at
            ]
            if lines:
                yield f"{letter}{at}", "".join(lines)
    for letter, (below, shape) in _marks(pitch).items():
        places = [at * pitch.width + pitch.width / 2 for at, cell in enumerate(cells) if letter in cell]
        if places:
            yield letter, "".join(f"M{x:g} {pitch.base + below:g}{shape}" for x in places)


def _marks(pitch: Pitch) -> Mapping[str, tuple[float, str]]:
    """Return the place below the line and the shape of each mark: runs that did not start are on the line."""
    half, bar = min((pitch.width - 1) / 2, 3.5), pitch.width - pitch.gap - 1
    ring = half - 1
    circle = f"m-{ring:g} 0a{ring:g} {ring:g} 0 1 0 {2 * ring:g} 0a{ring:g} {ring:g} 0 1 0-{2 * ring:g} 0z"
    return {
        "k": (0.5, f"m0-{half:g}l{half:g} {half:g}-{half:g} {half:g}-{half:g}-{half:g}z"),
        "u": (0.5, f"m-{half:g}-1h{2 * half:g}v2h-{2 * half:g}z"),
        "d": (-4.5, f"m-{bar / 2:g}-2h{bar}v5h-{bar}z"),
        "m": (-5, f"m-{half:g}-4l{2 * half:g} 4-{2 * half:g} 4z"),
        "t": (-4.5, circle),
        "a": (-4.5, circle),
    }
