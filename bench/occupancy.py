"""Of work that waited while somebody could have done it: computed from when each piece was due, begun and ended."""

from collections.abc import Sequence
from dataclasses import dataclass

_ENDED, _DUE, _BEGUN = range(3)  # in this order where they fall together


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of work, in seconds of one clock."""

    due: float
    begun: float
    ended: float


def wasted(pieces: Sequence[Piece], slots: int) -> dict[str, float]:
    """How long pieces waited while a slot was free anywhere, and how many slot-seconds were free while some waited."""
    numbered = list(enumerate(pieces))
    events = sorted(
        [(piece.due, _DUE, number) for number, piece in numbered]
        + [(piece.begun, _BEGUN, number) for number, piece in numbered]
        + [(piece.ended, _ENDED, number) for number, piece in numbered]
    )
    waiting: set[int] = set()
    waited = [0.0] * len(pieces)
    running, idle_seconds, last = 0, 0.0, events[0][0]
    for at, what, number in events:
        free = slots - running
        if free > 0 and waiting:
            idle_seconds += min(free, len(waiting)) * (at - last)
            for each in waiting:
                waited[each] += at - last
        last = at
        if what == _DUE:
            waiting.add(number)
        else:
            waiting.discard(number)
            running += 1 if what == _BEGUN else -1
    waited.sort()
    return {
        "wait_while_free_p50_seconds": waited[len(waited) // 2],
        "wait_while_free_p99_seconds": waited[len(waited) * 99 // 100],
        "wait_while_free_max_seconds": waited[-1],
        "idle_slot_seconds_while_waiting": idle_seconds,
        "whole_wait_p99_seconds": sorted(piece.begun - piece.due for piece in pieces)[len(pieces) * 99 // 100],
    }
