"""Arguments that name a run: by its whole id, by a begin that no other run has, or as pages show it."""

import re
from typing import Annotated, NamedTuple, cast
from uuid import UUID

import typer

from tidewheel.control.cli.options import reading
from tidewheel.errors import UnknownRun, refuse

_PART = re.compile(r"(?P<begin>[0-9a-f]{4}[0-9a-f-]{0,31})(?:(?:…|\.\.\.)(?P<end>[0-9a-f]{1,12}))?", re.ASCII)
_SHOWN = 10  # candidates of an ambiguous id


class _Part(NamedTuple):
    """A part of a run's id, as it was written, and its begin and end without hyphens."""

    text: str
    begin: str
    end: str


def _read(text: str) -> UUID | _Part:
    try:
        return UUID(text)
    except ValueError:
        if (found := _PART.fullmatch(text.lower())) is None:
            message = f"{text!r} is no id of a run: write the whole id, or its first digits, at least 4"
            raise typer.BadParameter(message) from None
        return _Part(text, found["begin"].replace("-", ""), found["end"] or "")


def _whole_ids(context: typer.Context, given: object) -> object:
    """Replace each part of an id by the id of the only run that has it."""
    if isinstance(given, list):
        return [_whole_ids(context, each) for each in cast("list[object]", given)]
    return _find(str(context.params["tenant"]), given) if isinstance(given, _Part) else given


def _find(tenant: str, part: _Part) -> UUID:
    """Return the id of the only stored run that a part names; a run of the archive needs its whole id."""
    from tidewheel.nouns.runs.reads import find_short_id  # here: a whole id needs no read

    with reading() as connection:
        runs, is_cut = find_short_id(connection, tenant, part.begin, part.end)
    if is_cut:
        refuse("RUN", f"too many runs have ids that begin with {part.begin}", "write more digits of the id")
    if not runs:
        raise UnknownRun(part.text)
    if len(runs) > 1:
        listed = ", ".join(f"{run.run_id} ({run.key}, {run.status})" for run in runs[:_SHOWN])
        more = f", and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
        refuse("RUN", f"{part.text} names {len(runs)} runs", f"write more digits of one of {listed}{more}")
    return runs[0].run_id


RunId = Annotated[
    UUID,
    typer.Argument(
        metavar="RUN",
        help="The run's id, or its first digits if no other run has them.",
        parser=_read,
        callback=_whole_ids,
    ),
]
RunIds = Annotated[
    list[UUID] | None,
    typer.Argument(metavar="RUN", help="Runs, by id or by its first digits.", parser=_read, callback=_whole_ids),
]
FromRun = Annotated[
    UUID | None,
    typer.Option(
        "--from-run", metavar="RUN", help="A run of the batch that is under way.", parser=_read, callback=_whole_ids
    ),
]
