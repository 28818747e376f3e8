"""The page of errors, from `tidewheel/errors.py` and the status of each code."""

import ast
import inspect
from collections.abc import Iterator
from http import HTTPStatus

from tests.docs.tables import table
from tidewheel import errors
from tidewheel.control.api.problems import STATUSES
from tidewheel.errors import HandlerSignal, Refused, TidewheelError, UnknownId

_HEAD = """\
# Errors

<!-- Generated from `tidewheel/errors.py` by `python -m tests.docs.reference`.
A test compares the two. Edit the classes. -->

A refused input has a code. [REST](rest.md#refusals) answers with a problem document whose `type` is the code after
`urn:tidewheel:problem:`. A reply on Kafka has it in `code`. The Python client raises the exception. The command line
prints a line for each field. All of them name the field, the problem and the remedy. `…` is a value.
"""
# Codes of answers that no exception of this package has.
_OF_REST = (
    ("unreadable", 400, "The body is not a JSON object.", "send a JSON object in UTF-8"),
    ("unauthorized", 401, "There is no valid API key.", "send `Authorization: Bearer` with a key"),
    (
        "forbidden",
        403,
        "The key lacks the scope, or a page of another site sends the request.",
        "use a key with the scope",
    ),
    ("not_found", 404, "There is no such route.", "`/api/v1/openapi.json` lists all routes"),
    ("method_not_allowed", 405, "The route does not accept the method.", "`Allow` lists its methods"),
    ("request_timeout", 408, "The body did not arrive within ten seconds.", "send the whole body at once"),
    ("content_too_large", 413, "The body has more than 1 MiB.", "split the request"),
    ("unsupported_media_type", 415, "The body has another type, or is compressed.", "send plain `application/json`"),
    ("misdirected_request", 421, "The request names another host.", "use a host name that the API serves"),
    ("too_many_requests", 429, "The key exceeds its rate.", "retry after `Retry-After`"),
    ("internal", 500, "The service failed.", "see the log of `tidewheel service api`"),
    (
        "busy",
        503,
        "Another transaction locks a row that the request needs.",
        "retry after `Retry-After`, with the same id",
    ),
    ("overloaded", 503, "Too many requests are waiting.", "retry after `Retry-After`"),
    ("unavailable", 503, "The database does not answer.", "retry after `Retry-After`, with the same id"),
)


def errors_page() -> str:
    """Return each code with its status, its meaning and its remedy, then the other exceptions."""
    refusals = [each for each in _classes() if issubclass(each, Refused)]
    rows = [(f"`{each.code}`", _status(each), f"`{each.__name__}`", _doc(each), _remedy(each)) for each in refusals]
    rest = [(f"`{code}`", str(status), meaning, remedy) for code, status, meaning, remedy in _OF_REST]
    others = [each for each in _classes() if not issubclass(each, Refused | HandlerSignal)]
    signals = [each for each in _classes() if issubclass(each, HandlerSignal)]
    parts = [
        _HEAD,
        "## Refused input", "", "Nothing was changed. Correct the input.", "",
        table(("Code", "Status", "Exception", "Meaning", "Remedy"), rows), "",
        "## Answers of REST alone", "", table(("Code", "Status", "Meaning", "Remedy"), rest), "",
        "## Other exceptions", "",
        "`Unavailable`: try again. `Unusable`: an operator corrects settings, schema or stack.", "",
        table(("Exception", "Is a", "Meaning"), map(_other, others)), "",
        "## Raised by handlers", "", "They choose [the end of an attempt](handlers.md#how-an-attempt-ends).", "",
        table(("Exception", "Is a", "Meaning"), map(_other, signals)), "",
    ]  # fmt: skip
    return "\n".join(parts)


def _classes() -> Iterator[type[TidewheelError]]:
    """Yield the exceptions in the order of their file, without the root."""
    found = (each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, TidewheelError))
    return (each for each in found if each not in (TidewheelError, UnknownId))


def _other(error: type[TidewheelError]) -> tuple[str, ...]:
    return f"`{error.__name__}`", f"`{error.__bases__[0].__name__}`", _doc(error)


def _status(error: type[Refused]) -> str:
    return str(STATUSES.get(error.code, HTTPStatus.UNPROCESSABLE_ENTITY).value)


def _doc(error: type[TidewheelError]) -> str:
    return (inspect.getdoc(error) or "").partition("\n")[0]


def _remedy(error: type[Refused]) -> str:
    """Return the remedies that the class writes; otherwise each of its errors has its own."""
    if issubclass(error, UnknownId):
        return error.remedy
    [tree] = ast.parse(inspect.getsource(error)).body
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    [*written] = (
        text for call in calls if ast.unparse(call.func) == "FieldError" for text in _texts(tree, call.args[2])
    )
    return "; or: ".join(written) or "each of its errors has its own"


def _texts(tree: ast.stmt, node: ast.expr) -> Iterator[str]:
    """Yield the texts that an expression may be; a name is each of those that are assigned to it."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "…" for each in values)
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*_texts(tree, body), *_texts(tree, orelse))
        case ast.Name(id=name):
            for value in _assigned(tree, name):
                yield from _texts(tree, value)
        case _:
            return


def _assigned(tree: ast.stmt, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                yield value
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                yield from (value for target, value in zip(targets, values, strict=True) if ast.unparse(target) == name)
            case _:
                pass
