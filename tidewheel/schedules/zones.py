"""Time zones of the pinned tzdata package, as spans of constant offset.

The zone files of the operating system are never read. So two schedulers with the same package compute the same instants
on any machine.
"""

import difflib
import re
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files

import tzdata  # type: ignore[import-untyped]  # ships no annotations

from tidewheel.errors import ScheduleRefused
from tidewheel.schedules.tzif import Change, ZoneFile, changes_by_rule, read_zone_file

FOREVER = 2**62
"""Later than any second a datetime can name; negated, earlier."""

LAST_YEAR = 2199
"""The last year of zone rules and of searches. No schedule of today needs a later year, and a search for a date that
never comes ends in a few milliseconds.
"""


@dataclass(frozen=True, slots=True)
class Zone:
    """A zone as spans: span ``i`` holds from ``starts[i]`` (inclusive) until ``starts[i + 1]``.

    Args:
        name: The IANA name, as given by the caller.
        starts: Seconds since 1970-01-01 UTC, strictly ascending; the first is ``-FOREVER``.
        offsets: Seconds east of UTC, one for each span.
        abbreviations: Such as ``CEST``, one for each span.
    """

    name: str
    starts: tuple[int, ...]
    offsets: tuple[int, ...]
    abbreviations: tuple[str, ...]

    def span_at(self, second: int) -> int:
        """Return the index of the span in force at that second since 1970-01-01 UTC."""
        return bisect_right(self.starts, second) - 1


def zone(name: str) -> Zone:
    """Return the zone of that IANA name, with its transitions to the end of `LAST_YEAR`.

    >>> zone("Asia/Kolkata").offsets[-1]
    19800

    Raises:
        ScheduleRefused: tzdata has no such zone. The remedy holds the nearest names.
    """
    if name not in zone_names():
        problem = f"{name[:64]!r} is not a time zone of tzdata {tzdata_version()}"
        raise ScheduleRefused(problem, _nearest(name[:64]), "timezone")
    return _load(name)


def tzdata_version() -> str:
    """Return the IANA release of the package, such as ``2026f``."""
    return str(tzdata.IANA_VERSION)


@cache
def zone_names() -> frozenset[str]:
    """Return every name that `zone` accepts."""
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="ascii").split())


@cache
def _load(name: str) -> Zone:
    data = files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
    file = read_zone_file(data)
    later = _by_rule(file)
    return Zone(
        name,
        (-FOREVER, *file.transitions, *(change.at for change in later)),
        (*file.offsets, *(change.offset for change in later)),
        (*file.abbreviations, *(change.abbreviation for change in later)),
    )


def _by_rule(file: ZoneFile) -> list[Change]:
    """Return the changes by the footer's rule after the last transition in the file."""
    if not file.footer:
        return []
    last = file.transitions[-1] if file.transitions else -FOREVER
    first_year = datetime.fromtimestamp(last, UTC).year if file.transitions else 1
    return [change for change in changes_by_rule(file.footer, range(first_year, LAST_YEAR + 1)) if change.at > last]


def _nearest(name: str) -> str:
    """Return a remedy with the names that are most similar."""
    hours = re.fullmatch(r"(?:UTC|GMT)?([+-])0?(\d{1,2})(?::?00)?", name.strip(), re.IGNORECASE | re.ASCII)
    if hours and f"Etc/GMT{hours[1]}{hours[2]}" in zone_names():
        turned = "-" if hours[1] == "+" else "+"
        return f"write Etc/GMT{turned}{hours[2]} (IANA counts westward), or the place's own zone"
    folded = {known.casefold(): known for known in sorted(zone_names())}
    if name.strip().casefold() in folded:
        return f"write {folded[name.strip().casefold()]}"
    tails = {known.rpartition("/")[2].casefold(): known for known in sorted(zone_names())}
    near = difflib.get_close_matches(name.casefold().replace(" ", "_"), [*folded, *tails], n=3, cutoff=0.7)
    names = list(dict.fromkeys(folded.get(found) or tails[found] for found in near))
    if not names:
        return "write an IANA name such as Europe/Berlin, America/New_York or UTC"
    return f"the nearest names are {', '.join(names)}"
