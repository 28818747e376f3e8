"""Instants in the zone of the page, durations, numbers, states and people's text as pages show them."""

import re
import statistics
import unicodedata
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from tidewheel.control.words import duration, schedule_words
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.jobs.targets import TARGETS
from tidewheel.jobs.values import format_timestamp, parse_timestamp
from tidewheel.runs import SCHEDULED, SKIP_WORDS, AttemptOutcome, Cause, RunState
from tidewheel.schedules.describe import describe_times

NONE = "\u2013"
"""A dash, where there is no value."""

NO_REASON = "requested"
"""The stored reason of a cancellation that gives none."""

_DAY = timedelta(days=1)
_HOUR, _MINUTE, _SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
_UNITS = (1.5 * _HOUR, _HOUR, "h"), (_MINUTE, _MINUTE, "min"), (_SECOND, _SECOND, "s")  # each with its least span
_SHORT = 40  # characters of a schedule in words
_LONGEST_KEY = 44  # characters in a table
_TEN = 10
_KEPT = 65_536  # characters of one text in a page
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,2}", re.ASCII)
_INSTANT = re.compile(
    r"\b(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?Z)(?: \(\d{4}-\d\d-\d\dT[0-9:.]+[+-]\d\d:\d\d\))?", re.ASCII
)  # with the same instant by another clock
_SUB_DAILY = re.compile(r"every (?:second|minute|hour|\d+ (?:seconds|minutes|hours))")  # the same by each clock
_CODE = re.compile(r"`((?:[^`<>&]|&#39;|&amp;)+)`")
_COMMAND = re.compile(r"((?:[A-Z_]+=\S+ )?(?:tidewheel|kafka-configs\.sh) .+?)(?:(, )((?:with|where|or) .*))?", re.S)

_FAMILIES: Mapping[str, str] = {
    SCHEDULED: "ahead", RunState.BLOCKED: "ahead", RunState.QUEUED: "trouble", RunState.BUFFERED: "trouble",
    RunState.RUNNING: "moving", RunState.WAITING: "moving",
    RunState.RETRYING: "trouble", RunState.CANCELLING: "trouble",
    RunState.SUCCEEDED: "good", RunState.FAILED: "bad", RunState.TIMED_OUT: "bad",
    RunState.CANCELLED: "undone", RunState.SKIPPED: "undone",
    "pending": "ahead", "not_reached": "undone", "open": "moving", "paused": "trouble", "timing_out": "trouble",
    "warning": "trouble",
    AttemptOutcome.LOST: "trouble", AttemptOutcome.RELEASED: "ahead", AttemptOutcome.SNOOZED: "ahead",
}  # fmt: skip
_STATES = {
    RunState.QUEUED: "waiting", "due": "waiting", RunState.WAITING: "awaiting completion",
    Cause.WORKFLOW: "workflow or batch",
}  # fmt: skip
"""States and causes by the words of the glossary, where they differ from the stored ones."""
_REASONS = {**SKIP_WORDS, NO_REASON: "by request, without a reason"}
_SYMBOLS: Mapping[str, str] = {
    "pending": "blocked", "not_reached": "skipped", "open": "running", "timing_out": "cancelling",
    AttemptOutcome.RELEASED: "queued", AttemptOutcome.SNOOZED: "queued",
}  # fmt: skip


def between(since: datetime | None, until: datetime | None) -> timedelta | None:
    """Return the time between two instants; None if one of them is missing."""
    return None if since is None or until is None else until - since


def relative(at: datetime | None, now: datetime, zone: tzinfo = UTC) -> str:
    """Return an instant in relation to now in one unit, beyond a day with its date; a dash for None.

    >>> now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    >>> [relative(now + timedelta(seconds=each), now) for each in (0, -3, 240, -5399, -5400, 345600)]
    ['now', '3 s ago', 'in 4 min', '89 min ago', '2 h ago', 'Wed 25 Nov 12:00']
    >>> relative(datetime(2025, 11, 17, tzinfo=UTC), now)
    '17 Nov 2025'
    """
    if at is None:
        return NONE
    span = at - now
    if abs(span) >= _DAY:
        day = at.astimezone(zone)
        is_near = day.year == now.astimezone(zone).year
        return f"{day:%a} {day.day} {day:%b %H:%M}" if is_near else f"{day.day} {day:%b %Y}"
    if abs(span) < _SECOND:
        return "now"
    size, unit = next(each[1:] for each in _UNITS if abs(span) >= each[0])
    text = f"{round(abs(span) / size) if size == _HOUR else abs(span) // size} {unit}"
    return f"in {text}" if span > timedelta(0) else f"{text} ago"


def absolute(at: datetime, zone: tzinfo = UTC) -> str:
    """Return an instant to the millisecond, with the name of its zone at that time.

    >>> absolute(datetime(2026, 11, 21, 23, 13, 4, 118000, tzinfo=UTC))
    'Sat 21 Nov 2026 23:13:04.118 UTC'
    """
    day = at.astimezone(zone)
    return f"{day:%a} {day.day} {day:%b %Y %H:%M:%S}.{day.microsecond // 1000:03} {day:%Z}"


def both(at: datetime, zone: tzinfo = UTC) -> str:
    """Return an instant in a zone and in UTC, for a title.

    >>> both(datetime(2026, 11, 21, 23, 13, 4, 118000, tzinfo=UTC), ZoneInfo("Europe/Berlin"))
    'Sun 22 Nov 2026 00:13:04.118 CET, UTC+01:00, 2026-11-21T23:13:04.118Z'
    """
    if zone is UTC:
        return absolute(at)
    utc = at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")
    return f"{absolute(at, zone)}, UTC{offset(at, zone)}, {utc}Z"


def when(at: datetime | None, now: datetime) -> str:
    """Return an instant for a sentence: in relation to now below a day, beyond that for `timed`."""
    if at is not None and abs(at - now) >= _DAY:
        return format_timestamp(at)
    words = relative(at, now)
    return "just now" if words == "now" and at is not None and at <= now else words


def timed(text: str | None, zone: tzinfo = UTC, now: datetime | None = None) -> str:
    """Return a sentence with its instants in a zone; beside a present, today's are clock times.

    >>> timed("It ended at 2026-11-21T23:13:04Z, within 250 ms.", ZoneInfo("Europe/Berlin"))
    'It ended at Sun 22 Nov 2026 00:13:04 CET, within 250 ms.'
    >>> timed("It ended at 2026-11-21T23:13:04.5Z.", UTC, datetime(2026, 11, 21, tzinfo=UTC))
    'It ended at 23:13.'
    """

    def shown(found: re.Match[str]) -> str:
        try:
            at = parse_timestamp(found[1])
            return absolute(at, zone).replace(".000", "") if now is None else _by_clock(at.astimezone(zone), now)
        except (InvalidValue, OverflowError):
            return found[0]

    return _INSTANT.sub(shown, text or "")


def _by_clock(at: datetime, now: datetime) -> str:
    today = now.astimezone(at.tzinfo)
    if at.date() == today.date():
        return f"{at:%H:%M}"
    return f"{at.day} {at:%b %H:%M}" if at.year == today.year else f"{at.day} {at:%b %Y}"


def offset(at: datetime, zone: tzinfo) -> str:
    """Return the distance of a zone from UTC at an instant.

    >>> offset(datetime(2026, 7, 1, tzinfo=UTC), ZoneInfo("Asia/Kolkata"))
    '+05:30'
    """
    text = f"{at.astimezone(zone):%z}"
    return f"{text[:3]}:{text[3:5]}"


def number(value: int, *, at_least: bool = False) -> str:
    """Return a number with separators, and a plus if it is a lower bound.

    >>> number(1306), number(10000, at_least=True)
    ('1,306', '10,000+')
    """
    return f"{value:,}{'+' if at_least else ''}"


def pace(value: float) -> str:
    """Return a rate with two figures below ten.

    >>> pace(2900.4), pace(0.512), pace(50)
    ('2,900', '0.51', '50')
    """
    return f"{value:,.0f}" if value >= _TEN else f"{value:.2g}"


def percent(share: float) -> str:
    """Return a share as a percentage.

    >>> percent(0.992), percent(1)
    ('99.2%', '100.0%')
    """
    return f"{100 * share:.1f}%"


def counted(value: int, noun: str, *, at_least: bool = False) -> str:
    """Return a number with its noun.

    >>> counted(1, "run"), counted(2, "process"), counted(10_000, "run", at_least=True)
    ('1 run', '2 processes', '10,000+ runs')
    """
    plural = "es" if noun.endswith("s") else "s"
    return f"{number(value, at_least=at_least)} {noun}{'' if value == 1 and not at_least else plural}"


def agreed(value: int, one: str, more: str) -> str:
    """Return the form of a verb or a pronoun that agrees with a number.

    >>> agreed(1, "is", "are"), agreed(0, "is", "are")
    ('is', 'are')
    """
    return one if value == 1 else more


def size(value: int) -> str:
    """Return a number of bytes with three figures at most.

    >>> size(1), size(812), size(12_400), size(262_144), size(5_000_000)
    ('1 byte', '812 bytes', '12.1 KiB', '256 KiB', '4.77 MiB')
    """
    if value < 1024:
        return counted(value, "byte")
    return f"{value / 1024:.3g} KiB" if value < 1024 * 999.5 else f"{value / 1024**2:.3g} MiB"


def ordinal(value: int) -> str:
    """Return the place in a row.

    >>> [ordinal(each) for each in (1, 2, 3, 4, 11, 12, 13, 21, 112)]
    ['1st', '2nd', '3rd', '4th', '11th', '12th', '13th', '21st', '112th']
    """
    suffix = "th" if value // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")
    return f"{value}{suffix}"


def state(text: str | None) -> str:
    """Return a state in words; of a damaged row it may be absent.

    >>> state("timed_out"), state("queued"), state("waiting")
    ('timed out', 'waiting', 'awaiting completion')
    """
    return "unknown" if text is None else _STATES.get(text, text.replace("_", " "))


def reason_words(reason: str) -> str:
    """Return the reason of a skip or a cancellation in words.

    >>> reason_words("overlap"), reason_words("wrong data")
    ('another run of the job was active', 'wrong data')
    """
    return _REASONS.get(reason, state(reason))


def symbol_of(status: str) -> str:
    """Return the id of the mark of a state, or of an outcome of an attempt."""
    return f"i-{_SYMBOLS.get(status, status if status in _FAMILIES else 'queued')}"


def family_of(status: str) -> str:
    """Return the colour family of a state, or of an outcome of an attempt."""
    return _FAMILIES.get(status, "ahead")


def short_id(value: UUID) -> str:
    """Return an id for a narrow table.

    >>> short_id(UUID("01a1f866-8561-8c4e-a263-6b34d2c244d1"))
    '01a1f866…44d1'
    """
    return f"{str(value)[:8]}…{str(value)[-4:]}"


def people(text: str | None) -> Markup:
    r"""Return people's text in its own direction, with control characters as visible boxes.

    >>> people("a<b>\u202e")
    Markup('<bdi>a&lt;b&gt;<span class="box">U+202E</span></bdi>')
    """
    return Markup("<bdi>{}</bdi>").format(boxed(text or "", kept=""))


def prose(text: str | None) -> Markup:
    """Return a sentence with a capital, and words between backticks as code.

    >>> prose("`tidewheel status` shows slots; start <more>")
    Markup('<bdi><code>tidewheel status</code> shows slots; start &lt;more&gt;</bdi>')
    """
    given = text or ""
    return Markup(_CODE.sub(r"<code>\1</code>", str(people(given[:1].upper() + given[1:]))))  # noqa: S704 - escaped before


def sentence(text: str, zone: tzinfo = UTC) -> Markup:
    """Return a text of the product as a sentence, with its instants in a zone.

    >>> sentence("no open run matches"), sentence("did you mean 'day'?")
    (Markup('<bdi>No open run matches</bdi>.'), Markup('<bdi>Did you mean &#39;day&#39;?</bdi>'))
    """
    return prose(timed(text, zone)) + ("" if text.endswith((".", "?")) else ".")


def remedy(text: str | None) -> Markup:
    """Return a remedy: a command as code to copy with what belongs to it behind, or a sentence.

    >>> remedy("tidewheel service executor --queues a, where a includes x")
    Markup('<code><bdi>tidewheel service executor --queues a</bdi></code>, <bdi>where a includes x</bdi>')
    >>> remedy("raise the limit by `tidewheel admin tenant limits NAME`")
    Markup('<bdi>Raise the limit by <code>tidewheel admin tenant limits NAME</code></bdi>.')
    """
    found = _COMMAND.fullmatch(text or "")
    if found is None:
        return prose(text) + ("." if text else "")
    behind = Markup("{}{}").format(found[2], people(found[3])) if found[2] else ""
    return Markup("<code>{}</code>{}").format(people(found[1]), behind)


def lines(text: str | None) -> Markup:
    """Return text of several lines, such as a trace, with control characters as visible boxes."""
    given = (text or "").replace("\r\n", "\n")
    cut = f"\n… {len(given) - _KEPT:,} more characters" if len(given) > _KEPT else ""
    return boxed(given[:_KEPT], kept="\n\t") + cut


def key(text: str) -> Markup:
    """Return a key for a table: the middle of a long one gives way, and its title has all of it."""
    if len(text) <= _LONGEST_KEY:
        return people(text)
    return Markup('<bdi title="{}">{}</bdi>').format(visible(text), boxed(f"{text[:26]}…{text[-14:]}", kept=""))


def target(job: Mapping[str, object]) -> str:
    """Return what a job runs, in a line; headers and arguments may have secrets and are left out.

    >>> target({"target": {"type": "http", "url": "https://example.org/a", "headers": {"X": "y"}}})
    'POST https://example.org/a'
    >>> [target({"target": each}) for each in ("send", {"type": "shell", "argv": ["/bin/backup", "-p", "x"]}, None)]
    ['handler send', 'shell /bin/backup', '']
    """
    given = job.get("target")
    found = as_object(given) or {"type": "handler", "name": given}
    kind = str(found.get("type"))
    named = found.get(TARGETS[kind].sets) if kind in TARGETS else None
    named = next(iter(as_list(named) or [named]))
    label = str(found.get("method", "POST")) if kind == "http" else kind
    return f"{label} {named}" if named else ""


def schedule_of(schedule: Mapping[str, object]) -> str:
    """Return a schedule in a few words: a single cron expression by its times, if these are short."""
    words, expressions = schedule_words(schedule), as_list(schedule.get("expressions")) or []
    times = _times(str(expressions[0]), str(schedule.get("timezone") or "UTC")) if len(expressions) == 1 else words
    return times if len(times) <= _SHORT else words


@lru_cache(1000)
def _times(expression: str, timezone: str) -> str:
    times, _, of = describe_times(expression, timezone).rpartition(", in time zone ")
    short = times.removesuffix(", every day").replace("at minute 0 of ", "").replace("every 1 hours", "every hour")
    if of == "UTC" or _SUB_DAILY.fullmatch(short):
        return short
    return f"{short}, {of.rpartition('/')[2].replace('_', ' ')} time"


def visible(text: str) -> str:
    r"""Return a text for a title, with control characters by their numbers.

    >>> visible("a\u202eb")
    'a[U+202E]b'
    """
    return "".join(f"[U+{ord(char):04X}]" if _is_control(char) else char for char in text)


def boxed(text: str, *, kept: str) -> Markup:
    """Return text with its control characters as visible boxes, except those that are kept."""
    if text.isprintable():
        return escape(text)
    parts = (
        Markup('<span class="box">U+{}</span>').format(f"{ord(char):04X}")
        if _is_control(char) and char not in kept
        else escape(char)
        for char in text
    )
    return Markup("").join(parts)


def _is_control(char: str) -> bool:
    """Return True for control and format characters, lone surrogates, and breaks of lines."""
    return not char.isprintable() and unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"}


def zone_of(text: str) -> tzinfo | None:
    """Return a time zone by its name; None if there is none.

    >>> zone_of("Europe/Berlin"), zone_of("UTC"), zone_of("../etc/passwd"), zone_of("")
    (zoneinfo.ZoneInfo(key='Europe/Berlin'), datetime.timezone.utc, None, None)
    """
    if text == "UTC":
        return UTC
    if not _ZONE.fullmatch(text):
        return None
    try:
        return ZoneInfo(text)
    except (OSError, ValueError, ZoneInfoNotFoundError):
        return None


def _clocked(text: str | None, now: datetime, zone: tzinfo) -> str:
    return timed(text, zone, now)


def _in_zone(show: Callable[..., str]) -> Callable[..., str]:
    """Return a filter whose instants are in the zone of the page."""

    @pass_context
    def shown(context: Context, *values: object) -> str:
        return show(*values, context.get("page_zone", UTC))

    return shown


FILTERS: Mapping[str, Callable[..., Any]] = {
    "duration": duration, "relative": _in_zone(relative), "absolute": _in_zone(absolute),
    "both": _in_zone(both), "timed": _in_zone(timed), "sentence": _in_zone(sentence), "offset": _in_zone(offset),
    "clocked": _in_zone(_clocked), "rfc3339": format_timestamp,
    "number": number, "counted": counted, "ordinal": ordinal, "state": state, "symbol_of": symbol_of,
    "family_of": family_of, "reason": reason_words, "short_id": short_id, "people": people, "lines": lines,
    "key": key, "bytes": size, "pace": pace, "percent": percent, "visible": visible, "prose": prose,
    "median": statistics.median, "target": target, "schedule": schedule_of, "remedy": remedy,
}  # fmt: skip
