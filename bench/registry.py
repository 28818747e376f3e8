"""The scenarios by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tidewheel.bench.environment import Environment, Server
from tidewheel.bench.measurement import Figure, Options, Round
from tidewheel.bench.scenarios import (
    api,
    archive,
    audit,
    batches,
    bulk,
    cancel,
    conservation,
    costs,
    execute,
    fairness,
    fire,
    freeze,
    handlers,
    hot_second,
    http,
    idle,
    latency,
    limits,
    overlap,
    overshoot,
    peers,
    pipeline,
    relay,
    retention,
    rolling,
    soak,
    stages,
    submit,
    workflows,
)

Measure = Callable[[Server, Options], Round]


@dataclass(frozen=True, slots=True)
class Part:
    """A measurement. `once`: it takes minutes, so it has one round unless `--rounds` is given."""

    measure: Measure
    once: bool = False


def _plain(measure: Callable[[Environment], dict[str, float]]) -> Measure:
    """A scenario of figures without floors, on an empty environment."""

    def with_environment(server: Server, options: Options) -> Round:
        options.report("measuring")
        with server.environment() as environment:
            found = measure(environment)
        return Round({name: Figure(value, _unit(name)) for name, value in found.items()})

    return with_environment


def _unit(name: str) -> str:
    """The unit that a figure's name ends with, or begins with where it is a rate."""
    if name.endswith("_per_second"):
        return f"{name.removesuffix('_per_second').rpartition('_')[2]}/s"
    last = name.rpartition("_")[2]
    return last if last in {"seconds", "us", "ms", "percent", "bytes"} else ""


SCENARIOS: dict[str, tuple[Part, ...]] = {
    "fire": (Part(fire.measure),),
    "relay": (Part(relay.measure),),
    "execute": (Part(execute.measure),),
    "pipeline": (Part(pipeline.measure), Part(pipeline.steady, once=True)),
    "standby-site": tuple(Part(partial(pipeline.few, standby=standby)) for standby in (False, True)),
    "hot-second": (Part(hot_second.measure),),
    "latency": (Part(latency.measure),),
    "idle": (Part(idle.measure, once=True),),
    "soak": (Part(soak.free, once=True), Part(soak.held, once=True), Part(soak.skip, once=True)),
    "submit": (Part(submit.measure),),
    "http": (Part(http.measure),),
    "overlap": (Part(overlap.measure_meeting), Part(overlap.measure_apart)),
    **{name: (Part(partial(handlers.measure_kind, kind=kind)),) for name, kind in handlers.KINDS.items()},
    "bulk": (Part(bulk.measure, once=True),),
    "costs": (Part(_plain(costs.measure)),),
    "ledger": (Part(_plain(costs.measure_ledger)),),
    "conservation": (Part(_plain(conservation.measure), once=True),),
    "rolling": (Part(_plain(rolling.measure), once=True),),
    "cancel": (Part(_plain(cancel.measure)),),
    "freeze": (Part(freeze.measure_claims), Part(freeze.measure_thaw, once=True)),
    "api": (Part(api.measure, once=True),),
    "fairness": tuple(Part(partial(fairness.measure, handler=name), once=True) for name in fairness.HANDLERS),
    "limits": (Part(limits.measure, once=True), Part(overshoot.measure, once=True)),
    "stages": (Part(stages.measure),),
    "workflows": (Part(_plain(workflows.measure), once=True),),
    "batches": (Part(_plain(batches.measure), once=True),),
    "retention": (Part(retention.whole_day, once=True), Part(retention.by_tenant, once=True)),
    "audit": (Part(audit.minutely, once=True), Part(audit.hourly, once=True)),
    "archive": (Part(archive.measure, once=True),),
    "peers": (Part(peers.measure),),
}
ALL = (
    "fire",
    "relay",
    "execute",
    "pipeline",
    "hot-second",
    "latency",
    "idle",
    "soak",
    "submit",
    "http",
    "bulk",
    *handlers.KINDS,
    "overlap",
)
EVERYTHING = "all"


def named(names: list[str]) -> list[str]:
    """The scenarios that names stand for, each once; `all` for those of docs/performance.md's tables."""
    found = [each for name in names for each in (ALL if name == EVERYTHING else (name,))]
    return list(dict.fromkeys(found))
