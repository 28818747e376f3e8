"""Make changes under load, wait until nothing is open, and judge what is left."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

import psycopg

from tools.containers.load import BY_REST, BY_TOPIC, Completions, Load
from tools.containers.progress import step, wait_for

_SETTLE_SECONDS = 300.0  # longer than the lease of a killed executor and all retries
_ATTEMPTS = "SELECT outcome, count(*) FROM attempts GROUP BY outcome"
_OPEN = "SELECT (SELECT count(*) FROM job_runs) + (SELECT count(*) FROM outbox)"


class Addresses(NamedTuple):
    """The addresses of an installation."""

    api: str
    broker: str
    database: str


def run_under_load(
    at: Addresses, key: str, changes: Mapping[str, Callable[[], object]], audit: Callable[[], str]
) -> list[str]:
    """Trigger jobs, make each change and see further runs completed; return the faults.

    Args:
        audit: Runs `tidewheel admin audit`, and returns what it prints.
    """
    with Load(at.api, at.broker, key) as load, closing(Completions(at.broker)) as seen:
        with step("submit jobs and triggers by topic and by REST, see runs completed"):
            load.submit_jobs()
            load.start()
            _see_more(load, seen, 30, "at first")
        for what, change in changes.items():
            with step(f"{what}, see further runs completed"):
                change()
                _see_more(load, seen, 10, f"after the change `{what}`")
        with step("stop the triggers, wait until nothing is open"):
            load.stop()
            wait_for(
                lambda: _is_settled(load, seen, at.database),
                "each trigger is completed, and nothing is open",
                _SETTLE_SECONDS,
            )
        with step("tidewheel admin audit"):
            found = audit()
        seen.read()
    print(found.rstrip())
    completed = load.sent & seen.runs.keys()
    print(f"{len(load.sent):,} triggers accepted, {len(completed):,} completed; {len(seen.events):,} runs in all")
    return list(_faults(load, seen))


def attempt_faults(database: str, accepted: Collection[str]) -> list[str]:
    """Print how attempts ended that did not succeed, and return a fault for each other end than these."""
    with psycopg.connect(database) as connection:
        ends: dict[str, int] = dict(connection.execute(_ATTEMPTS).fetchall())
    print(f"attempts that did not succeed: {ends or 'none'}")
    return [f"{count} attempts ended {end}" for end, count in ends.items() if end not in accepted]


def _see_more(load: Load, seen: Completions, count: int, when: str) -> None:
    """Wait until so many triggers that are sent from now on are completed, by topic and by REST each."""
    before = set(load.sent)

    def is_reached() -> bool:
        load.check()
        seen.read()
        done = Counter(each.rpartition("-")[0].rpartition("-")[0] for each in (load.sent - before) & seen.runs.keys())
        return min(done[BY_TOPIC], done[BY_REST]) >= count

    wait_for(is_reached, f"{count} triggers by topic and by REST each are completed {when}", _SETTLE_SECONDS)


def _is_settled(load: Load, seen: Completions, database: str) -> bool:
    seen.read()
    if not load.sent <= seen.runs.keys():
        return False
    with psycopg.connect(database, connect_timeout=10) as connection:
        return connection.execute(_OPEN).fetchone() == (0,)


def _faults(load: Load, seen: Completions) -> Iterator[str]:
    for request_id in sorted(load.sent - seen.runs.keys()):
        yield f"trigger {request_id} has no completion"
    for request_id, runs in seen.runs.items():
        if len(runs) > 1 and request_id in load.sent:  # a batch has one request
            yield f"trigger {request_id} has {len(runs)} runs: {', '.join(runs)}"
    for run_id, events in seen.events.items():
        if len(events) > 1:
            yield f"run {run_id} was completed {len(events)} times"
    for run_id, end in seen.failed.items():
        yield f"run {run_id} ended {end}"
