"""A campaign: an installation under load, one fault after another, and the verdict on its history."""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql

from tests.faults.outside.client import Client
from tests.faults.outside.load import STEADY, Load
from tests.faults.outside.records import (
    SECOND,
    History,
    Log,
    Tables,
    Tail,
    fold_effects,
    fold_faults,
    fold_operations,
    now_us,
    read_lines,
    write_messages,
)
from tests.faults.outside.rows import Row
from tests.faults.outside.site import LANES, LEASE_SECONDS, PREFIX, SERVICES, TOPICS, Site
from tests.faults.outside.summary import table
from tests.faults.outside.tokens import Completer
from tests.faults.outside.topics import read_topics
from tests.faults.outside.verdict import Enough, Report, check

_PATIENCE_SECONDS = 90.0
_LOOK_SECONDS = 0.1
_BEHIND = 2 * SECOND  # a steady job is served if what was due so long ago has run
_AHEAD_SECONDS = 8.0  # a `once` or a delayed trigger is at most so far ahead when the load ends
_NEVER = threading.Event()
_EMPTY = ("job_runs", "active_runs", "outbox", "quarantine", "signals")


class Steady:
    """The steady jobs as their target sees them: which of their instants have run."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)
        self._seen: dict[str, set[int]] = {f"steady-{number}": set() for number in range(STEADY)}
        self._next: dict[str, int] = {}

    def is_served(self) -> bool:
        """Return True if nothing that is due is left."""
        self._read()
        now = now_us()
        for key, seen in self._seen.items():
            if key not in self._next:
                if not seen:
                    return False
                self._next[key] = min(seen)
            while self._next[key] in seen:
                seen.discard(self._next[key])
                self._next[key] += SECOND
        return all(at > now - _BEHIND for at in self._next.values())

    def _read(self) -> None:
        for found in self._tail.read():
            if found["kind"] == "received" and found["job_key"] in self._seen:
                self._seen[found["job_key"]].add(found["scheduled_at"])


@dataclass
class Campaign:
    """One campaign."""

    site: Site  # the installation; not up yet
    seed: int  # of everything random
    rows: Sequence[type[Row]]
    enough: Enough = field(default_factory=Enough)  # the least that a verdict other than `unknown` needs
    calm: float = 2.0  # seconds before each fault
    policies: bool = False  # True to submit a job of each `catch_up` too
    edits: bool = True  # False to leave the jobs as they are
    patience: float = 90.0  # seconds to wait for replies, and for quiet, at the end

    def run(self) -> tuple[History, Report]:
        """Live through it; return its history and the verdict."""
        try:
            self.site.up()
            history = self._live()
        finally:
            self.site.down()
        report = check(history, self.enough)
        (self.site.folder / "report.txt").write_text(f"{report}\n{table([history])}\n")
        return history, report

    def _live(self) -> History:
        site = self.site
        log, steady = Log(site.folder / "faults.jsonl"), Steady(site.effects)
        self._faults, self._number = log, 0
        client = Client(site.kafka, PREFIX, site.folder / "client.jsonl")
        load = Load(client, self.seed, site.receiver_port)
        completer = Completer(Tail(site.effects), load.complete)
        site.start(*SERVICES, wait=True)
        begun = now_us()
        self._note("injected", "start of everything")
        load.submit()
        if self.policies:
            load.submit_policies()
        self._note("healed", "start of everything")
        self._recover("start of everything", steady)
        if self.edits:
            load.start()
        for row in self.rows:
            _NEVER.wait(self.calm)
            self._inject(row(site, load, self.seed), steady)
        _NEVER.wait(self.calm)
        answered = load.stop(self.patience)
        ended = now_us()
        _NEVER.wait(_AHEAD_SECONDS)
        quiet = now_us() if _within(self.patience, site.is_settled) and answered else None
        completer.close()
        tables = self._dump()
        client.close()
        self._stop_all()
        first = read_topics(site.kafka, PREFIX, [*TOPICS, *LANES])
        again = read_topics(site.kafka, PREFIX, [*TOPICS, *LANES])
        write_messages(site.folder / "topics.jsonl", first)
        log.close()
        return History(
            operations=fold_operations(read_lines(site.folder / "client.jsonl")),
            effects=fold_effects(read_lines(site.effects)),
            messages=first,
            again=again,
            faults=fold_faults(read_lines(log.path)),
            tables=tables,
            begun=begun,
            ended=ended,
            quiet=quiet,
            lease=LEASE_SECONDS * SECOND,
            misfire_after=SECOND if self.policies else 3600 * SECOND,
        )

    def _inject(self, row: Row, steady: Steady) -> None:
        self._number += 1
        self._note("injected", row.name)
        row.inject()
        _NEVER.wait(row.hold)
        row.heal()
        self._note("healed", row.name, **row.detail)
        self._recover(row.name, steady)

    def _recover(self, name: str, steady: Steady) -> None:
        if _within(_PATIENCE_SECONDS, steady.is_served):
            self._note("recovered", name)

    def _note(self, kind: str, name: str, **detail: object) -> None:
        self._faults.append({"number": self._number, "kind": kind, "row": name, "at": now_us(), "detail": detail})

    def _stop_all(self) -> None:
        """Stop everything, and record how long it took."""
        self._number += 1
        self._note("injected", "stop of everything")
        stopped = self.site.stop(*SERVICES)
        self._note("healed", "stop of everything", stopped=stopped, exits=self.site.exits)
        self._note("recovered", "stop of everything")

    def _dump(self) -> Tables:
        with self.site.database() as connection:
            states = {str(run): str(state) for run, state in connection.execute("SELECT run_id, state FROM runs")}
            left = {name: _rows(connection, name) for name in _EMPTY}
        _within(self.patience / 3, lambda: self.site.lag() == 0)
        tables = Tables(states, left, self.site.lag())
        (self.site.folder / "dump.jsonl").write_text(json.dumps({"states": states, "left": left, "lag": tables.lag}))
        return tables


def print_now(text: str) -> None:
    """Print past pytest's capture."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def seed_of(variable: str) -> int:
    """Return the seed that a variable has, else a new one."""
    return int(os.environ.get(variable) or int.from_bytes(os.urandom(4), "big"))


def _rows(connection: psycopg.Connection[object], name: str) -> int:
    row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name))).fetchone()
    return int(row[0]) if row else 0  # type: ignore[index]


def _within(seconds: float, condition: object) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        _NEVER.wait(_LOOK_SECONDS)
    return True
