"""Notes on the effects of daylight saving time on an instant or its neighbours."""

from datetime import datetime, timedelta

from tidewheel.schedules.calendars import CalendarSchedule
from tidewheel.schedules.cron_fields import following
from tidewheel.schedules.cron_schedule import CronSchedule, ZonedCron
from tidewheel.schedules.describe import dst_effects
from tidewheel.schedules.schedule import Schedule, at_second, whole_second
from tidewheel.schedules.zones import zone

_NEAR = timedelta(days=2)  # a clock change further away does not concern the instant


def occurrence_notes(schedule: Schedule, at: datetime, since: datetime | None = None) -> tuple[str, ...]:
    """Return the effects on an occurrence, and the local times that a clock change skipped before it."""
    bare = schedule.schedule if isinstance(schedule, CalendarSchedule) else schedule
    if not isinstance(bare, CronSchedule):
        return ()
    since = max(since or bare.before(at) or at - _NEAR, at - 2 * _NEAR)
    several = len(bare.entries) > 1
    return tuple(
        f"`{entry.fields.expression}`: {note}" if several else note
        for entry in bare.entries
        if entry.following(whole_second(at)) == whole_second(at)
        for note in dst_effects(entry, whole_second(since), whole_second(at))
    )


def no_occurrence_notes(schedule: Schedule, at: datetime) -> tuple[str, ...]:
    """Return the clock changes that may make a reader expect an occurrence at an instant without one."""
    bare = schedule.schedule if isinstance(schedule, CalendarSchedule) else schedule
    if not isinstance(bare, CronSchedule):
        return ()
    other_pass = [note for entry in bare.entries if (note := _other_pass(entry, at)) is not None]
    notes = [*other_pass]
    for neighbour in (bare.before(at), bare.after(at)):
        if not other_pass and neighbour is not None and abs(neighbour - at) < _NEAR:
            nearest = f"{neighbour.replace(tzinfo=None).isoformat()}Z"
            notes += [f"occurrence at {nearest}: {note}" for note in occurrence_notes(bare, neighbour)]
    return tuple(notes)


def _other_pass(entry: ZonedCron, at: datetime) -> str | None:
    """Return a note if the local time occurs twice and fires only at the other instant."""
    second, of = whole_second(at), zone(entry.zone_name)
    span = of.span_at(second)
    local = second + of.offsets[span]
    if at.microsecond or following(entry.fields, local) != local:
        return None
    for index in (span - 1, span + 1):
        if 0 <= index < len(of.starts):
            other = local - of.offsets[index]
            if of.span_at(other) == index and entry.following(other) == other:
                which = "second" if index < span else "first"
                shown = f"{at_second(local):%Y-%m-%d %H:%M:%S}"
                fires = f"{at_second(other):%Y-%m-%dT%H:%M:%S}Z"
                return f"{shown} occurs twice: this is the {which} time, and the job fires at {fires} (DST overlap)"
    return None
