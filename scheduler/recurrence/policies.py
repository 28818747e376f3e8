"""How a version's occurrences are fired beyond its schedule, read from the stored text."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import cast


class CatchUp(StrEnum):
    """What becomes of occurrences that were not fired in time."""

    FIRE_ONCE = "fire_once"
    FIRE_ALL = "fire_all"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of one version.

    Args:
        catch_up: After downtime.
        on_resume: After a pause.
        window: How far back `fire_all` reaches.
        jitter: The longest delay of a run.
        jitter_percent: Likewise, in percent of the time to the next occurrence.
        exclude: Names of calendars on whose days nothing fires.
        include: Names of calendars on whose days alone it fires; none: on every day.
        shift: Whether an excluded occurrence fires on the next day that is not excluded.
        since: When schedule or calendars were last edited: what lies before it is shifted no more.
    """

    catch_up: CatchUp = CatchUp.FIRE_ONCE
    on_resume: CatchUp = CatchUp.SKIP
    window: timedelta = timedelta(hours=24)
    jitter: timedelta = timedelta(0)
    jitter_percent: float = 0.0
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    shift: bool = False
    since: datetime | None = None

    @property
    def jitters(self) -> bool:
        """Whether runs leave later than their instant."""
        return bool(self.jitter or self.jitter_percent)

    @property
    def calendars(self) -> tuple[str, ...]:
        """Every calendar that is named."""
        return (*self.exclude, *self.include)


@lru_cache(maxsize=4096)  # distinct policies in use: a handful
def policies_from_text(text: str) -> Policies:
    """The policies of a canonical JSON document (`tidewheel.jobs.spec.policy_document`); what is left out is default.

    Raises:
        ValueError: The text holds none.
    """
    document = cast("Mapping[str, object]", json.loads(text))
    return Policies(
        catch_up=CatchUp(str(document.get("catch_up", CatchUp.FIRE_ONCE))),
        on_resume=CatchUp(str(document.get("on_resume", CatchUp.SKIP))),
        window=timedelta(microseconds=cast("int", document.get("window_us", 86_400_000_000))),
        jitter=timedelta(microseconds=cast("int", document.get("jitter_us", 0))),
        jitter_percent=float(cast("float", document.get("jitter_percent", 0.0))),
        exclude=_names(document.get("exclude_calendars")),
        include=_names(document.get("include_calendars")),
        shift=document.get("on_excluded") == "next_business_day",
        since=datetime.fromisoformat(str(document["since"])) if "since" in document else None,
    )


def _names(given: object) -> tuple[str, ...]:
    return tuple(str(name) for name in cast("list[object]", given)) if isinstance(given, list) else ()
