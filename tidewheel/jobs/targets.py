"""Targets as submitted: an object with a type, or a handler's name. `TARGETS` registers every type."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tidewheel.jobs.allow_lists import AllowLists, path_problem
from tidewheel.jobs.http_values import (
    MAX_HEADER,
    MAX_URL,
    SecretReference,
    read_headers,
    read_literal_headers,
    read_url,
    refuse_literal_credentials,
)
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.jobs.validation import StrictModel, not_valid, shown, validate
from tidewheel.jobs.values import RESERVED, Key, one_line, span
from tidewheel.redaction import REDACTED

LONGEST_ANSWER = timedelta(days=30)  # how late a target may report an end by token or reply
MAX_ARGUMENTS = 1000
MAX_ARGUMENT_BYTES = 64 * 1024
MAX_VARIABLES = 100
MAX_MEMORY_BYTES = 1 << 40

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
# Source: AWS Lambda API reference, "Invoke", FunctionName.
_FUNCTION = re.compile(
    r"(arn:aws[a-zA-Z-]*:lambda:[a-z0-9-]+:\d{12}:function:)?[a-zA-Z0-9_-]{1,64}(:[a-zA-Z0-9$_-]{1,128})?", re.ASCII
)

_NO_TEXT = re.compile(r"[\0\ud800-\udfff]")  # NUL ends a word of a program; half a surrogate pair has no UTF-8


def _unreserved(name: str) -> str:
    if name.startswith(RESERVED):
        raise InvalidValue(problem=f"names that begin with {RESERVED!r} are reserved", remedy="choose another name")
    return name


class HandlerTargetSpec(StrictModel):
    """A Python handler."""

    type: Literal["handler"] = "handler"
    name: Annotated[Key, AfterValidator(_unreserved)]


def _url(text: str) -> str:
    query = read_url(text).query
    if REDACTED in query:
        problem = f"contains {REDACTED}, which output shows in place of a secret"
        raise InvalidValue(problem=problem, remedy="write the secret itself, or name one in a header")
    return text


def _topic(name: str) -> str:
    if not _TOPIC.fullmatch(name) or name in {".", ".."}:
        remedy = "write 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'"
        raise InvalidValue(problem=f"{shown(name)} is not a topic name", remedy=remedy)
    return name


def _answer_span(value: object) -> timedelta:
    return span(timedelta(seconds=1), LONGEST_ANSWER)(value)


def _argv(value: object) -> tuple[str, ...]:
    remedy = 'write a list of words, such as ["/srv/bin/report", "--day", "today"]; no shell reads them'
    if (given := as_list(value)) is None:
        raise not_valid(value, remedy)
    if not given or len(given) > MAX_ARGUMENTS:
        raise InvalidValue(problem=f"there are {len(given)} words", remedy=f"write 1 to {MAX_ARGUMENTS}")
    for index, word in enumerate(given):
        if not isinstance(word, str) or _NO_TEXT.search(word):
            raise not_valid(word, remedy, str(index))
    if fault := path_problem(str(given[0])):
        raise InvalidValue(problem=fault, remedy="write the program's path, such as /srv/bin/report", path="0")
    if sum(len(str(word).encode()) for word in given) > MAX_ARGUMENT_BYTES:
        remedy = f"write at most {MAX_ARGUMENT_BYTES} bytes; the payload arrives on standard input"
        raise InvalidValue(problem="is too long", remedy=remedy)
    return tuple(str(word) for word in given)


def _absolute(path: str) -> str:
    if problem := path_problem(path):
        raise InvalidValue(problem=problem, remedy="write a path such as /srv/reports")
    return path


def _environment(value: object) -> dict[str, str]:
    if (given := as_object(value)) is None:
        raise not_valid(value, "write an object of names and values")
    if len(given) > MAX_VARIABLES:
        raise InvalidValue(problem=f"there are {len(given)} variables", remedy=f"write at most {MAX_VARIABLES}")
    for name, content in given.items():
        if not _VARIABLE.fullmatch(name) or name.startswith("TIDEWHEEL_"):
            remedy = "use letters, digits and '_', not a digit first; names with TIDEWHEEL_ are reserved"
            raise InvalidValue(problem=f"{shown(name)} cannot be set", remedy=remedy)
        if not isinstance(content, str) or _NO_TEXT.search(content) or len(content) > MAX_URL:
            remedy = f"write text of at most {MAX_URL} characters, without NUL"
            # Text is not shown: it is often a secret.
            problem = f"{'the text' if isinstance(content, str) else shown(content)} is not valid"
            raise InvalidValue(problem=problem, remedy=remedy, path=name)
    return {name: str(content) for name, content in given.items()}


def _function(name: str) -> str:
    if not _FUNCTION.fullmatch(name):
        remedy = "write a function's name, or its ARN"
        raise InvalidValue(problem=f"{shown(name)} is not a Lambda function", remedy=remedy)
    return name


def _only_with(target: StrictModel, name: str, flag: str, *, given: bool) -> None:
    if name in target.model_fields_set and not given:
        raise InvalidValue(problem=f"needs {flag}: true", remedy="add that, or leave it out", path=name)


class HttpTargetSpec(StrictModel):
    """A request to a URL; the payload is its body."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "is_async": "write it as async",
        "secret_headers": 'write it in headers: {"Authorization": {"secret": "NAME"}}',
    }

    type: Literal["http"]
    url: Annotated[str, AfterValidator(_url)]
    method: Literal["POST", "GET", "HEAD", "PUT", "PATCH", "DELETE"] = "POST"
    headers: Annotated[
        dict[str, str | SecretReference], BeforeValidator(read_headers), BeforeValidator(refuse_literal_credentials)
    ] = {}  # noqa: RUF012 - pydantic copies it
    is_async: bool = Field(default=False, alias="async")
    async_timeout: Annotated[timedelta, BeforeValidator(_answer_span)] = timedelta(hours=24)

    @model_validator(mode="after")
    def _waits(self) -> Self:
        _only_with(self, "async_timeout", "async", given=self.is_async)
        return self


class KafkaTargetSpec(StrictModel):
    """A message to a topic of the user's own; the payload is its value."""

    type: Literal["kafka"]
    topic: Annotated[str, AfterValidator(_topic)]
    key: Annotated[str, AfterValidator(one_line(MAX_HEADER))] | None = None
    headers: Annotated[dict[str, str], BeforeValidator(read_literal_headers)] = {}  # noqa: RUF012 - pydantic copies it
    await_reply: bool = False
    reply_timeout: Annotated[timedelta, BeforeValidator(_answer_span)] = timedelta(hours=24)

    @model_validator(mode="after")
    def _waits(self) -> Self:
        _only_with(self, "reply_timeout", "await_reply", given=self.await_reply)
        return self


class ShellTargetSpec(StrictModel):
    """A program with its arguments, run by an executor that allows it; the payload is its standard input."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "command": 'write it as argv, a list of words; for a shell, ["/bin/sh", "-c", "…"]',
        "timeout": "write start_to_close, beside target",
    }

    type: Literal["shell"]
    argv: Annotated[tuple[str, ...], BeforeValidator(_argv)]
    cwd: Annotated[str, AfterValidator(_absolute)] | None = None
    env: Annotated[dict[str, str], BeforeValidator(_environment)] = {}  # noqa: RUF012 - pydantic copies it
    memory_bytes: Annotated[int, Field(ge=1 << 20, le=MAX_MEMORY_BYTES)] | None = None
    cpu_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None


class LambdaTargetSpec(StrictModel):
    """A function to invoke; the payload is its event."""

    type: Literal["lambda"]
    function: Annotated[str, AfterValidator(_function)]
    qualifier: Annotated[str, Field(pattern=r"^[A-Za-z0-9$_-]{1,128}$")] | None = None
    region: Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")] | None = None


TargetSpec: TypeAlias = HandlerTargetSpec | HttpTargetSpec | KafkaTargetSpec | ShellTargetSpec | LambdaTargetSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetType:
    """One type of target, as other folders use it; its runner and its wire record are elsewhere.

    Args:
        sets: The field that the flag sets, and that tables show; a list is set from words as a shell splits them.
        allow: The setting whose allow-list an executor needs.
        check: Refuses what the allow-lists leave out.
        extra: The extra of the package that has its libraries.
        waits: The flag by which a run waits for a report from outside; a heartbeat may be sent meanwhile.
        runs_programs: True if an executor hides its memory from what it starts.
    """

    model: type[TargetSpec]
    flag: str
    sets: str
    metavar: str
    help: str
    allow: str | None = None
    check: Callable[[AllowLists, Any], None] = lambda _lists, _target: None
    extra: str | None = None
    waits: str | None = None
    runs_programs: bool = False

    @property
    def kind(self) -> str:
        """The target's `type` in requests, and its symbol of the wire enum `TargetKind`."""
        return str(get_args(self.model.model_fields["type"].annotation)[0])

    @property
    def requires(self) -> str | None:
        """The capability that an executor must have; None for a handler, whose name is required."""
        return None if self.model is HandlerTargetSpec else f"{RESERVED}{self.kind}"


_TYPES = (
    TargetType(model=HandlerTargetSpec, flag="--handler", sets="name", metavar="NAME",
               help="The name under which executors register a Python handler."),
    TargetType(model=HttpTargetSpec, flag="--url", sets="url", metavar="URL",
               help="An HTTP endpoint. The payload is the body of the request.", waits="is_async",
               check=lambda lists, target: lists.check_url(read_url(target.url))),
    TargetType(model=KafkaTargetSpec, flag="--kafka-topic", sets="topic", metavar="TOPIC", help="A Kafka topic.",
               allow="kafka_topics", waits="await_reply", check=lambda lists, target: lists.check_topic(target.topic)),
    TargetType(model=ShellTargetSpec, flag="--shell", sets="argv", metavar="'WORD …'", runs_programs=True,
               help="Program and arguments; no shell reads them.", allow="shell_allow",
               check=lambda lists, target: lists.check_program(target.argv, target.cwd, target.env)),
    TargetType(model=LambdaTargetSpec, flag="--lambda", sets="function", metavar="FUNCTION", extra="lambda",
               help="An AWS Lambda function: its name or its ARN.", allow="lambda_functions",
               check=lambda lists, target: lists.check_function(target.function, target.qualifier, target.region)),
)  # fmt: skip
TARGETS: Mapping[str, TargetType] = MappingProxyType({target.kind: target for target in _TYPES})


def read_target(value: object) -> TargetSpec:
    """Return the target that an object or a bare string describes."""
    if isinstance(value, TargetSpec):
        return value
    if isinstance(value, str):
        return validate(HandlerTargetSpec, {"type": "handler", "name": value})
    if (given := as_object(value)) is None:
        example = '{"type": "http", "url": "https://example.org/report"}'
        raise not_valid(value, f"write a handler's name, or an object such as {example}")
    return _by_type(given)


TargetField: TypeAlias = Annotated[TargetSpec, BeforeValidator(read_target)]


def _by_type(given: Mapping[str, object]) -> TargetSpec:
    kind = given.get("type")
    if isinstance(kind, str) and kind in TARGETS:
        return validate(TARGETS[kind].model, given)
    problem = "is missing" if "type" not in given else f"{shown(kind)} is not valid"
    *others, last = map(repr, TARGETS)
    raise InvalidValue(problem=problem, remedy=f"write {', '.join(others)} or {last}", path="type")
