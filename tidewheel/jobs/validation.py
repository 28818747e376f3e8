"""Validate submitted documents strictly; report each invalid field with path, problem and remedy.

`StrictModel` is the base of all submitted models: it refuses unknown names and converts nothing silently. A model also
lists the names that belong elsewhere, so that the error for such a name can explain it.

All problems of a request's shape are reported together. Errors of zones and cron expressions come later, from
`tidewheel.schedules`. Values are shown shortened and escaped: a hostile value must not fill a log, and refusing it must
not take longer than accepting a good one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import ErrorDetails, core_schema

from tidewheel.errors import FieldError, refuse
from tidewheel.jobs.invalid import InvalidValue, UnreadableValue
from tidewheel.jobs.peer_words import our_field, our_path, our_value
from tidewheel.jobs.strict_json import MAX_DEPTH, as_object

MAX_FIELDS = 100  # three times as many as any model has; a hostile object is refused before its names are read

_SHORT_FORMS = frozenset(
    {"schedule", "target", "cron", "concurrency_key", "ordering_key"}
)  # fields that may be a text too

_DURATION: Mapping[str, object] = {
    "description": "A duration, such as 90s, 5m, PT1H, or a number of seconds",
    "anyOf": [{"type": "string"}, {"type": "number"}],
}
MAX_ERRORS = 50  # enough to correct any honest request at once
_LONGEST_READ = 60
_LONGEST_NAME = 64

_MISSING = {
    "job": "add the job: its key, schedule and target",
    "schedule": 'add when the job is due: "0 8 * * MON-FRI", "@every 10s", or "manual" for triggers only',
    "target": 'add what runs: a handler\'s name, or {"type": "http", "url": "https://example.org/report"}',
    "key": "add the key with which the job was submitted",
    "run_id": "add the run's id from a reply or an event",
}

_EXPECTED = {
    "string_type": "a string",
    "string_unicode": "a string of valid Unicode",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "tuple_type": "a list",
    "list_type": "a list",
    "finite_number": "a finite number",
}

_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
    "greater_than": ("gt", "more than"),
    "less_than": ("lt", "less than"),
    "too_short": ("min_length", "at least"),
    "too_long": ("max_length", "at most"),
}


class StrictModel(BaseModel):
    """Base of all submitted models.

    Attributes:
        elsewhere: Names that belong in another place, each with that place.
        noun: What one of its names is called.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    elsewhere: ClassVar[Mapping[str, str]] = {}
    noun: ClassVar[str] = "field"

    if not TYPE_CHECKING:  # type checkers derive the parameters from the fields

        def __init__(self, **fields: object) -> None:
            """Refuse a mapping with a name that is not text; a document that is validated has none."""
            for name, value in fields.items():
                ensure_text_names(value, name)
            super().__init__(**fields)

        __init__.__pydantic_base_init__ = True  # else validation of a document calls it too

    @model_validator(mode="before")
    @classmethod
    def _bounded(cls, value: object) -> object:
        if (given := as_object(value)) and len(given) > MAX_FIELDS:
            problem = f"an object of {len(given)} fields is too large"
            raise InvalidValue(problem=problem, remedy="send only documented fields")
        return value


M = TypeVar("M", bound=StrictModel)


def validate(model: type[M], document: object) -> M:
    """Return the model a document describes.

    Raises:
        InvalidValue: The document is invalid. The error has every problem, up to MAX_ERRORS, with its path from the
            root.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise InvalidValue.of(_bounded(_field_errors(error, model), error.error_count())) from error


def shown(value: object) -> str:
    """Return a value as an error message shows it: shortened and escaped."""
    for kinds, show in _SHOWN:
        if isinstance(value, kinds):
            return show(value)
    return f"a {type(value).__name__}"


def not_valid(value: object, remedy: str, path: str = "") -> InvalidValue:
    """Return the error of a value that its reader does not accept."""
    if isinstance(value, UnreadableValue):
        return InvalidValue(problem=value.problem, remedy=value.remedy, path=path)
    return InvalidValue(problem=f"{shown(value)} is not valid", remedy=remedy, path=path)


def ensure_text_names(value: object, path: str) -> None:
    """Refuse a mapping with a name that is not text.

    In JSON, 1 and "1" are one name: one of the two values would be lost.

    >>> ensure_text_names({"lines": [{"1": 2}]}, "payload")
    """
    pending: list[tuple[object, str, int]] = [(value, path, 0)]
    while pending:
        value, path, depth = pending.pop()
        if isinstance(value, Mapping):
            named = cast("Mapping[object, object]", value)
            if others := [each for each in named if not isinstance(each, str)]:
                refuse(path, f"the name {shown(others[0])} is not text", f'write "{others[0]}"')
            parts: Iterable[tuple[object, object]] = named.items()
        elif isinstance(value, list | tuple):
            parts = enumerate(cast("Sequence[object]", value))
        else:
            continue
        if depth < MAX_DEPTH:  # a deeper value is refused for that
            pending += [(part, f"{path}.{name}", depth + 1) for name, part in parts]


def place_of(name: str, places: Mapping[str, str]) -> str | None:
    """Return where a name belongs that is wrong here; None if it has no place.

    >>> place_of("tenant_id", {"tenant": "write it beside job"})
    'it is tenant: write it beside job'
    """
    if place := places.get(name):
        return place
    ours = our_path(name) if len(name) <= _LONGEST_NAME else ""
    place = places.get(ours) or places.get(ours.partition(".")[0])
    return f"it is {ours}: {place}" if place else None


def join(*parts: str) -> str:
    """Return a path from its parts, leaving out empty ones."""
    return ".".join(part for part in parts if part)


def _shown_int(value: int) -> str:
    return str(value) if value.bit_length() <= 64 else f"a number of about {value.bit_length() * 3 // 10} digits"


def _shown_text(value: str) -> str:
    return repr(value if len(value) <= _LONGEST_READ else value[:_LONGEST_READ] + "...")


_SHOWN: tuple[tuple[type | tuple[type, ...], Callable[[Any], str]], ...] = (
    (type(None), lambda _: "null"),
    (bool, lambda value: "true" if value else "false"),
    (int, _shown_int),
    (float, repr),
    (str, _shown_text),
    (bytes, lambda value: f"{len(value)} bytes"),
    (Mapping, lambda _: "an object"),
    ((list, tuple), lambda _: "a list"),
)


def _bounded(errors: Iterable[FieldError], count: int) -> list[FieldError]:
    kept: list[FieldError] = []
    for error in errors:
        if len(kept) == MAX_ERRORS:
            kept.append(FieldError("", f"{count - MAX_ERRORS} more problems are not listed", "correct these first"))
            break
        kept.append(error)
    return kept


def _field_errors(error: ValidationError, model: type[StrictModel]) -> Iterator[FieldError]:
    for details in error.errors(include_url=False):
        names = [str(part) for part in details["loc"] if part != "[key]"]
        path = join(*(_name(name) for name in names))
        cause = details.get("ctx", {}).get("error")
        if isinstance(details["input"], UnreadableValue):
            yield FieldError(path, details["input"].problem, details["input"].remedy)
        elif isinstance(cause, InvalidValue):
            yield from (FieldError(join(path, part.path), part.problem, part.remedy) for part in cause.errors)
        else:
            yield FieldError(path, *_words(details, names, _model_at(model, names[:-1])))


def _words(details: ErrorDetails, names: list[str], model: type[StrictModel]) -> tuple[str, str]:
    """Return problem and remedy of an error that pydantic itself found."""
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    name = names[-1] if names else ""
    if kind == "missing":
        return "is missing", _MISSING.get(name, "add it")
    if kind == "extra_forbidden":
        return _unknown(name, model)
    if kind == "literal_error":
        return _none_of(name, value, str(context["expected"]))
    if kind in _EXPECTED:
        return f"{shown(value)} is not valid", f"write {_EXPECTED[kind]}"
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        is_length = key.endswith("_length")
        problem = f"there are {len(value)} elements" if is_length else f"{shown(value)} is not valid"
        bound = context[key]
        return problem, f"write {words} {int(bound) if bound == int(bound) else bound}"
    if context.get("class") == "UUID":
        thing = next((each for each in reversed(names) if not each.isdecimal()), "")
        problem, remedy = f"{shown(value)} is not the id of a {thing}", "write a UUID"
    else:
        problem, remedy = f"{shown(value)} is not valid", details["msg"].replace("Input should", "it should")
    return problem, remedy


def _unknown(name: str, model: type[StrictModel]) -> tuple[str, str]:
    if place := place_of(name, model.elsewhere):
        return f"{name!r} does not belong here", place
    known = [field.alias or name for name, field in model.model_fields.items()]
    problem = f"there is no {model.noun} {shown(name)}"
    if model.noun == "field" and len(name) <= _LONGEST_NAME and (remedy := our_field(name, known)):
        return problem, remedy
    near = get_close_matches(name, known, n=1) if len(name) <= _LONGEST_NAME else []
    remedy = f"did you mean {near[0]!r}?" if near else f"the known {model.noun}s are {', '.join(known)}"
    return problem, remedy


def _none_of(name: str, value: object, expected: str) -> tuple[str, str]:
    known = expected.replace("'", "").replace(" or ", ", ").split(", ")
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        return f"{shown(value)} is not valid", f"write {expected}"
    ours = our_value(name, value, known)
    near = [ours] if ours else get_close_matches(value, known, n=1)
    return f"{shown(value)} is not valid", f"did you mean {near[0]!r}?" if near else f"write {expected}"


def _model_at(model: type[StrictModel], names: list[str]) -> type[StrictModel]:
    """Return the model that the object at a path is read as."""
    for name in names:
        field = model.model_fields.get(name)
        parts = (field.annotation, *get_args(field.annotation)) if field else ()
        model = next((part for part in parts if isinstance(part, type) and issubclass(part, StrictModel)), model)
    return model


def _name(name: str) -> str:
    """Return one part of a path, shortened, with what is not printable escaped."""
    shortened = name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "..."
    return shortened if shortened.isprintable() else ascii(shortened)[1:-1]


class Forms(GenerateJsonSchema):
    """Schemas of what is sent, where that differs from what a model keeps."""

    def timedelta_schema(self, schema: core_schema.TimedeltaSchema) -> JsonSchemaValue:
        """Return the schema of a duration."""
        del schema
        return dict(_DURATION) if self.mode == "validation" else {"type": "string"}

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        """Return the schema of a payload: any JSON value."""
        del schema
        return {} if self.mode == "validation" else {"type": "string"}


def allow_short_forms(schema: dict[str, Any]) -> None:
    """Allow a text in place of a schedule, a target or a cron expression, in a schema and its definitions."""
    for owner in (schema, *schema.get("$defs", {}).values()):
        for name in _SHORT_FORMS & owner.get("properties", {}).keys():
            owner["properties"][name] = {"anyOf": [owner["properties"][name], {"type": "string"}]}
