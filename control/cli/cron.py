"""`tidewheel admin cron explain`: cron expressions in words, and the effects of daylight saving time.

Needs no database.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import typer

from tidewheel.clock import SystemClock
from tidewheel.control.cli.options import rfc3339, wall
from tidewheel.control.cli.output import Output, OutputOption, print_result, wrapped
from tidewheel.control.instants import read_instant
from tidewheel.errors import ScheduleRefused
from tidewheel.ids import job_id
from tidewheel.schedules.cron_parser import uses_hash
from tidewheel.schedules.cron_schedule import DstGap, DstOverlap
from tidewheel.schedules.describe import MarkedOccurrence, describe, marked_occurrences
from tidewheel.schedules.parse import ensure_can_fire, parse_schedule
from tidewheel.schedules.zones import LAST_YEAR

_MAX_SHOWN = 1000


@dataclass(frozen=True, slots=True)
class Explained:
    """Expressions in words, with the instants that they match, all later than `after`."""

    expressions: tuple[str, ...]
    words: tuple[str, ...]
    timezone: str
    dst_gap: DstGap
    dst_overlap: DstOverlap
    after: datetime
    occurrences: "tuple[Occurrence, ...]"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One instant, the expressions that match it, and the effects of clock changes on it."""

    utc: datetime
    local: datetime
    notes: tuple[str, ...]
    expressions: tuple[str, ...]


def explain(
    expressions: Annotated[list[str], typer.Argument(metavar="EXPR", help='Each in quotes, such as "0 8 * * *".')],
    *,
    timezone: Annotated[str, typer.Option("--tz", metavar="ZONE", help="IANA time zone of the expressions.")] = "UTC",
    after: Annotated[str | None, typer.Option(metavar="TIME", help="Begin after this time; default: now.")] = None,
    number: Annotated[
        int, typer.Option("-n", metavar="N", min=1, max=_MAX_SHOWN, help="Show this many instants.")
    ] = 10,
    dst_gap: Annotated[DstGap, typer.Option(help="Rule for a local time that the clock skips.")] = DstGap.SHIFT_FORWARD,
    dst_overlap: Annotated[
        DstOverlap, typer.Option(help="Rule for a local time that occurs twice.")
    ] = DstOverlap.FIRST,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The key of the job for which `H` is computed.")
    ] = None,
    tenant: Annotated[str, typer.Option(metavar="NAME", help="Tenant of that job.")] = "default",
    output: OutputOption = Output.TEXT,
) -> None:
    """Describe cron expressions and show their next instants."""
    _refuse_unquoted(expressions)
    if key is None and any(map(uses_hash, expressions)):
        problem = "`H` depends on the job's id, and no job is given"
        raise ScheduleRefused(problem, "add --key with the job's key, or write a number", "cron")
    begin = read_instant(after, "--after", timezone, ahead=True) if after else SystemClock().now()
    job = job_id(tenant, key) if key is not None else None
    read: dict[str, object] = {"expressions": expressions, "timezone": timezone}
    chosen: dict[str, DstGap | DstOverlap] = {"dst_gap": dst_gap, "dst_overlap": dst_overlap}
    ensure_can_fire(parse_schedule({"kind": "cron", **read, **chosen}, job_id=job), begin)
    marked = {
        each: marked_occurrences(each, timezone, begin, number, **chosen, hash_key=job.bytes if job else None)
        for each in expressions
    }
    explained = Explained(
        expressions=tuple(expressions),
        words=tuple(describe(each, timezone, **chosen) for each in expressions),
        timezone=timezone,
        dst_gap=dst_gap,
        dst_overlap=dst_overlap,
        after=begin,
        occurrences=_merged(marked)[:number],
    )
    print_result(_text(explained, number), explained, output)


def _merged(marked: Mapping[str, Iterable[MarkedOccurrence]]) -> tuple[Occurrence, ...]:
    """Return the instants of all expressions in order; a shared instant is one, with the notes of each."""
    found: dict[tuple[datetime, datetime], Occurrence] = {}
    for expression, occurrences in marked.items():
        for each in occurrences:
            known = found.get((each.at, each.local))
            shown = [f"`{expression}`: {note}" for note in each.notes] if len(marked) > 1 else each.notes
            notes = (*(known.notes if known else ()), *shown)
            named = (*(known.expressions if known else ()), expression)
            found[each.at, each.local] = Occurrence(each.at, each.local, notes, named)
    return tuple(found[place] for place in sorted(found))


def _refuse_unquoted(expressions: Sequence[str]) -> None:
    """Refuse `explain 0 8 * * *`: the shell splits it into five words and expands the stars."""
    if len(expressions) > 1 and not any(" " in each or each.startswith("@") for each in expressions):
        problem = f"the command received {len(expressions)} expressions of one word each"
        raise ScheduleRefused(
            problem, 'put each expression in quotes: tidewheel admin cron explain "0 8 * * *"', "cron"
        )


def _text(explained: Explained, number: int) -> Iterator[str]:
    several = len(explained.expressions) > 1
    for expression, words in zip(explained.expressions, explained.words, strict=True):
        yield wrapped(f"{expression}: {words}", "  ")
    yield ""
    for each in explained.occurrences:
        named = f"  {', '.join(each.expressions)}" if several else ""
        yield f"{rfc3339(each.utc)}  {wall(each.local)}{named}"
        for note in each.notes:
            yield wrapped(f"    ! {note}", "      ")
    if len(explained.occurrences) < number:
        yield f"no further instants before the year {LAST_YEAR + 1}"
