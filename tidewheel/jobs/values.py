"""Types of the fields of submitted documents, with their limits.

A duration is `10s`, `1h30m`, `250ms`, ISO 8601 such as `PT10S`, or a number of seconds. An instant is RFC 3339 text
with an offset, and nothing else.

Source: RFC 3339 section 5.6, "Internet Date/Time Format".
"""

import base64
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from tidewheel.ids import read_uuid
from tidewheel.jobs.invalid import InvalidValue, UnreadableValue
from tidewheel.jobs.strict_json import as_list, as_object, compact
from tidewheel.jobs.validation import not_valid, shown
from tidewheel.runs import Overlap

MAX_PAYLOAD_BYTES = 256 * 1024
MAX_LABELS = 64
MAX_LABEL_NAME = 63
MAX_TEXT = 255
MAX_ELEMENTS = 100
MAX_RESULT_BYTES = 64 * 1024  # of a result, and of a checkpoint
MAX_PROGRESS_BYTES = 4 * 1024
MAX_ERROR_CHARACTERS = 4096  # of an attempt's error message; the rest is cut off
LONGEST_DELAY = timedelta(days=400)  # for longer, submit a `once` job: a delayed trigger is an open run until it starts
MAX_DAYS = 10_000  # of one calendar: a century of a country's holidays
HORIZON_YEARS = 10  # to which the repeats of a calendar file are followed, if its caller names no other
RESERVED = "tidewheel."  # prefix of capabilities in the list of handlers an executor registers; no handler has it
LOWEST, PRIORITY, HIGHEST = 0, 5, 9  # of priorities; the middle one is that of a job which names none
QUEUE = re.compile(r"[a-z0-9._-]{1,64}", re.ASCII)

_NUMBER = r"(\d{1,12}(?:\.\d{1,9})?)"
_SHORT = re.compile(
    rf"(?:{_NUMBER}w)?(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m(?!s))?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?(?:{_NUMBER}us)?",
    re.ASCII,
)
_ISO = re.compile(rf"P(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?", re.ASCII)
_ISO_CALENDAR = re.compile(r"P[\d.]*[YM]", re.ASCII)
_MICROSECONDS = (604_800_000_000, 86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000, 1_000, 1)
_LONGEST = timedelta(days=36_525)  # a century: more than any use needs, and every reader can count it
_REMEDY = "write a duration such as 10s, 5m, 1h30m, 250ms or PT10S, or a number of seconds"
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)%", re.ASCII)

# Hour 24 is ISO 8601's alone: newer Pythons read it as the next day, older ones refuse it.
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ]((?:[01]\d|2[0-3]):\d\d:\d\d(?:\.\d{1,9})?)([Zz]|[+-]\d\d:\d\d)?", re.ASCII
)
_EARLIEST_YEAR = 1970  # run ids count milliseconds from here
_EXAMPLE = "2026-03-29T08:00:00+02:00"

# Control characters, line and paragraph separators, and halves of surrogate pairs, which no UTF-8 can hold.
_NOT_ONE_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_LINE_BREAKS = "\n\r\x85\u2028\u2029"
# Control, format and private characters, noncharacters, and code points that Unicode reserves for invisible ones.
# `tidewheel_enqueue` has the same list. What Unicode has not assigned is allowed: processes differ in its version.
HIDDEN = (
    r"\u0001-\u001f\u007f-\u009f\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f"
    r"\u2028-\u202e\u2060-\u206f\ue000-\uf8ff\ufdd0-\ufdef\ufeff\ufff0-\ufffb\ufffe\uffff"
    r"\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e00ff\U000e01f0-\U000e0fff\U000f0000-\U0010ffff"
    r"\U0001fffe-\U0001ffff\U0002fffe-\U0002ffff\U0003fffe-\U0003ffff\U0004fffe-\U0004ffff\U0005fffe-\U0005ffff"
    r"\U0006fffe-\U0006ffff\U0007fffe-\U0007ffff\U0008fffe-\U0008ffff\U0009fffe-\U0009ffff\U000afffe-\U000affff"
    r"\U000bfffe-\U000bffff\U000cfffe-\U000cffff\U000dfffe-\U000dffff\U000efffe-\U000effff"
)
_HIDDEN = re.compile(rf"[\0{HIDDEN}\ud800-\udfff]")
_NOT_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
_CALENDAR = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TASK_TOKEN = re.compile(r"[A-Za-z0-9_-]{48}", re.ASCII)
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
# Source: W3C Trace Context, "traceparent Header Field Values": neither id is all zeros, and ff is no version.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_NAME = "a-z, 0-9, '.', '_' and '-'"


def parse_duration(value: str | float) -> timedelta:
    """Return the time span that a duration names.

    >>> parse_duration("1h30m") == parse_duration("PT1H30M") == parse_duration(5400)
    True

    Raises:
        InvalidValue: It is not a duration, negative, finer than a microsecond or longer than a century.
    """
    if isinstance(value, str):
        return _from_text(value) if len(value) <= 64 else _refuse(f"{value[:20]!r}... is not a duration")
    return _from_seconds(value)


def format_duration(span: timedelta) -> str:
    """Return a time span as a duration is written.

    >>> format_duration(timedelta(minutes=90)), format_duration(timedelta(milliseconds=250))
    ('1h30m', '250ms')
    """
    left = microseconds(span)
    parts: list[str] = []
    for unit, size in zip(("d", "h", "m", "s", "ms", "us"), _MICROSECONDS[1:], strict=True):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_percentage(value: object) -> float:
    """Return the number of a percentage from 0 to 100, such as `10%`."""
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None or float(match.group(1)) > 100:
        raise not_valid(value, "write a percentage from 0% to 100%, such as 10%")
    return float(match.group(1))


def format_percentage(percent: float) -> str:
    """Return a percentage with the six decimals that a submitted one has at most, and no exponent."""
    return f"{percent:.6f}".rstrip("0").rstrip(".") + "%"


def format_iso_duration(span: timedelta) -> str:
    """Return a time span in ISO 8601, as JSON has it; without days, which are no fixed length there.

    >>> format_iso_duration(timedelta(hours=26, seconds=1.5)), format_iso_duration(timedelta(0))
    ('PT26H1.5S', 'PT0S')
    """
    seconds, fraction = divmod(microseconds(span), 1_000_000)
    hours, minutes = seconds // 3600, seconds // 60 % 60
    rest = f"{seconds % 60}.{fraction:06}".rstrip("0").rstrip(".")
    parts = (f"{hours}H" if hours else "", f"{minutes}M" if minutes else "", f"{rest}S" if rest != "0" else "")
    return f"PT{''.join(parts) or '0S'}"


def microseconds(span: timedelta) -> int:
    """Return a time span as a whole number of microseconds."""
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def parse_timestamp(text: str) -> datetime:
    """Return an instant in UTC, truncated to the microsecond.

    >>> parse_timestamp("2026-03-29T08:00:00+02:00").isoformat()
    '2026-03-29T06:00:00+00:00'
    """
    match = _RFC3339.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        raise InvalidValue(
            problem=f"{text[:64]!r} is not an RFC 3339 timestamp", remedy=f"write one such as {_EXAMPLE}"
        )
    date, time, offset = match.groups()
    if offset is None:
        problem = f"{text!r} has no UTC offset"
        raise InvalidValue(
            problem=problem, remedy=f"write {date}T{time}Z, or an offset such as +02:00 in place of the Z"
        )
    try:
        moment = datetime.fromisoformat(f"{date}T{time}{offset.upper()}").astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidValue(
            problem=f"{text!r} is not an instant ({error})", remedy=f"write one such as {_EXAMPLE}"
        ) from error
    if moment.year < _EARLIEST_YEAR:
        raise InvalidValue(problem=f"{text!r} is before {_EARLIEST_YEAR}", remedy="write a later time")
    return moment


def format_timestamp(moment: datetime) -> str:
    """Return an aware instant in UTC with microseconds, so that equal instants are equal text.

    >>> format_timestamp(datetime(2026, 3, 29, 6, tzinfo=UTC))
    '2026-03-29T06:00:00.000000Z'
    """
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def format_second(moment: datetime) -> str:
    """Return an aware instant in UTC, in whole seconds.

    >>> format_second(datetime(2026, 3, 29, 6, 0, 0, 250_000, tzinfo=UTC))
    '2026-03-29T06:00:00Z'
    """
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def one_line(maximum: int) -> Callable[[str], str]:
    """Return a check for text of one line, 1 to `most` characters, without control characters."""

    def check(text: str) -> str:
        if not text:
            raise InvalidValue(problem="is empty", remedy=f"write 1 to {maximum} characters")
        if len(text) > maximum:
            raise InvalidValue(problem=f"has {len(text)} characters", remedy=f"write at most {maximum}")
        if found := _NOT_ONE_LINE.search(text):
            if found.group() in _LINE_BREAKS:
                raise InvalidValue(problem="has a line break", remedy="write one line")
            raise InvalidValue(problem=f"contains {found.group()!r}, which is not text", remedy="remove it")
        return text

    return check


def _bare(text: str) -> str:
    """Refuse blanks at the ends of a name: no header value can have them, and two names look alike."""
    if text != text.strip():
        raise InvalidValue(problem=f"{shown(text)} begins or ends with a space", remedy=f"write {shown(text.strip())}")
    return text


def _visible(text: str) -> str:
    """Refuse format and private characters in a name: two names look alike."""
    if not text.isprintable() and (found := _HIDDEN.search(text)):
        raise InvalidValue(problem=f"contains {found.group()!r}, which is not visible", remedy="remove it")
    return text


def several_lines(maximum: int) -> Callable[[str], str]:
    """Return a check for text that may have lines and tabs, of at most `most` characters."""

    def check(text: str) -> str:
        if len(text) > maximum:
            raise InvalidValue(problem=f"has {len(text)} characters", remedy=f"write at most {maximum}")
        if found := _NOT_TEXT.search(text):
            raise InvalidValue(problem=f"contains {found.group()!r}, which is not text", remedy="remove it")
        return text

    return check


def span(minimum: timedelta, maximum: timedelta) -> Callable[[object], timedelta]:
    """Return a reader of durations between two bounds."""

    def read(value: object) -> timedelta:
        duration = value if isinstance(value, timedelta) else parse_duration(_text_or_number(value))
        if not minimum <= duration <= maximum:
            raise InvalidValue(
                problem=f"{shown(value)} is not valid",
                remedy=f"write {format_duration(minimum)} to {format_duration(maximum)}",
            )
        return duration

    return read


def is_plain_key(value: object) -> bool:
    """Return True if a value is certainly a valid key; the document's model decides about any other."""
    return (
        type(value) is str and 0 < len(value) <= MAX_TEXT and value.isprintable() and " " not in (value[0], value[-1])
    )


def is_key(text: str) -> bool:
    """Return True if a text is a valid key."""
    return is_plain_key(text) or (0 < len(text) <= MAX_TEXT and text == text.strip() and not _HIDDEN.search(text))


def is_tenant(value: object) -> bool:
    """Return True if a value is a tenant's name."""
    return type(value) is str and (value == "default" or _TENANT.fullmatch(value) is not None)


def is_traceparent(value: object) -> bool:
    """Return True if a value is a traceparent."""
    return type(value) is str and _TRACEPARENT.fullmatch(value) is not None


def bounded_json(most_bytes: int) -> Callable[[object], bytes]:
    """Return a reader of any JSON value, as its compact text of at most so many bytes."""

    def read(value: object) -> bytes:
        if isinstance(value, UnreadableValue):
            raise InvalidValue(problem=value.problem, remedy=value.remedy)
        return _bounded(compact(value), most_bytes)

    return read


json_payload = bounded_json(MAX_PAYLOAD_BYTES)


def at_most(most: int, what: str) -> Callable[[object], object]:
    """Return a check of a list, before any element is read; it returns a list as a tuple."""

    def check(value: object) -> object:
        if (elements := as_list(value)) is None:
            return value
        if len(elements) > most:
            raise InvalidValue(problem=f"there are {len(elements)} {what}", remedy=f"write at most {most}")
        return tuple(elements)

    return check


few = at_most(MAX_ELEMENTS, "elements")


@lru_cache(maxsize=4096)  # a few durations recur in all documents
def _from_text(text: str) -> timedelta:
    match = _SHORT.fullmatch(text) or _ISO.fullmatch(text)
    if match is None or not any(match.groups()) or text.endswith("T"):
        if _ISO_CALENDAR.match(text):
            return _refuse(f"{text!r} counts months or years, which have no fixed length", "count days, or use cron")
        return _refuse(f"{text!r} is not a duration")
    total = sum(Fraction(number) * size for number, size in zip(match.groups(), _MICROSECONDS, strict=False) if number)
    if total.denominator != 1:
        return _refuse(f"{text!r} is finer than a microsecond")
    return _bounded_durations(int(total), text)


def _from_seconds(seconds: float) -> timedelta:
    # Compared before anything converts it: a whole number of JSON can be too large for a float.
    if seconds > _LONGEST.total_seconds():
        return _refuse(f"{shown(seconds)} s is longer than a century")
    if seconds < 0:
        return _refuse(f"{shown(seconds)} s is negative")
    if isinstance(seconds, bool) or math.isnan(seconds):
        return _refuse(f"{shown(seconds)} is not a duration")
    return _bounded_durations(round(seconds * 1_000_000), f"{seconds!r} s")


def _bounded_durations(micros: int, text: str) -> timedelta:
    if micros > microseconds(_LONGEST):
        return _refuse(f"{text} is longer than a century")
    return timedelta(microseconds=micros)


def _refuse(problem: str, remedy: str = _REMEDY) -> timedelta:
    raise InvalidValue(problem=problem, remedy=remedy)


def _text_or_number(value: object) -> str | float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    raise not_valid(value, _REMEDY)


def _instant(value: object) -> datetime:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, str):
        return parse_timestamp(value)
    raise not_valid(value, "write an RFC 3339 timestamp such as 2026-03-29T08:00:00+02:00")


def _matching(pattern: re.Pattern[str], what: str, remedy: str) -> Callable[[str], str]:
    """Return a check for text of one pattern."""

    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise InvalidValue(problem=f"{shown(text)} is not a {what}", remedy=remedy)
        return text

    return check


def _id_of(what: str, source: str = "the reply") -> Callable[[str], str]:
    """Return a reader of the ids of what a request creates."""

    def read(text: str) -> str:
        try:
            return str(read_uuid(text))
        except ValueError:
            raise InvalidValue(
                problem=f"{shown(text)} is not a {what} id", remedy=f"copy the 36 characters of the UUID from {source}"
            ) from None

    return read


def _day(value: object) -> date:
    if isinstance(value, str) and _DAY.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise not_valid(value, "write a date such as 2026-12-25")


def _weekday(value: object) -> int:
    if isinstance(value, str) and value.upper() in WEEKDAYS:
        return WEEKDAYS.index(value.upper())
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(WEEKDAYS):
        return value
    raise not_valid(value, f"write one of {', '.join(WEEKDAYS)}")


def _priority(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and LOWEST <= value <= HIGHEST:
        return value
    raise not_valid(value, f"write {LOWEST} to {HIGHEST}: {HIGHEST} goes first, {PRIORITY} is the default")


def _payload_base64(value: object) -> bytes:
    if isinstance(value, bytes):
        return _bounded(value)
    if not isinstance(value, str):
        raise not_valid(value, "write the bytes as base64")
    try:
        return _bounded(base64.b64decode(value, validate=True))
    except ValueError as error:
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue(
            problem=f"{shown(value)} is not base64", remedy="use the standard alphabet, padded with ="
        ) from error


def _task_token(text: str) -> str:
    if not _TASK_TOKEN.fullmatch(text):
        raise InvalidValue(problem="is not a task token", remedy="send back the attempt's token of 48 characters")
    return text


def _bounded(content: bytes, most_bytes: int = MAX_PAYLOAD_BYTES) -> bytes:
    if len(content) > most_bytes:
        problem = f"has {len(content)} bytes; at most {most_bytes} are allowed"
        raise InvalidValue(problem=problem, remedy="store it elsewhere and send a reference")
    return content


def _few_labels(value: object) -> object:
    if (labels := as_object(value)) and len(labels) > MAX_LABELS:
        raise InvalidValue(problem=f"there are {len(labels)} labels", remedy=f"write at most {MAX_LABELS}")
    return value


if TYPE_CHECKING:
    OverlapPolicy: TypeAlias = str
else:
    OverlapPolicy = Literal[tuple(policy.value for policy in Overlap)]  # `Overlap` is the one list of the policies

Key = Annotated[str, AfterValidator(one_line(MAX_TEXT)), AfterValidator(_visible), AfterValidator(_bare)]
Reason = Annotated[str, AfterValidator(several_lines(1000))]
Description = Annotated[str, AfterValidator(several_lines(4096))]
Tenant = Annotated[
    str, AfterValidator(_matching(_TENANT, "tenant name", f"write 1 to 63 of {_NAME}, a letter or digit first"))
]
Queue = Annotated[str, AfterValidator(_matching(QUEUE, "queue name", f"write 1 to 64 of {_NAME}"))]
RunId = Annotated[str, AfterValidator(_id_of("run", "a reply or an event"))]
BackfillId = Annotated[str, AfterValidator(_id_of("backfill"))]
BatchId = Annotated[str, AfterValidator(_id_of("batch"))]
CalendarName = Annotated[
    str, AfterValidator(_matching(_CALENDAR, "calendar name", f"write 1 to 64 of {_NAME}, a letter or digit first"))
]
Day = Annotated[date, BeforeValidator(_day)]
Weekday = Annotated[
    int, BeforeValidator(_weekday), WithJsonSchema({"type": ["string", "integer"]}, mode="validation")
]  # fmt: skip
Priority = Annotated[
    int,
    BeforeValidator(_priority),
    WithJsonSchema({"type": "integer", "minimum": LOWEST, "maximum": HIGHEST}, mode="validation"),
]
IfVersion = Annotated[int, Field(ge=0)]  # 0: only where there is no such job
TaskToken = Annotated[str, AfterValidator(_task_token)]
Traceparent = Annotated[
    str,
    AfterValidator(_matching(_TRACEPARENT, "traceparent", "write one as in W3C Trace Context, or leave it out")),
]
Instant = Annotated[datetime, BeforeValidator(_instant)]
Delay = Annotated[timedelta, BeforeValidator(span(timedelta(0), LONGEST_DELAY))]
# The outermost type, so that null is read too: null is a payload, not the lack of one.
JsonPayload = Annotated[bytes | None, BeforeValidator(json_payload)]
BytesPayload = Annotated[bytes, BeforeValidator(_payload_base64)]
LabelName = Annotated[str, AfterValidator(one_line(MAX_LABEL_NAME)), AfterValidator(_visible)]
Labels = Annotated[
    dict[LabelName, Annotated[str, AfterValidator(several_lines(MAX_TEXT))]], BeforeValidator(_few_labels)
]
Finite = Annotated[float, Field(allow_inf_nan=False)]
