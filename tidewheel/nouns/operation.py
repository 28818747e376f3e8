"""An operation: a method of a noun whose signature is the only declaration of its parameters.

Name, type, default and description of a parameter stand in the signature. Fields of a filter stand in one `TypedDict`,
which the signature unpacks. Every door is derived from both: see `tidewheel/doors`. The client's method is the method
itself: it refuses what its own declaration does not allow.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from datetime import datetime
from functools import cached_property, wraps
from inspect import Parameter as Argument
from inspect import Signature, getdoc, signature
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Literal,
    LiteralString,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

from pydantic import Field, create_model
from pydantic.fields import FieldInfo

from tidewheel.api_keys import Scope
from tidewheel.errors import InvalidInput, refuse
from tidewheel.ids import read_uuid
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.strict_json import Json
from tidewheel.jobs.validation import StrictModel, shown, validate
from tidewheel.postgres.session import Conn, read_rows

if TYPE_CHECKING:
    from psycopg.rows import RowFactory

    from tidewheel.control.client.connection import Connection
    from tidewheel.jobs.requests import Sent
    from tidewheel.schemas.generated.records import Reply


M = TypeVar("M", bound=StrictModel)
N = TypeVar("N", bound="Noun")
P = ParamSpec("P")
T = TypeVar("T")

Call: TypeAlias = "Connection"
"""The circumstances of a call: tenant, transactions, audit log, requests."""
Rows = Annotated[int, Field(ge=1, le=2**31 - 1)]
"""The most rows of a list."""
Place = tuple[datetime, int]
"""The place of a row in a list: its creation and its id."""

DryRun = Annotated[bool, Field(description="Only count them, and return the first ten.")]

_MAX_INT = 2**31 - 1  # of an `integer` column
_HALF = re.compile(r"[\ud800-\udfff]")


class Noun:
    """Operations on one noun."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def _request(self, kind: str, sent: "Sent") -> "Reply":
        return self._call.request({"type": kind, **dict(sent)}, sent.request_id)

    def _read(self, read: Callable[Concatenate[Conn, str, P], T], *args: P.args, **given: P.kwargs) -> T:
        """Return what a read finds in one snapshot of the tenant's rows."""
        with self._call.snapshot() as connection:
            return read(connection, self._call.tenant, *args, **given)


def reads(read: Callable[Concatenate[Conn, str, P], T]) -> Callable[Concatenate[Noun, P], T]:
    """Return a read as a method of a noun, with the parameters of the read behind connection and tenant."""

    @wraps(read)
    def method(noun: Noun, /, *args: P.args, **given: P.kwargs) -> T:
        return noun._read(read, *args, **given)  # pyright: ignore[reportPrivateUsage] - a method of this class

    _, _, *others = signature(read).parameters.values()
    own = Argument("self", Argument.POSITIONAL_ONLY)
    vars(method)["__signature__"] = signature(read).replace(parameters=[own, *others])
    return method


class InDoors(NamedTuple):
    """The name of a parameter in all doors but Python, where it differs."""

    name: str


class Page(list[T]):
    """A page of a list; `next_cursor` is `after` of the next page."""

    def __init__(self, found: Iterable[T], next_cursor: Any) -> None:  # noqa: ANN401 - as `after` is declared
        super().__init__(found)
        self.next_cursor = next_cursor


def read_page(
    connection: Conn, record: "RowFactory[T]", statement: LiteralString, columns: Mapping[str, object],
    place: Callable[[T], object], *, limit: int, after: object = None,
) -> Page[T]:  # fmt: skip
    """Read a page, and a row more that shows whether another page follows the place of its last row.

    `after` is the place from which the page was read. Rows with a damaged time share the place of the nearest instant
    that is shown, and a page of them would follow itself.
    """
    found = read_rows(connection, record, statement, {**columns, "limit": limit + 1})
    following = place(found[limit - 1]) if len(found) > limit else None
    return Page(found[:limit], None if following == after else following)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operation, or a field of its filter."""

    name: str
    kind: Any  # the annotation, with its metadata
    default: object
    filters: bool

    @property
    def spoken(self) -> str:
        """Its name in the doors."""
        return next((each.name for each in _metadata(self.kind) if isinstance(each, InDoors)), self.name)

    @property
    def help(self) -> str:
        """Its description."""
        found = (each.description for each in _metadata(self.kind) if isinstance(each, FieldInfo))
        return next(filter(None, found), "")

    @property
    def choices(self) -> Sequence[str]:
        """The values that it may have, if they are listed."""
        return [str(each) for kind in _parts(self.kind) if get_origin(kind) is Literal for each in get_args(kind)]

    @property
    def required(self) -> bool:
        """True if it has no default."""
        return self.default is Argument.empty

    def accepts(self, kind: type) -> bool:
        """Return True if a value of a type fits, of the elements for a sequence."""
        return kind in _parts(self.kind)


def _metadata(kind: object) -> Sequence[object]:
    return cast("Sequence[object]", getattr(kind, "__metadata__", ()))


def _parts(kind: Any) -> set[object]:  # noqa: ANN401 - an annotation
    return {kind, get_origin(kind)}.union(*map(_parts, get_args(kind)))


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation, as the doors see it; as a decorator, it makes one of a method."""

    route: str  # its method and path in REST
    name: str  # in the OpenAPI document and in messages
    _: KW_ONLY
    scope: Scope
    python_only: Collection[str] = ()  # parameters that no other door has
    starts: str | None = None  # the path of the work that it starts, whose id its result names
    sent: Json = field(default_factory=dict[str, Json])  # the body that REST's document shows
    answer: Callable[..., object] | None = None  # of REST: gets the ids of the path, and the result or `unchanged`
    danger: str | None = None  # the loss that nothing can undo, in a clause
    authorize: Callable[[Mapping[str, object]], Scope | None] = lambda _: None  # the right in all tenants that it needs
    function: Callable[..., Any] = type  # the method that it has decorated

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Make an operation of a method."""
        declared, shape = replace(self, function=function), signature(function)

        @wraps(function)
        def method(*args: P.args, **kwargs: P.kwargs) -> T:
            shape.bind(*args, **kwargs)  # refuses unknown names
            given = {**dict(zip([*shape.parameters][1:], args[1:], strict=False)), **kwargs}
            return cast("Callable[..., T]", function)(args[0], **declared.checked(given))

        vars(method)["operation"] = declared
        return method

    @property
    def verb(self) -> str:
        """The verb in the name of its function, such as `retry` of `retry_failed`."""
        return self.function.__name__.partition("_")[0]

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return self.words.partition("\n")[0]

    @property
    def words(self) -> str:
        """Its docstring without its result in Python and the list of its errors, which are a client's."""
        return (getdoc(self.function) or "").partition("\n\nReturns:")[0].partition("\n\nRaises:")[0]

    @cached_property
    def result(self) -> Any:  # noqa: ANN401 - an annotation
        """The type of its result."""
        return get_type_hints(self.function, include_extras=True)["return"]

    @cached_property
    def every_parameter(self) -> Sequence[Parameter]:
        """The fields of its filter, then its other parameters."""
        found: list[Parameter] = []
        hints = get_type_hints(self.function, include_extras=True)
        for each in [*signature(self.function).parameters.values()][1:]:
            if each.kind is Argument.VAR_KEYWORD:
                names = get_type_hints(get_args(hints[each.name])[0], include_extras=True)
                found = [*(Parameter(name, kind, None, filters=True) for name, kind in names.items()), *found]
            else:
                found.append(Parameter(each.name, hints[each.name], each.default, filters=False))
        return found

    @cached_property
    def parameters(self) -> Sequence[Parameter]:
        """Its parameters in the doors."""
        return [each for each in self.every_parameter if each.name not in self.python_only]

    def call(self, noun: type[Noun], call: Call, arguments: Mapping[str, object]) -> Any:  # noqa: ANN401 - its result
        """Run it with arguments that a door has checked by `model_of`."""
        return self.function(noun(call), **arguments)

    @cached_property
    def _checks(self) -> type[StrictModel]:
        return model_of(self.name, [(each.name, each) for each in self.every_parameter], StrictModel)

    def checked(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Return arguments as declared; refuse others."""
        found = checked(self._checks, given)
        return {name: getattr(found, name) for name in given}


operation = Operation


def fields_of(model: Callable[P, M]) -> Callable[[Callable[[N, M], T]], Callable[Concatenate[N, P], T]]:
    """Give a method the fields of a model, such as those of a request, as its parameters."""
    kind = cast("type[StrictModel]", model)
    hints = get_type_hints(kind, include_extras=True)

    def decorate(function: Callable[[N, M], T]) -> Callable[Concatenate[N, P], T]:
        @wraps(function)
        def method(noun: N, /, *_: P.args, **given: P.kwargs) -> T:
            return function(noun, cast("M", checked(kind, given)))

        noun, _ = signature(function).parameters.values()
        vars(method)["__signature__"] = Signature([noun, *signature(kind).parameters.values()])
        method.__annotations__ = {**hints, "return": get_type_hints(function)["return"]}
        vars(method)["elsewhere"] = kind.elsewhere
        return method

    return decorate


def operations(noun: type[Noun]) -> Mapping[str, Operation]:
    """Return the operations of a noun by the names of their methods."""
    return {name: each.operation for name, each in vars(noun).items() if hasattr(each, "operation")}


def model_of(title: str, named: Sequence[tuple[str, Parameter]], base: type[M], doc: str = "") -> type[M]:
    """Return the model of some parameters by their names in a door."""
    declared: dict[str, Any] = {name: (each.kind, ... if each.required else each.default) for name, each in named}
    return create_model(title, __base__=base, __doc__=doc or None, **declared)


def checked(model: type[M], given: Mapping[str, object]) -> M:
    """Return what a caller has given, as a model."""
    for name, value in given.items():
        if isinstance(value, str) and _HALF.search(value):
            refuse(name, f"{shown(value)} contains half a surrogate pair, or bytes without UTF-8", "correct the text")
    try:
        return validate(model, given)
    except InvalidValue as error:
        raise InvalidInput(error.errors) from None  # one error in a traceback


def participle(verb: str) -> str:
    """Return the past participle of a verb, such as `redriven` of `redrive`."""
    stem = verb.removesuffix("e")
    return f"{verb}n" if verb.endswith("drive") else f"{stem[:-1]}ied" if stem.endswith("y") else f"{stem}ed"


def as_document(found: object, declared: Operation) -> object:
    """Return a result as the doors show it: a list is a field with the last word of its path."""
    if not isinstance(found, list):
        return found
    listed = cast("list[object]", found)
    page = {"next_cursor": listed.next_cursor} if isinstance(listed, Page) else {}
    return {declared.route.rpartition("/")[2].rpartition("-")[2]: listed, **page}


def field_values(record: object) -> dict[str, Any]:
    """Return the fields of a record by their names."""
    return {each.name: getattr(record, each.name) for each in fields(cast("Any", record))}


def as_id(value: UUID | str, name: str) -> UUID:
    """Return an id, also from its text.

    >>> as_id("00000000-0000-0000-0000-000000000001", "run_id")
    UUID('00000000-0000-0000-0000-000000000001')
    """
    try:
        return value if isinstance(value, UUID) else read_uuid(value)
    except (AttributeError, TypeError, ValueError):
        pass
    return refuse(name, f"{shown(value)} is not an id", "pass a UUID from a reply, an event or a list")


def as_int(value: int, name: str) -> int:
    """Return a number that a column holds.

    >>> as_int(3, "attempt")
    3
    """
    if type(value) is not int or not 0 <= value <= _MAX_INT:
        refuse(name, f"{shown(value)} is out of range", f"pass a whole number from 0 to {_MAX_INT}")
    return value
