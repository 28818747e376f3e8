"""Errors cross from one process to another as they are: with their words and their fields."""

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tidewheel import errors
from tidewheel.errors import FieldError, TidewheelError
from tidewheel.intake.locks import RowLocked
from tidewheel.jobs.parsing import RequestIdentity, RequestRefused

_FIELD = FieldError("job.key", "it is missing", "write one")
_EXAMPLES: list[TidewheelError] = [
    errors.InvalidInput([_FIELD]),
    errors.ScheduleRefused("it never fires", "write another", "cron"),
    errors.UnknownJob("default", "report"),
    errors.UnknownRun("7"),
    errors.StaleToken("7", "succeeded", 2),
    errors.RunBusy("7"),
    errors.UnknownExecutor("7"),
    errors.UnknownBackfill("7"),
    errors.UnknownCancellation(7),
    errors.UnknownDeadLetter(7),
    errors.UnknownWork("7"),
    errors.UnknownWorkflow("7"),
    errors.UnknownBatch("7"),
    errors.UnknownFreeze("queue"),
    errors.UnknownApiKey("k3v9x0a1bc"),
    errors.UnknownTenant("acme"),
    errors.TenantDeleted("acme", datetime(2027, 2, 21, tzinfo=UTC)),
    errors.TenantLimitExceeded(_FIELD),
    errors.PausedByOperator("acme"),
    errors.UnknownCalendar("default", "holidays", "make it"),
    errors.VersionConflict(1, 2),
    errors.RequestConflict("r-7"),
    errors.Unavailable("the server is away"),
    errors.InstallationFault("column x does not exist", "run `tidewheel migrate`", "42703"),
    errors.ArchiveDamaged("the manifest of 2026-11-20 is not what was written"),
    errors.RetryAfter(timedelta(seconds=5)),
    errors.Snooze(5),
    RowLocked("job 'report'", []),
    RequestRefused((_FIELD,), RequestIdentity("job.submit", "r-7", "default", "report", None)),
]


@pytest.mark.parametrize("error", _EXAMPLES, ids=lambda error: type(error).__name__)
def test_error_survives_serialization_between_processes(error: TidewheelError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - written here
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_every_error_with_fields_has_an_example() -> None:
    told = {type(error) for error in _EXAMPLES}
    assert {kind for kind in _kinds(TidewheelError) if "__init__" in vars(kind)} - told <= {
        errors.Refused,
        errors.UnknownId,
    }


def _kinds(kind: type[TidewheelError]) -> Iterator[type[TidewheelError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)
