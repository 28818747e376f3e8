"""Draw cron expressions, half of each aimed at a given local time."""

import calendar
from datetime import datetime
from random import Random

from tests.schedules.brute_force import DAY_NAMES, MONTH_NAMES


def any_expression(random: Random, near: datetime, *, seconds: bool = False) -> str:
    """A valid expression; where it is aimed, it is aimed at `near`."""
    minute, hour = number_field(random, near.minute, 0, 59), number_field(random, near.hour, 0, 23)
    by_date, month, by_week = date_field(random, near), month_field(random, near), week_field(random, near)
    fields = [minute, hour, by_date, month, by_week]
    if seconds:
        fields.insert(0, number_field(random, near.second, 0, 59))
    return " ".join(fields)


def number_field(random: Random, near: int, low: int, high: int) -> str:
    """A star, a step, numbers or ranges; each shape as often as it is listed."""
    begin = aimed(random, near, low, high)
    end = random.randint(begin, high)
    steps = [2, 3, 5, 7, 10, 15, 20, 30, 60] if high == 59 else [1, 2, 3, 5, min(high, 24)]
    several = ",".join(str(aimed(random, near, low, high)) for _ in range(random.randint(2, 4)))
    shapes = ["*", "*", f"*/{random.choice(steps)}", several, several, f"{begin}-{end}"]
    shapes += [f"{begin}-{end}/{random.randint(1, 7)}", f"{begin}/{random.randint(1, min(20, high - low))}"]
    return random.choice([*shapes, str(begin), str(begin)])


def aimed(random: Random, near: int, low: int, high: int) -> int:
    """Mostly within two of `near`, else anything."""
    if random.random() < 0.75:
        return min(high, max(low, near + random.randint(-2, 2)))
    return random.randint(low, high)


def date_field(random: Random, near: datetime) -> str:
    """Half of them open, the others numbers, ``L`` and ``W``."""
    day = aimed(random, near.day, 1, 31)
    last = random.choice(["L", "L", "L-1", f"L-{random.randint(0, 12)}", "LW"])
    shapes = ["?", f"*/{random.randint(2, 5)}", last, f"{day}W", f"{day}W,L,{random.randint(1, 31)}"]
    return random.choice(["*"] * 10 + shapes + [number_field(random, near.day, 1, 31) for _ in range(5)])


def month_field(random: Random, near: datetime) -> str:
    """Two thirds open."""
    names = f"{MONTH_NAMES[random.randint(1, near.month)]}-{MONTH_NAMES[random.randint(near.month, 12)]}"
    return random.choice(["*"] * 8 + [MONTH_NAMES[near.month], names, number_field(random, near.month, 1, 12)])


def week_field(random: Random, near: datetime) -> str:
    """Half of them open, the others numbers, names, ``L`` and ``#``, and every way to write Sunday."""
    weekday = near.isoweekday() % 7
    last = f"{weekday}L" if near.day > calendar.monthrange(near.year, near.month)[1] - 7 else f"{DAY_NAMES[weekday]}L"
    sundays = random.choice(["MON-FRI", "1-5", "6,7", "SAT-7", "5-7", "FRI-SUN", "0-7", "1-7/2", "0-7/3", "7"])
    shapes = ["?", f"*/{random.randint(1, 3)}", f"{weekday}#{(near.day + 6) // 7}", last]
    shapes += [f"{random.randint(0, 6)}#{random.randint(1, 5)},{last}", DAY_NAMES[weekday], sundays]
    return random.choice(["*"] * 10 + shapes + [number_field(random, weekday, 0, 6) for _ in range(4)])
