"""Takes a cron expression apart: the zone in front of it, its shorthands, its fields as they stand."""

import re

from tidewheel.errors import ScheduleRefused
from tidewheel.scheduler.recurrence.zones import zone

MAX_EXPRESSION_CHARS = 256
"""Longer than any expression seen in earnest; bounds what reading one can cost."""

SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

SHAPE = "minute hour day-of-month month day-of-week, or six with seconds first"

_INLINE_ZONE = re.compile(r"(?:CRON_TZ|TZ)=(\S*)\s+(.*)", re.DOTALL)


def split_expression(expression: str) -> tuple[str | None, list[str]]:
    """The zone named inline, if there is one, and the fields, shorthands written out.

    >>> split_expression("CRON_TZ=Asia/Tokyo @daily")
    ('Asia/Tokyo', ['0', '0', '*', '*', '*'])

    Raises:
        ScheduleRefused: Too long, empty, not ASCII, an unknown zone or shorthand.
    """
    zone_name, text = _split_zone(_checked(expression))
    if text.startswith("@") and text.lower() not in SHORTHANDS:
        raise _shorthand_refused(text)
    return zone_name, SHORTHANDS.get(text.lower(), text).split()


def _checked(expression: str) -> str:
    if len(expression) > MAX_EXPRESSION_CHARS:
        problem = f"the expression has {len(expression)} characters, more than {MAX_EXPRESSION_CHARS}"
        raise ScheduleRefused(problem, "write several shorter expressions", "cron")
    strange = next((character for character in expression if not " " <= character <= "~" and character != "\t"), None)
    if strange is not None:
        problem = f"the expression holds {strange!r}, which no cron expression does"
        raise ScheduleRefused(problem, "write it in plain ASCII, fields parted by blanks", "cron")
    if not expression.strip():
        problem = "the expression is empty"
        raise ScheduleRefused(problem, f"write {SHAPE}, such as `0 3 * * *`", "cron")
    return expression.strip()


def _split_zone(text: str) -> tuple[str | None, str]:
    match = _INLINE_ZONE.fullmatch(text)
    if match is not None:
        try:
            return zone(match[1]).name, match[2].strip()
        except ScheduleRefused as refused:
            raise ScheduleRefused(refused.errors[0].problem, refused.errors[0].remedy, "cron") from None
    if text.startswith(("CRON_TZ=", "TZ=")):
        problem = f"{text!r} holds a zone but no fields"
        raise ScheduleRefused(problem, f"write {text} 0 3 * * *", "cron")
    return None, text


def _shorthand_refused(text: str) -> ScheduleRefused:
    word = text.split()[0].lower()
    if word == "@every":
        every = text.split()[1] if len(text.split()) > 1 else "10s"
        problem = f"{text!r} is an interval, not a time of day"
        return ScheduleRefused(problem, f'write the schedule as {{"interval": "{every}"}}', "cron")
    if word == "@reboot":
        problem = "@reboot has no meaning for a job that belongs to no machine"
        return ScheduleRefused(problem, "trigger a manual job when your service starts", "cron")
    return ScheduleRefused(f"{text!r} is not known", f"write one of {', '.join(SHORTHANDS)}", "cron")
