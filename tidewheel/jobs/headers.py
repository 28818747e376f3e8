"""Headers of targets as submitted: a text, or with HTTP the name of a secret that the executor has."""

import re
from collections.abc import Mapping

from tidewheel.errors import FieldError
from tidewheel.jobs.invalid import InvalidValue, UnreadableValue
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.validation import StrictModel, shown
from tidewheel.redaction import CREDENTIAL_HEADERS, REDACTED

MAX_HEADERS = 32
MAX_HEADER = 1024

SECRET_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)  # as in TIDEWHEEL_SECRET_<NAME>; no path can be made of it

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}", re.ASCII)  # Source: RFC 9110 section 5.6.2, "Tokens"
NOT_IN_A_VALUE = re.compile(r"[^\x20-\x7e\t]")  # Source: RFC 9110 section 5.5, "Field Values"; sent as ASCII
_OWN_HEADERS = frozenset(
    ("connection", "content-length", "host", "idempotency-key", "te", "trailer", "traceparent", "transfer-encoding")
)
_OWN_PREFIXES = ("tidewheel-", "webhook-", "proxy-")


class SecretReference(StrictModel):
    """A header's value that the executor alone has: the secret's name."""

    secret: str


def read_headers(value: object) -> dict[str, str | SecretReference]:
    """Return the headers that an object describes; the path of an InvalidValue is the header's name."""
    read: dict[str, str | SecretReference] = {}
    seen: set[str] = set()
    for name, content in _object(value).items():
        _check_name(name)
        if isinstance(content, SecretReference) or as_object(content) is not None:
            read[name] = _reference(name, content)
        else:
            read[name] = _text(name, content)
        if name.lower() in seen:
            raise InvalidValue(problem=f"the header {name!r} is given twice", remedy="give it once", path=name)
        seen.add(name.lower())
    return read


def read_literal_headers(value: object) -> dict[str, str]:
    """Return the headers of a target that has no secrets."""
    literal: dict[str, str] = {}
    for name, content in read_headers(value).items():
        if isinstance(content, SecretReference):
            problem = "only a target of type http has secret headers"
            raise InvalidValue(problem=problem, remedy="leave it out, or call the target by HTTP", path=name)
        literal[name] = content
    return literal


def merged_headers(headers: Mapping[str, str], secret_headers: Mapping[str, str]) -> dict[str, object]:
    """Return the headers of an Avro request as JSON requests have them."""
    both = UnreadableValue("it is in headers and in secret_headers", "write it in one of them")
    secrets = {name: both if name in headers else {"secret": secret} for name, secret in secret_headers.items()}
    return {**headers, **secrets}


def refuse_literal_credentials(headers: object) -> object:
    """Return the headers of an HTTP target as they are, unless one has a credential as its value.

    A job names a secret of the executors there. The list is by name alone. A value is never examined: a rule that
    guesses refuses honest headers and misses secrets.

    Raises:
        InvalidValue: Some have; no error shows a value.
    """
    problem, remedy = "it is a credential", 'write {"secret": "NAME"} and set TIDEWHEEL_SECRET_NAME on the executors'
    literal = [name for name, value in (as_object(headers) or {}).items() if is_literal_credential(name, value)]
    if literal:
        raise InvalidValue.of([FieldError(name, problem, remedy) for name in literal])
    return headers


def without_literal_credentials(headers: Mapping[str, object]) -> dict[str, object]:
    """Return headers as output shows them: credentials of a row that an older release stored are redacted."""
    return {name: REDACTED if is_literal_credential(name, value) else value for name, value in headers.items()}


def is_literal_credential(name: str, value: object) -> bool:
    """Return True if a header is a credential and its value is one: no reference, nor unreadable.

    >>> is_literal_credential("X-API-Key", "k"), is_literal_credential("X-API-Key", {"secret": "CRM"})
    (True, False)
    """
    is_other = isinstance(value, SecretReference | UnreadableValue) or as_object(value) is not None
    return name.lower() in CREDENTIAL_HEADERS and not is_other


def _object(value: object) -> dict[str, object]:
    if (given := as_object(value)) is None:
        problem = value.problem if isinstance(value, UnreadableValue) else f"{shown(value)} is not valid"
        raise InvalidValue(problem=problem, remedy="write an object of names and values")
    if len(given) > MAX_HEADERS:
        raise InvalidValue(problem=f"there are {len(given)} headers", remedy=f"write at most {MAX_HEADERS}")
    return given


def _check_name(name: str) -> None:
    if not _TOKEN.fullmatch(name):
        raise InvalidValue(
            problem=f"{shown(name)} is not a header name", remedy="write 1 to 64 letters, digits and hyphens"
        )
    if name.lower() in _OWN_HEADERS or name.lower().startswith(_OWN_PREFIXES):
        raise InvalidValue(problem="Tidewheel sets this header itself", remedy="leave it out", path=name)


def _reference(name: str, value: object) -> SecretReference:
    if isinstance(value, SecretReference):
        return value
    given = as_object(value) or {}
    if list(given) != ["secret"]:
        # The names alone: a value beside the reference may be the secret itself.
        problem = "it is an object with other fields than secret" if given else "it is an empty object"
        remedy = 'write text, or {"secret": "NAME"} alone; the secret is the header\'s whole value'
        raise InvalidValue(problem=problem, remedy=remedy, path=name)
    secret = given["secret"]
    if not isinstance(secret, str) or not SECRET_NAME.fullmatch(secret):
        # Not shown: it may be the secret, written where its name belongs.
        problem = "it is not the name of a secret"
        remedy = "write 1 to 64 of A-Z, 0-9 and '_', a letter first, such as BILLING for TIDEWHEEL_SECRET_BILLING"
        raise InvalidValue(problem=problem, remedy=remedy, path=f"{name}.secret")
    return SecretReference(secret=secret)


def _text(name: str, content: object) -> str:
    if isinstance(content, UnreadableValue):
        raise InvalidValue(problem=content.problem, remedy=content.remedy, path=name)
    if not isinstance(content, str) or len(content) > MAX_HEADER:
        remedy = f"write text of one line, at most {MAX_HEADER} characters"
        problem = "its text is too long" if isinstance(content, str) else f"{shown(content)} is not valid"
        raise InvalidValue(problem=problem, remedy=remedy, path=name)
    if found := NOT_IN_A_VALUE.search(content):
        remedy = "write ASCII text of one line; percent-encode the rest, or send it in the payload"
        raise InvalidValue(problem=f"it holds {found.group()!a}, which no header carries", remedy=remedy, path=name)
    if content != content.strip():
        raise InvalidValue(
            problem="it begins or ends with a blank, which no header keeps", remedy="leave it out", path=name
        )
    return content
