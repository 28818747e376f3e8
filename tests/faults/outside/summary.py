"""The report of a whole run: its campaigns, the rows of the matrix, and every anomaly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tests.faults.outside.records import History
from tests.faults.outside.verdict import Report, recoveries

_ENDS = ("start of everything", "stop of everything")  # of each campaign; no faults


@dataclass(frozen=True)
class Result:
    """One campaign that was judged."""

    name: str
    seed: int
    history: History
    report: Report
    seconds: float  # that it took, with the checks
    mutant: bool = False  # True if an error was planted: then its rows say nothing of the product


def summary(results: Sequence[Result]) -> str:
    """Return the report as tables."""
    lines = ["| campaign | verdict | faults | targets | anomalies | median to recover | worst | took | seed |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for one in results:
        times = _times(recoveries(one.history))
        found = sorted({anomaly.check for anomaly in one.report.anomalies})
        anomalies = f"{len(one.report.anomalies)}{': ' if found else ''}{', '.join(found)}"
        counts = f"{len(times)} | {one.report.counts['targets']} | {anomalies}"
        ended = f"{_recovery(times)} | {one.seconds:.0f} s | {one.seed}"
        lines.append(f"| {one.name} | {one.report.verdict} | {counts} | {ended} |")
    lines += ["", table([one.history for one in results if not one.mutant]), ""]
    lines += [f"{one.name}: {anomaly}" for one in results if not one.mutant for anomaly in one.report.anomalies]
    return "\n".join(lines)


def table(histories: Sequence[History]) -> str:
    """Return the rows with their rounds, and their median and worst time to recover."""
    by_row: dict[str, list[float | None]] = {}
    for history in histories:
        for row, times in recoveries(history).items():
            by_row.setdefault(row, []).extend(times)
    lines = ["| row | rounds | median to recover | worst |", "| --- | --- | --- | --- |"]
    lines += [f"| {row} | {len(times)} | {_recovery(times)} |" for row, times in by_row.items()]
    for fault in (fault for history in histories for fault in history.faults if "stopped" in fault.detail):
        stopped = ", ".join(f"{name} {took:g} s" for name, (took, _) in fault.detail["stopped"].items())
        lines.append(f"{fault.row}: {stopped}")
    return "\n".join(lines)


def _times(by_row: Mapping[str, Sequence[float | None]]) -> list[float | None]:
    return [seconds for row, times in by_row.items() if row not in _ENDS for seconds in times]


def _recovery(times: Sequence[float | None]) -> str:
    known = [seconds for seconds in times if seconds is not None]
    worst = "never" if len(known) < len(times) else f"{max(known, default=0):.1f} s"
    return f"{f'{median(known):.1f} s' if known else 'never'} | {worst}"
