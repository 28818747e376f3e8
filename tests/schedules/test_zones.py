"""Zones and their clock changes."""

import zoneinfo
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from itertools import pairwise

import pytest

from tests.schedules.brute_force import pinned_zone
from tests.schedules.instants import next_occurrences
from tidewheel.errors import ScheduleRefused
from tidewheel.schedules.zones import FOREVER, LAST_YEAR, changes_by_rule, read_zone_file, zone, zone_names

SINCE = datetime(1901, 1, 1, tzinfo=UTC).timestamp()
FOUR_DAYS = 4 * 86_400


def test_zone_transitions_equal_those_of_zoneinfo() -> None:
    compared = 0
    for name in zone_names():
        of, theirs = zone(name), pinned_zone(name)
        for start, before, offset, abbreviation in zip(
            of.starts[1:], of.offsets, of.offsets[1:], of.abbreviations[1:], strict=False
        ):
            if start < SINCE:
                continue
            at = datetime.fromtimestamp(start, UTC)
            assert (at - timedelta(seconds=1)).astimezone(theirs).utcoffset() == timedelta(seconds=before), (name, at)
            assert at.astimezone(theirs).utcoffset() == timedelta(seconds=offset), (name, at)
            assert at.astimezone(theirs).tzname() == abbreviation, (name, at)
            compared += 1
    assert compared > 100_000


def test_no_two_zone_changes_are_so_close_that_spans_touch() -> None:
    """`localise` treats each change by itself; here is why it may."""
    for name in zone_names():
        later = [start for start in zone(name).starts[1:] if start > SINCE]
        assert all(b - a >= FOUR_DAYS for a, b in pairwise(later)), name


def test_spans_ascend_and_reach_the_last_year() -> None:
    for name in zone_names():
        of = zone(name)
        assert of.starts[0] == -FOREVER
        assert all(a < b for a, b in pairwise(of.starts)), name
    assert datetime.fromtimestamp(zone("Europe/Berlin").starts[-1], UTC).year == LAST_YEAR


def test_the_machines_own_zone_files_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoneinfo, "TZPATH", ("/nowhere",))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert zone("Africa/Casablanca").offsets


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("europe/berlin", "write Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("Europe/Belrin", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("UTC+2", "write Etc/GMT-2"),
        ("gmt-3", "write Etc/GMT+3"),
        ("+05:00", "write Etc/GMT-5"),
        ("Mars/Phobos", "such as Europe/Berlin"),
        ("../../etc/passwd", "such as Europe/Berlin"),
        ("", "such as Europe/Berlin"),
        ("Europe/" + "x" * 10_000, "Europe/"),
    ],
)
def test_an_unknown_zone_is_refused_with_the_nearest(name: str, offered: str) -> None:
    with pytest.raises(ScheduleRefused) as caught:
        zone(name)
    (error,) = caught.value.errors
    assert error.path == "timezone"
    assert offered in error.remedy
    assert len(error.problem) < 200


@pytest.mark.parametrize(
    ("footer", "changes"),
    [
        ("CET-1CEST,M3.5.0,M10.5.0/3", ["03-29 01:00 7200 CEST", "10-25 01:00 3600 CET"]),
        ("<+1030>-10:30<+11>-11,M10.1.0,M4.1.0", ["04-04 15:00 37800 +1030", "10-03 15:30 39600 +11"]),
        ("IST-1GMT0,M10.5.0,M3.5.0/1", ["03-29 01:00 3600 IST", "10-25 01:00 0 GMT"]),
        ("<-02>2<-01>,M3.5.0/-1,M10.5.0/0", ["03-29 01:00 -3600 -01", "10-25 01:00 -7200 -02"]),
        ("EST5EDT,J60/0,300/1:30:30", ["03-01 05:00 -14400 EDT", "10-28 05:30:30 -18000 EST"]),
        ("UTC0", []),
    ],
)
def test_posix_rules(footer: str, changes: list[str]) -> None:
    found = changes_by_rule(footer, range(2026, 2027))
    instants = [(datetime.fromtimestamp(change.at, UTC), change) for change in found]
    expected = [text.split() for text in changes]
    assert [
        [f"{at:%m-%d}", f"{at:%H:%M}" + (f":{at:%S}" if at.second else ""), str(change.offset), change.abbreviation]
        for at, change in instants
    ] == expected


@pytest.mark.parametrize("footer", ["", "nonsense", "CET-1CEST,M3.5,M10.5.0"])
def test_invalid_posix_rule_is_refused(footer: str) -> None:
    with pytest.raises(ValueError, match="POSIX TZ rule"):
        changes_by_rule(footer, range(2026, 2027))


def test_invalid_zone_file_is_refused() -> None:
    with pytest.raises(ValueError, match="TZif"):
        read_zone_file(b"PNG!" + bytes(60))
    data = files("tzdata").joinpath("zoneinfo", "UTC").read_bytes()
    with pytest.raises(ValueError, match="TZif"):
        read_zone_file(data[:4] + b"\0" + data[5:])


def test_rules_hold_long_after_the_last_written_transition() -> None:
    start = datetime(2099, 3, 28, 12, tzinfo=UTC)
    assert next_occurrences("30 2 * * *", "Europe/Berlin", start, 1) == [datetime(2099, 3, 29, 1, tzinfo=UTC)]
