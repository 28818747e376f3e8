"""The scenarios by name."""

from collections.abc import Callable
from typing import NamedTuple

from tools.bench.environment import Server
from tools.bench.measurement import Options, Round
from tools.bench.scenarios import (
    api,
    execute,
    fire,
    growth,
    handlers,
    hot_second,
    http,
    latency,
    limits,
    pipeline,
    relay,
    submit,
)


class Part(NamedTuple):
    """A measurement. `once`: it takes minutes, so it has one round unless `--rounds` is given."""

    measure: Callable[[Server, Options], Round]
    once: bool = False


SCENARIOS: dict[str, tuple[Part, ...]] = {
    "submit": (Part(submit.measure),),
    "fire": (Part(fire.measure),),
    "relay": (Part(relay.measure),),
    "execute": (Part(execute.measure),),
    "pipeline": (Part(pipeline.measure), Part(pipeline.steady, once=True)),
    "latency": (Part(latency.measure),),
    "hot-second": (Part(hot_second.measure),),
    "http": (Part(http.measure),),
    "handlers": (Part(handlers.measure),),
    "chunks": (Part(execute.measure_chunks),),
    "limits": (Part(limits.measure, once=True),),
    "api": (Part(api.measure, once=True),),
    "growth": (Part(growth.measure, once=True),),
}
