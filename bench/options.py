"""How large and how long; what is not said is each scenario's own."""

from collections.abc import Callable
from dataclasses import dataclass, field

Progress = Callable[[str], None]


def _unseen(text: str) -> None:
    del text


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for.

    Args:
        jobs: Jobs, runs, messages or requests of a round.
        seconds: How long the load of `pipeline`, `steady` and `latency` lasts.
        rate: Runs a second of `steady`, `soak` and `latency`.
        minutes: How long `idle` and `soak` last.
        tell: Takes what is being done, for whoever waits.
    """

    jobs: int | None = None
    seconds: float | None = None
    rate: float | None = None
    minutes: float | None = None
    tell: Progress = field(default=_unseen, compare=False)
