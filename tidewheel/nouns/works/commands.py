"""`tidewheel work …`: columns and facts, and the wait for a work that a command has started."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.options import requesting, utc_and_local
from tidewheel.control.cli.output import Shown, Table, moment, print_record, print_result, progress_bar
from tidewheel.control.cli.parser import switch
from tidewheel.control.cli.tables import Cell
from tidewheel.control.reads.stored import readable
from tidewheel.doors.cli import Flag, command
from tidewheel.errors import refuse
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.jobs.values import parse_timestamp
from tidewheel.nouns.works.operations import ENDS, INSTANTS, Work, Works
from tidewheel.runs import RunState
from tidewheel.schedules.decision import BackfillState

if TYPE_CHECKING:
    from tidewheel.control.client.client import Client

_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(?:/(s|m|h))?", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, None: 1}
_REACHED = {"pause": BackfillState.PAUSED, "resume": BackfillState.RUNNING, "cancel": BackfillState.CANCELLED}
_DONE = {"pause": "paused", "resume": "resumed", "cancel": "cancelled"}


def show_started(
    verb: str, things: str, shown: Shown, more: Callable[[Shown], Mapping[str, int]] = lambda _: {}
) -> None:
    """Print the work that a command has started, with further counts, or follow it."""
    done = shown.found
    if shown.options["wait"] and done.work_id is not None:
        follow(shown, done.work_id)
        return
    counts = more(shown)
    lines = [f"{verb} {done.work_id}"] if done.work_id else []
    others = [f"; {name.replace('_', ' ')} before: {count:,}" for name, count in counts.items() if count]
    lines.append(f"{things} to {verb}: {'at least ' if done.at_least else ''}{done.matched:,}{''.join(others)}")
    names = ("work_id", "matched", "at_least")
    print_result(lines, {**{name: getattr(done, name) for name in names}, **counts}, shown.output)


def _read_rate(text: str) -> float:
    found = _RATE.fullmatch(text)
    if found is None or float(found[1]) == 0:
        refuse("--rate", f"{text!r} is not a rate", "write it as 10/s, 100/m or 1000/h")
    return float(found[1]) / _SECONDS[found[2]]


def follow(shown: Shown, work_id: UUID) -> None:
    """Print a work once it has ended; exit with code 1 unless it did all, and its runs succeeded."""
    with requesting(shown.tenant) as client:
        work = _wait(client, work_id)
    _print(work, shown)
    if work.rejected_count or work.state != BackfillState.FINISHED or _runs(work).keys() - {RunState.SUCCEEDED}:
        raise typer.Exit(ExitCode.FAILED)


def _wait(client: "Client", work_id: UUID) -> Work:
    first = client.works.get(work_id)
    with progress_bar(first.kind, first.matched_count if first.is_counted else None) as show:
        return client.works.wait(work_id, on_progress=lambda work: show(work.processed))


def _show_one(shown: Shown) -> None:
    if shown.options["follow"]:
        follow(shown, shown.found.work_id)
    else:
        _print(shown.found, shown)


def _show_change(verb: str, shown: Shown) -> None:
    """Print a work's new state; exit with code 5 if its old state does not allow the change."""
    work_id, done = shown.arguments["work_id"], shown.found
    reached = not done.unchanged or done.status == _REACHED[verb]
    text = f"unchanged: the work is {'already ' if reached else ''}{done.status}" if done.unchanged else _DONE[verb]
    document = {"work_id": work_id, "unchanged": done.unchanged, "status": done.status}
    print_result([f"work {work_id}: {text}"], document, shown.output)
    if not reached:
        raise typer.Exit(ExitCode.REFUSED)


def _print(work: Work, shown: Shown) -> None:
    print_record(_facts(work, shown.zone), work, shown.output)


def _row(each: Work) -> tuple[Cell, ...]:
    return (
        str(each.work_id), each.kind, str(each.filter.get("job", "")), each.created_at, _state(each), _done(each),
        f"{each.rejected_count:,}", _rate(each) or "", each.reason or "",
    )  # fmt: skip


def _facts(work: Work, zone: str | None) -> Iterator[tuple[str, str | None]]:
    yield work.kind, str(work.work_id)
    yield "state", _state(work)
    yield "done", _done(work)
    yield "rejected", f"{work.rejected_count:,}" if work.rejected_count else None
    yield "rate", _rate(work)
    yield "filter", "\n".join(f"{name}: {_value(name, value, zone)}" for name, value in sorted(work.filter.items()))
    yield "runs", ", ".join(f"{count:,} {state}" for state, count in sorted(_runs(work).items()))
    next_at = work.facts.get("next_at")
    yield "next instant", _value("next_at", next_at, zone) if next_at else None
    yield "reason", work.reason
    yield "created", moment(work.created_at, zone)
    yield "ended", moment(work.finished_at, zone) if work.finished_at else None
    yield "rejections", "\n".join(f"{each.get('id')}: {_problems(each.get('errors'))}" for each in work.rejections)


def _value(name: str, value: object, zone: str | None) -> str:
    if name in INSTANTS:
        text = str(value)
        return readable("filter", name, lambda: utc_and_local(parse_timestamp(text), zone), text)
    parts = as_list(value)
    if parts is not None:
        return ", ".join(map(str, parts))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _runs(work: Work) -> dict[str, object]:
    return as_object(work.facts.get("runs")) or {}


def _state(work: Work) -> str:
    return f"{work.state}, {ENDS}" if work.facts.get("ending") else work.state


def _done(work: Work) -> str:
    total = f"{work.matched_count:,}" if work.is_counted else f"more than {work.matched_count - 1:,}"
    return f"{work.done_count:,} of {total}"


def _rate(work: Work) -> str | None:
    return f"{work.rate:g}/s" if work.rate else None


def _problems(errors: object) -> str:
    found = filter(None, map(as_object, as_list(errors) or ()))
    return "; ".join(f"{each['path']}: {each['problem']}; {each['remedy']}" for each in found)


_WORKS = Table("work", ("id", "kind", "job", "created", "state", "done", "rejected", "rate", "reason"), _row)
_FLAGS = {"work_id": Flag(help="The id, as printed by the command that started the work.")}
_FOLLOW = switch("Wait until the work is finished.", "--follow", "-f")

RATE = Flag(metavar="N/s", help="Process at most this many per second; also N/m or N/h.", read=_read_rate)
"""The flag of a work's rate."""
OF_FAILED: Mapping[str, Flag | None] = {"error_type": Flag("--error", "TYPE"), "rate": RATE}
"""The flags of a work on failed runs."""
WAIT = {"wait": Annotated[bool, switch("Wait until all are processed; do not wait for the new runs to end.", "--wait")]}
"""The option to follow a work."""

_work = partial(command, Works, flags=_FLAGS)
list_works = _work("list", partial(_WORKS.show, nothing="no bulk work"))
show = _work("get", _show_one, options={"follow": Annotated[bool, _FOLLOW]}, local_times=True)
pause = _work("pause", partial(_show_change, "pause"))
resume = _work("resume", partial(_show_change, "resume"))
cancel = _work("cancel", partial(_show_change, "cancel"))
