"""The verdict on a history: `pass` only if enough was seen (H11), with the counts and times behind it."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Literal

from tests.faults.outside.checks import CHECKS, Anomaly
from tests.faults.outside.records import SECOND, History
from tests.faults.outside.view import PROMPT, View

_SHOWN = 8  # anomalies of a check in a message; the history has them all
_PROMPT_JOBS = ("steady", "note", "cron-utc", "missed")  # their targets answer at once

Verdict = Literal["pass", "fail", "unknown"]


@dataclass(frozen=True, slots=True)
class Enough:
    """The least that a verdict other than `unknown` needs."""

    targets: int = 1000
    faults: int = 20


@dataclass(frozen=True, slots=True)
class Report:
    """The result of all checks."""

    verdict: Verdict
    anomalies: tuple[Anomaly, ...]
    counts: Mapping[str, int]
    lateness: Mapping[str, float]
    lacking: tuple[str, ...]

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        late = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.lateness.items())
        lacking = f" ({'; '.join(self.lacking)})" if self.lacking else ""
        lines = [f"{self.verdict}{lacking}: {counts}; {late}"]
        by_check = Counter(anomaly.check for anomaly in self.anomalies)
        for check, number in sorted(by_check.items()):
            lines.append(f"{number} x {check}")
            lines.extend([str(anomaly) for anomaly in self.anomalies if anomaly.check == check][:_SHOWN])
        return "\n".join(lines)


def check(history: History, enough: Enough) -> Report:
    """Return the verdict of a history."""
    view = View(history)
    anomalies = tuple(anomaly for one in CHECKS for anomaly in one(view))
    counts = count(view)
    lacking = tuple(
        f"{counts[name]} of {least} {name}"
        for name, least in (("targets", enough.targets), ("faults", enough.faults))
        if counts[name] < least
    )
    verdict: Verdict = "fail" if anomalies else "unknown" if lacking else "pass"
    return Report(verdict, anomalies, counts, lateness(view), lacking)


def count(view: View) -> dict[str, int]:
    """Return the counts that every verdict names."""
    mine = [target for found in view.targets.values() for target in found.values()]
    repeats = sum(len(found) - 1 for found in view.effects.values())
    copies = Counter(message.value["event_id"] for message in view.of_kind("RunCompleted"))
    return {
        "targets": sum(target.certain for target in mine),
        "possible": sum(not target.certain for target in mine),
        "requests": len(view.operations),
        "unanswered": sum(op.answered is None for op in view.operations),
        "runs": len(view.completions),
        "effects": len(view.history.effects),
        "repeated effects": repeats,
        "repeated events": sum(copies.values()) - len(copies),
        "faults": len(view.history.faults),
    }


def lateness(view: View) -> dict[str, float]:
    """Return how late certain targets took effect, in seconds: without a fault, and with one."""
    calm: list[float] = []
    faulty: list[float] = []
    for _, target, effect in view.first_effects():
        if target.certain:
            late = (effect.received - target.due) / SECOND
            (faulty if view.touched(target.due, effect.received) else calm).append(late)
    found: dict[str, float] = {}
    for name, times in (("calm", calm), ("faulty", faulty)):
        if len(times) > 1:
            found |= {
                f"{name} p50": median(times),
                f"{name} p99": quantiles(times, n=100)[98],
                f"{name} max": max(times),
            }
    return found


def recoveries(history: History) -> dict[str, list[float | None]]:
    """Return the times to recover of each row, in seconds.

    A fault is over when what was due before its end has run, by the jobs whose targets answer at once.
    """
    found: defaultdict[str, list[float | None]] = defaultdict(list)
    for fault in history.faults:
        last = max(
            (
                effect.received
                for effect in history.effects
                if effect.job_key.startswith(_PROMPT_JOBS)
                and fault.injected - PROMPT < effect.scheduled_at <= fault.healed
            ),
            default=fault.healed,
        )
        took = max(last - fault.healed, 0) / SECOND
        found[fault.row].append(None if fault.recovered is None else took)
    return found
