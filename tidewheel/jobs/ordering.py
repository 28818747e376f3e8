"""Ordering keys as submitted: the runs of a key start one after another."""

from typing import Annotated, Literal

from pydantic import BeforeValidator

from tidewheel.jobs.concurrency import ConcurrencyKeyName
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.validation import StrictModel, shown


class OrderingKey(StrictModel):
    """A key whose runs, of whatever jobs of the tenant, start in the order in which they were accepted.

    Attributes:
        on_failure: A run that fails for good blocks the key, or lets the next run start.
    """

    key: ConcurrencyKeyName
    on_failure: Literal["block", "skip"] = "block"


def _object(value: object) -> object:
    if isinstance(value, str):
        return {"key": value}
    if value is None or isinstance(value, OrderingKey) or as_object(value) is not None:
        return value
    remedy = 'write a key, or {"key": ..., "on_failure": "skip"}'
    raise InvalidValue(problem=f"{shown(value)} is not a key", remedy=remedy)


OrderingKeyField = Annotated[OrderingKey | None, BeforeValidator(_object)]
