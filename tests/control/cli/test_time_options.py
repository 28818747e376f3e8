"""Times on the command line, as every option reads them."""

from datetime import UTC, datetime, time, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.control.cli.command import NO_DATABASE, tidewheel
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.options import rfc3339
from tidewheel.control.console.words import absolute, relative
from tidewheel.control.instants import read_instant
from tidewheel.errors import InvalidInput
from tidewheel.jobs.values import format_duration

NOW = datetime(2026, 3, 29, 12, tzinfo=UTC)
SPANS = st.timedeltas(timedelta(0), timedelta(days=365))


@given(SPANS)
@example(timedelta(hours=24))
def test_a_duration_is_ago_or_from_now_on(span: timedelta) -> None:
    text = format_duration(span)
    assert read_instant(f"+{text}", "--since", now=NOW) == NOW + span
    assert read_instant(f"-{text}", "--run-at", now=NOW, ahead=True) == NOW - span
    assert read_instant(text, "--since", now=NOW) == NOW - span
    assert read_instant(text, "--run-at", now=NOW, ahead=True) == NOW + span


@given(st.timedeltas(timedelta(days=-20_000), timedelta(days=2_000_000)).map(NOW.__add__))
def test_a_printed_instant_is_read_back(at: datetime) -> None:
    assert read_instant(rfc3339(at), "--at") == at


@given(st.text(max_size=40))
@example("24h ago")
@example("+")
@example("2026")
@example("yesterday 25:00")
@example("+99999d")
def test_other_text_is_refused_with_its_option(text: str) -> None:
    try:
        read_instant(text, "--since", now=NOW)
    except InvalidInput as refused:
        assert {error.path for error in refused.errors} == {"--since"}  # noqa: PT017 - some text is a time
        assert all(error.remedy for error in refused.errors)  # noqa: PT017


@given(st.timedeltas(timedelta(days=-900), timedelta(days=900)).map(NOW.__add__))
def test_an_instant_of_a_page_is_read_back(at: datetime) -> None:
    """Both ways in which a page shows an instant, as exactly as it shows it."""
    assert abs(read_instant(absolute(at), "--at", now=NOW) - at) < timedelta(milliseconds=1)
    if (shown := relative(at, NOW)) != "now":
        away = abs(at - NOW)
        exact = timedelta(days=1) if at.year != NOW.year and away >= timedelta(days=1) else timedelta(minutes=1)
        assert abs(read_instant(shown, "--at", now=NOW) - at) <= exact


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("now", "2026-03-29T12:00:00Z"),
        ("yesterday", "2026-03-27T23:00:00Z"),
        ("today", "2026-03-28T23:00:00Z"),
        ("tomorrow 09:30", "2026-03-30T07:30:00Z"),
        ("1:30", "2026-03-29T00:30:00Z"),
        ("today 12am", "2026-03-28T23:00:00Z"),
        ("2026-03-29 12:15PM", "2026-03-29T10:15:00Z"),
        ("Sun 03:30", "2026-03-29T01:30:00Z"),
        ("monday 2:30:05", "2026-03-23T01:30:05Z"),
        ("13 Nov 02:30", "2025-11-13T01:30:00Z"),
        ("Sat 13 Jun 2026", "2026-06-12T22:00:00Z"),
        ("Nov 13, 2026, 2:30", "2026-11-13T01:30:00Z"),
        ("29 Feb", "2028-02-28T23:00:00Z"),
    ],
)
def test_a_named_day_is_one_of_the_zone(text: str, utc: str) -> None:
    assert rfc3339(read_instant(text, "--since", "Europe/Berlin", now=NOW)) == utc


@given(
    st.times(), st.sampled_from(["", " "]), st.sampled_from(["%p", "%P"]), st.sampled_from(["", "today ", "29 March "])
)
@example(time(3), "", "%P", "")
def test_a_time_of_twelve_hours_is_that_of_twenty_four(at: time, blank: str, half: str, day: str) -> None:
    at = at.replace(microsecond=0)
    whole = "%I" if not at.minute and not at.second else "%I:%M" if not at.second else "%I:%M:%S"
    for text in (at.strftime(f"{day}{whole}{blank}{half}"), at.strftime(f"{day}{whole}{blank}{half} UTC")):
        for form in (text, text.replace(" 0", " ").removeprefix("0")):
            assert read_instant(form, "--at", now=NOW) == datetime.combine(NOW, at, UTC), form


@pytest.mark.parametrize("text", ["0am", "13pm", "3:5am", "3:15:am", "25:00pm", "am", "13:30 pm", "3amm"])
def test_hour_that_twelve_hours_do_not_have_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a time; write 04:03, 3am, yesterday"):
        read_instant(text, "--at", now=NOW)


@pytest.mark.parametrize(
    "words",
    [
        "admin audit --from 2026-03-29T00:00Z",
        "run list --since 24h",
        "admin restore --dry-run",
        "admin archive show " + "0" * 32,
    ],
)
def test_unknown_zone_is_refused_also_where_no_time_needs_it(words: str) -> None:
    done = tidewheel(NO_DATABASE, *words.split(), "--tz", "Europe/Berlim")
    assert done.code == ExitCode.REFUSED
    [refused] = done.refusals
    assert refused.startswith("--tz: 'Europe/Berlim' is not a time zone")
    assert "Europe/Berlin" in refused


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("2:30", "'2026-03-29T02:30' does not exist in Europe/Berlin (DST gap)"),
        ("25:00", "'2026-03-29T25:00' is not a valid time (hour must be in 0..23)"),
        ("24:00", "'24:00' is not a time"),
        ("30 Feb", "'30 Feb' is not a day of the calendar"),
        ("Mon 13 Nov 2026", "2026-11-13 is a Friday"),
    ],
)
def test_a_day_that_names_no_instant_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_instant(text, "--at", "Europe/Berlin", now=NOW)
    assert [error.problem for error in refused.value.errors] == [problem]
