"""Checks of an installation: their order, limits and results.

Each check runs on a thread of its own for a limited time. A check that fails, or does not end, is a finding like any
other, and the next check runs all the same.
"""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.control.reads.findings import Finding, Severity
from tidewheel.control.reads.stored import show_damaged
from tidewheel.postgres.session import Conn, connect
from tidewheel.redaction import redact
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import Installation

_STATEMENT_LIMIT = "-c statement_timeout=5s -c lock_timeout=500ms"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits beyond which something is a finding."""

    check_seconds: float = 15.0
    transaction_age: timedelta = timedelta(minutes=10)  # an older one holds vacuum back
    free_bytes: int = 2 << 30
    slot_bytes: int = 1 << 30
    standby_bytes: int = 256 << 20
    message_age: timedelta = timedelta(seconds=30)  # of the outbox: none leaves
    timer_age: timedelta = timedelta(seconds=60)  # overdue for longer: nothing fires
    key_age: timedelta = timedelta(days=365)  # of run messages or task tokens: it is to be rotated
    key_expiry: timedelta = timedelta(days=14)  # of an API key in use
    retention_age: timedelta = timedelta(hours=6)  # since a pass of retention: none works; they are an hour apart
    retention_behind: timedelta = timedelta(days=2)  # of partitions, beyond their period
    connections_share: float = 0.9  # of those of the server


@dataclass(slots=True)
class Context:
    """The state that checks share; `url` is set once the database has answered. Checks add to the `notes`."""

    settings: Connections
    limits: Limits = field(default_factory=Limits)
    data_dir: Path | None = None
    url: str | None = None
    installation: Installation | None = None
    notes: list[str] = field(default_factory=list[str])

    @contextmanager
    def connection(self, options: str = "") -> Generator[Conn]:
        """Open a connection whose statements are limited in time; `options` are as `-c name=value`."""
        url = self.url or self.settings.database()
        with connect(url, "tidewheel-doctor", options=f"{_STATEMENT_LIMIT} {options}", pooled=True) as connection:
            connection.begin()
            show_damaged(connection, shows=True)
            yield connection


@dataclass(frozen=True, slots=True)
class Check:
    """A check; `needs` is the check without which it cannot run."""

    name: str
    run: Callable[[Context], Iterable[Finding]]
    needs: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The result of all checks.

    Args:
        findings: The findings, errors first.
        passed: The checks that found nothing.
        skipped: The checks that could not run to their ends: another one failed, or the session lacks a right for it.
        notes: Facts that are no fault.
    """

    findings: tuple[Finding, ...]
    passed: tuple[str, ...]
    skipped: tuple[str, ...]
    notes: tuple[str, ...] = ()


def run_checks(checks: Sequence[Check], context: Context) -> Report:
    """Run the checks in order."""
    findings: list[Finding] = []
    passed: list[str] = []
    unusable: list[str] = []
    skipped: list[str] = []
    for check in checks:
        if check.needs in {*unusable, *skipped}:
            skipped.append(check.name)
            continue
        found = list(_bounded(check, context, skipped))
        findings += found
        if not found and check.name not in skipped:
            passed.append(check.name)
        elif any(each.severity is Severity.ERROR for each in found):
            unusable.append(check.name)
    findings.sort(key=lambda each: each.severity is not Severity.ERROR)
    return Report(tuple(findings), tuple(passed), tuple(skipped), tuple(context.notes))


def _bounded(check: Check, context: Context, skipped: list[str]) -> Iterator[Finding]:
    """Yield the findings of a check that has a limited time.

    A check for which the session lacks a right is added to `skipped`.
    """
    found: list[Finding] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            found.extend(check.run(context))
        except psycopg.errors.InsufficientPrivilege:
            skipped.append(check.name)
        except Exception as error:  # noqa: BLE001 - one failing check does not end the others
            errors.append(error)

    thread = threading.Thread(target=work, name=f"check {check.name}", daemon=True)
    began = monotonic_seconds()
    thread.start()
    thread.join(context.limits.check_seconds)
    if thread.is_alive():
        took = f"no result after {monotonic_seconds() - began:.0f} s"
        remedy = "check that the server runs and is not overloaded, then run `tidewheel doctor` again"
        yield Finding(check.name, Severity.ERROR, f"the check {check.name} did not end", took, remedy)
        return
    yield from found
    for error in errors:
        evidence = redact(f"{type(error).__name__}: {error}")
        remedy = "correct the error, then run `tidewheel doctor` again"
        yield Finding(check.name, Severity.ERROR, f"the check {check.name} failed", evidence, remedy)
