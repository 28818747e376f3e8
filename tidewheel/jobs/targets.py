"""What executes a job's runs, as submitted: an object with a type, or a handler's name."""

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator

from tidewheel.jobs.misfit import Misfit, Misread
from tidewheel.jobs.refusals import shown, validated
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.submitted import Submitted
from tidewheel.jobs.values import Key

MAX_URL = 2048
MAX_HEADERS = 32
MAX_HEADER = 1024

_LATER_TYPES = ("kafka", "shell", "lambda")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}", re.ASCII)  # Source: RFC 9110 section 5.6.2, "Tokens"
_NOT_IN_A_VALUE = re.compile(r"[^\x20-\x7e\t]")  # Source: RFC 9110 section 5.5, "Field Values"; sent as ASCII
_OWN_HEADERS = frozenset(
    ("connection", "content-length", "host", "idempotency-key", "te", "trailer", "traceparent", "transfer-encoding")
)
_OWN_PREFIXES = ("tidewheel-", "webhook-", "proxy-")


class HandlerTarget(Submitted):
    """A Python handler."""

    type: Literal["handler"] = "handler"
    name: Key


def _url(text: str) -> str:
    if len(text) > MAX_URL:
        raise Misfit(problem=f"it has {len(text)} characters", remedy=f"write at most {MAX_URL}")
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise Misfit(
            problem=f"{shown(text)} is no URL ({error})", remedy="write such as https://example.org/report"
        ) from error
    if parts.scheme not in ("http", "https") or not host or not text.isprintable() or re.search(r"[\s\\]", text):
        raise Misfit(
            problem=f"{shown(text)} is no absolute http or https URL", remedy="write such as https://example.org/report"
        )
    if parts.username is not None or parts.password is not None:
        raise Misfit(problem="it holds a user name or password", remedy="send an Authorization header instead")
    return text


def _headers(value: object) -> dict[str, str]:
    if (given := as_object(value)) is None:
        problem = value.problem if isinstance(value, Misread) else f"{shown(value)} was read"
        raise Misfit(problem=problem, remedy="write an object of names and values")
    if len(given) > MAX_HEADERS:
        raise Misfit(problem=f"{len(given)} headers were read", remedy=f"write at most {MAX_HEADERS}")
    seen: set[str] = set()
    for name, content in given.items():
        _check_header(name, content)
        if name.lower() in seen:
            raise Misfit(problem=f"the header {name!r} is given twice", remedy="give it once", path=name)
        seen.add(name.lower())
    return {name: str(content) for name, content in given.items()}


def _check_header(name: str, content: object) -> None:
    if not _TOKEN.fullmatch(name):
        raise Misfit(problem=f"{shown(name)} is no header's name", remedy="write 1 to 64 letters, digits and hyphens")
    if name.lower() in _OWN_HEADERS or name.lower().startswith(_OWN_PREFIXES):
        raise Misfit(problem="Tidewheel sets this header itself", remedy="leave it out", path=name)
    if not isinstance(content, str) or len(content) > MAX_HEADER:
        remedy = f"write text of one line, at most {MAX_HEADER} characters"
        raise Misfit(problem=f"{shown(content)} was read", remedy=remedy, path=name)
    if found := _NOT_IN_A_VALUE.search(content):
        remedy = "write ASCII text of one line; percent-encode the rest, or send it in the payload"
        raise Misfit(problem=f"it holds {found.group()!a}, which no header carries", remedy=remedy, path=name)
    if content != content.strip():
        raise Misfit(problem="it begins or ends with a blank, which no header keeps", remedy="leave it out", path=name)


class HttpTarget(Submitted):
    """A request to a URL; the payload is its body."""

    later: ClassVar[Mapping[str, str]] = {
        "async": "answer within start_to_close",
        "async_timeout": "answer within start_to_close",
    }

    type: Literal["http"]
    url: Annotated[str, AfterValidator(_url)]
    method: Literal["POST", "GET", "HEAD", "PUT", "PATCH", "DELETE"] = "POST"
    headers: Annotated[dict[str, str], BeforeValidator(_headers)] = {}  # noqa: RUF012 - pydantic copies it


def read_target(value: object) -> HandlerTarget | HttpTarget:
    """Return the target that an object or a bare string describes.

    Raises:
        Misfit: It describes none.
    """
    if isinstance(value, HandlerTarget | HttpTarget):
        return value
    if isinstance(value, str):
        return validated(HandlerTarget, {"type": "handler", "name": value})
    if (given := as_object(value)) is None:
        problem = value.problem if isinstance(value, Misread) else f"{shown(value)} was read"
        raise Misfit(
            problem=problem,
            remedy='write a handler\'s name, or such as {"type": "http", "url": "https://example.org/report"}',
        )
    return _by_type(given)


Target: TypeAlias = Annotated[HandlerTarget | HttpTarget, BeforeValidator(read_target)]


def _by_type(given: Mapping[str, object]) -> HandlerTarget | HttpTarget:
    match given.get("type"):
        case "handler":
            return validated(HandlerTarget, given)
        case "http":
            return validated(HttpTarget, given)
        case str() as kind if kind in _LATER_TYPES:
            raise Misfit(
                problem=f"{kind!r} is not yet available in this release",
                remedy="write 'handler' or 'http'",
                path="type",
            )
        case None if "type" not in given:
            raise Misfit(problem="is missing", remedy="write 'handler' or 'http'", path="type")
        case kind:
            raise Misfit(problem=f"{shown(kind)} was read", remedy="write 'handler' or 'http'", path="type")
