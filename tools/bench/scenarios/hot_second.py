"""`hot-second`: recurring jobs that are all due at the same instant; how late each was begun."""

import threading
from collections.abc import Sequence

from tools.bench.complete import lateness, starts_since
from tools.bench.environment import Server
from tools.bench.flow import flowing
from tools.bench.load import ONE_OWNER, Load
from tools.bench.measurement import Figure, Options, Round
from tools.bench.messages import Ends

SIZES = (10_000, 100_000)
_IDLE_SECONDS = 15.0  # on an empty table: thirty looks of the scheduler, more than twice seventy of the relay
_WARM_RUNS = 3000
_MIXED = {"two_tenants": (("default", 5), ("other", 5)), "two_priorities": (("default", 5), ("default", 9))}


def measure(server: Server, options: Options) -> Round:
    """Each size with services that have just worked, and with services that have idled on empty tables.

    The smaller one also with jobs of two tenants, and of two priorities.
    """
    figures: dict[str, Figure] = {}
    for size in (options.jobs,) if options.jobs else SIZES:
        for idled in (False, True):
            name = f"{size // 1000}k" if size % 1000 == 0 else str(size)
            name += "_after_idling" if idled else ""
            figures |= _hot_second(server, name, size, options, idled=idled)
    size = options.jobs or SIZES[0]
    for kind, owners in _MIXED.items():
        figures |= _hot_second(server, kind, size, options, owners=owners)
    return Round(figures)


def _hot_second(
    server: Server,
    name: str,
    size: int,
    options: Options,
    *,
    idled: bool = False,
    owners: Sequence[tuple[str, int]] = ONE_OWNER,
) -> dict[str, Figure]:
    with flowing(server, options) as flow:
        if idled:
            threading.Event().wait(_IDLE_SECONDS)
        else:
            flow.warm_up(min(_WARM_RUNS, size))
        due_at = flow.load(Load(jobs=size, prefix="hot", target="noted", owners=owners, analyze=not idled))
        _, spent = flow.measure(due_at, size, flow.ends.watch)
        flow.check()
        starts = starts_since(flow.environment, due_at, size)
        published = Ends(flow.environment, flow.environment.topics.runs("default", "standard"))
        acknowledged = (published.last_seconds() - due_at.timestamp()) * 1000
    found = {**lateness(starts, spent), "acknowledged_ms": Figure(acknowledged, "ms")}
    return {f"{name}_{figure}": value for figure, value in found.items()}
