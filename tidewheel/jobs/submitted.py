"""What all models of what people submit have in common: unknown names are refused, nothing is converted silently.

Beside its fields a model says what it will know later and what belongs elsewhere, so that the refusal of such a name
can say so instead of calling it unknown.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from tidewheel.jobs.misfit import Misfit
from tidewheel.jobs.strict_json import as_object

MOST_FIELDS = 100  # three times as many as any model has; a hostile object is refused before each name is looked at


class Submitted(BaseModel):
    """The root of all models of what people submit.

    Attributes:
        later: Names a later release will accept, each with what works now.
        later_values: Values a later release will accept, by field.
        elsewhere: Names that belong in another place, each with the place.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    later: ClassVar[Mapping[str, str]] = {}
    later_values: ClassVar[Mapping[str, Sequence[str]]] = {}
    elsewhere: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _bounded(cls, value: object) -> object:
        if (given := as_object(value)) and len(given) > MOST_FIELDS:
            problem = f"an object of {len(given)} fields was read"
            raise Misfit(problem=problem, remedy="send the fields that are documented, and no others")
        return value
