"""Read the delay that a response's Retry-After asks for.

The grammar is checked before Python's readers see the text: `float` accepts `inf`, `1e9` and `1_000`, and
`parsedate_to_datetime` accepts nearly any words and reads a date without a zone as local time.

Source: RFC 9110, sections 5.6.7 (HTTP-date), 6.6.1 (Date) and 10.2.3 (Retry-After).
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from tidewheel.clock import SystemClock

_LONGEST = timedelta(days=1)
_SECONDS = re.compile(r"(\d+)(?:\.\d+)?", re.ASCII)  # the fraction departs from the RFC: some rate limiters send one
_LONGEST_DIGITS = 5  # a day has 86,400 seconds

_DAYS = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_TIME = r"\d\d:\d\d:\d\d"
_HTTP_DATE = re.compile(
    rf"(?:{_DAYS}), \d\d (?:{_MONTHS}) \d{{4}} {_TIME} GMT"
    rf"|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, \d\d-(?:{_MONTHS})-\d\d {_TIME} GMT"
    rf"|(?:{_DAYS}) (?:{_MONTHS}) [ \d]\d {_TIME} \d{{4}}",
    re.ASCII,
)


def retry_after(headers: Mapping[str, str]) -> timedelta | None:
    """Return the delay, at most a day; None if the field is missing or malformed.

    >>> [retry_after({"retry-after": text}) for text in ("90", "1.5", "inf", "1e9", "1_000", "-5")]
    [datetime.timedelta(seconds=90), datetime.timedelta(seconds=1, microseconds=500000), None, None, None, None]

    Args:
        headers: The response's; a date is compared with its Date.
    """
    value = headers.get("retry-after", "").strip(" \t")
    if seconds := _SECONDS.fullmatch(value):
        whole = seconds[1].lstrip("0")
        return min(timedelta(seconds=float(value)), _LONGEST) if len(whole) <= _LONGEST_DIGITS else _LONGEST
    if (until := _instant(value)) is None:
        return None
    served_at = _instant(headers.get("date", "")) or SystemClock().now()
    return min(max(until - served_at, timedelta(0)), _LONGEST)


def _instant(text: str) -> datetime | None:
    if not _HTTP_DATE.fullmatch(text):
        return None
    try:
        return parsedate_to_datetime(text).replace(tzinfo=UTC)  # the third form has no zone, and is in GMT as well
    except ValueError:  # a day or an hour that does not exist
        return None
