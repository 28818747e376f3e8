"""What a change of the clock does to one occurrence, in sentences."""

from tidewheel.scheduler.recurrence.instants import at_second
from tidewheel.scheduler.recurrence.localise import CORRECTION, DstGap, LocalisedCron
from tidewheel.scheduler.recurrence.wall_clock import following, preceding
from tidewheel.scheduler.recurrence.zones import FOREVER, Zone, zone


def effects(entry: LocalisedCron, since: int, at: int) -> tuple[str, ...]:
    """The notes on the occurrence at `at`, with those on what was left out after `since`, the one before.

    Args:
        entry: The expression in its zone.
        since: Seconds since 1970-01-01 UTC.
        at: Likewise; an occurrence.
    """
    of = zone(entry.zone_name)
    span = of.span_at(at)
    notes = [
        note
        for index in range(of.span_at(since), span + 1)
        if index and since < of.starts[index]
        for note in _gap_notes(entry, of, index, at)
    ]
    return (*notes, *_overlap_notes(entry, of, span, at))


def _gap_notes(entry: LocalisedCron, of: Zone, index: int, at: int) -> list[str]:
    """What becomes of the local times that the change at the start of span `index` leaves out."""
    start = of.starts[index]
    before, after = start + of.offsets[index - 1], start + of.offsets[index]
    first = following(entry.fields, before)
    if first >= after:
        return []
    last = preceding(entry.fields, after - 1)
    times = f"{_clock(first)} does" if first == last else f"{_stretch(first, last)} do"
    what = f"{times} not exist: the clock goes from {_stretch(before, after)}"
    if after - before > CORRECTION:
        return [f"{what}, a correction of more than three hours; what falls inside is skipped"]
    if entry.gap is None:
        return [f"{what}; nothing is made up"]
    return [f"{what}; made up here" if entry.gap is DstGap.SHIFT_FORWARD else f"{what}; skipped"]


def _overlap_notes(entry: LocalisedCron, of: Zone, span: int, at: int) -> list[str]:
    """Whether the local time of this occurrence comes twice, and which of the two this is."""
    local = at + of.offsets[span]
    earlier = local - of.offsets[span - 1] if span else FOREVER
    if span and earlier < of.starts[span]:
        return [f"{_clock(local)} comes twice; this is the second time{_other(entry, earlier)}"]
    if span + 1 < len(of.starts):
        later = local - of.offsets[span + 1]
        if later >= of.starts[span + 1]:
            return [f"{_clock(local)} comes twice; this is the first time{_other(entry, later)}"]
    return []


def _other(entry: LocalisedCron, second: int) -> str:
    if entry.following(second) == second:
        return ", and it fires at both"
    return f", and the one at {at_second(second):%H:%M} UTC is left out"


def _stretch(low: int, high: int) -> str:
    """Two local times, the date said once where it is the same."""
    same_day = low // 86_400 == high // 86_400
    return f"{_clock(low)} to {_clock(high).split()[1] if same_day else _clock(high)}"


def _clock(local: int) -> str:
    shown = at_second(local)
    return f"{shown:%Y-%m-%d %H:%M:%S}" if shown.second else f"{shown:%Y-%m-%d %H:%M}"
