"""`hot-second`: recurring jobs that are all due at the same instant; how late each was begun."""

import threading

from tools.bench.complete import lateness, starts_since
from tools.bench.environment import Server
from tools.bench.flow import flowing
from tools.bench.load import Load
from tools.bench.measurement import Figure, Options, Round
from tools.bench.messages import Ends

SIZES = (10_000, 100_000)
_IDLE_SECONDS = 15.0  # on an empty table: thirty looks of the scheduler, more than twice seventy of the relay
_WARM_RUNS = 3000


def measure(server: Server, options: Options) -> Round:
    """Each size with services that have just worked, and with services that have idled on empty tables."""
    figures: dict[str, Figure] = {}
    for size in (options.jobs,) if options.jobs else SIZES:
        for idled in (False, True):
            name = f"{size // 1000}k" if size % 1000 == 0 else str(size)
            name += "_after_idling" if idled else ""
            found = _hot_second(server, size, options, idled=idled)
            figures |= {f"{name}_{figure}": value for figure, value in found.items()}
    return Round(figures)


def _hot_second(server: Server, size: int, options: Options, *, idled: bool) -> dict[str, Figure]:
    with flowing(server, options) as flow:
        if idled:
            threading.Event().wait(_IDLE_SECONDS)
        else:
            flow.warm_up(min(_WARM_RUNS, size))
        due_at = flow.load(Load(jobs=size, prefix="hot", target="noted", analyze=not idled))
        _, spent = flow.measure(due_at, size, flow.ends.watch)
        flow.check()
        starts = starts_since(flow.environment, due_at, size)
        published = Ends(flow.environment, flow.environment.topics.runs("default", "standard"))
        acknowledged = (published.last_seconds() - due_at.timestamp()) * 1000
    return {**lateness(starts, spent), "acknowledged_ms": Figure(acknowledged, "ms")}
