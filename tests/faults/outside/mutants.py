"""Mutants of the product: errors planted in the services, which the checks have to find (H12).

``python -m tests.faults.outside.mutants NAME ROLE`` is `tidewheel ROLE` with the error. Most are another text of a
statement. No file of the product changes.
"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidewheel.postgres import statements


@dataclass(frozen=True)
class Mutant:
    """An error."""

    what: str
    texts: Mapping[str, str] = field(default_factory=dict[str, str])  # texts of statements, and what is in their place
    patch: Callable[[], None] | None = None  # plants an error in the code


def plant(mutant: Mutant) -> None:
    """Plant the error; before the services' modules are imported."""
    module: Any = statements
    read = module._read

    def altered(package: str) -> dict[str, str]:
        return {name: alter(text, mutant) for name, text in read(package).items()}

    module._read = altered
    if mutant.patch is not None:
        mutant.patch()


def alter(text: str, mutant: Mutant) -> str:
    """Return a statement with the error."""
    for old, new in mutant.texts.items():
        text = text.replace(old, new)
    return text


def _acknowledge_without_report() -> None:
    publisher: Any = importlib.import_module("tidewheel.relay.publish").Publisher

    def await_acks(self: Any) -> Any:  # noqa: ANN401
        result = importlib.import_module("tidewheel.relay.outbox_rows").Published()
        result.acknowledged, self._sent, self._failed = list(self._sent), (), []
        return result

    publisher.await_acks = await_acks


def _watch(observed: Callable[[Mapping[Any, int], Mapping[Any, int]], Sequence[Any]]) -> Callable[[], None]:
    """Plant another watch over leases, of the counters of the last poll and of this one."""

    def patch() -> None:
        watch: Any = importlib.import_module("tidewheel.executor.reaper").Watch
        before: dict[Any, int] = {}

        def observe(_self: object, counters: dict[Any, int], *_rest: object) -> list[tuple[Any, int]]:
            lost = [(executor, counters[executor]) for executor in observed(before, counters)]
            before.clear()
            before.update(counters)
            return lost

        watch.observe = observe

    return patch


MUTANTS: dict[str, Mutant] = {
    "claim-early": Mutant(
        "executors claim two seconds ahead of time",
        {"publish_at <= (SELECT tidewheel_now())": "publish_at <= (SELECT tidewheel_now() + interval '2 s')"},
    ),
    "mark-before-report": Mutant(
        "the relay deletes rows before their delivery is reported", patch=_acknowledge_without_report
    ),
    "complete-without-token": Mutant(
        "a superseded attempt ends its run",
        {
            "       AND o.attempt = %(attempt)s\n       AND o.executor_id = %(executor_id)s\n": "",
            "               AND p.attempt = requested.requested_attempt\n"
            "               AND p.executor_id IS NOT DISTINCT FROM requested.requested_executor_id\n": "",
        },
    ),
    "no-lease": Mutant("an executor is lost without waiting for its lease", patch=_watch(lambda _, now: list(now))),
    "no-reaper": Mutant("the attempts of a lost executor are never ended", patch=_watch(lambda _, __: [])),
    "pause-ignored": Mutant(
        "runs that were written ahead stay after a pause or an edit",
        {", o.created_at)\nRETURNING o.job_id": ", o.created_at) AND false\nRETURNING o.job_id"},
    ),
}


def main(name: str, role: str) -> None:
    """Be the service with the error."""
    plant(MUTANTS[name])
    sys.argv = ["tidewheel", role]
    importlib.import_module("tidewheel.control.cli.main").main()


if __name__ == "__main__":
    main(*sys.argv[1:])
