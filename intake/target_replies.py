"""Replies of Kafka targets: the end of an attempt, told by a message that carries its task token.

The token lies in a header, so that the value is the result as it is, whatever writes it.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tidewheel.errors import UndecodableMessage
from tidewheel.jobs.misfit import Misread
from tidewheel.jobs.parsing import RequestRefused, parse_request
from tidewheel.jobs.requests import RunComplete
from tidewheel.jobs.strict_json import read_value
from tidewheel.jobs.values import MAX_RESULT_BYTES
from tidewheel.task_tokens import TASK_TOKEN_HEADER, read_task_token

STATUS_HEADER = "tidewheel-status"
ERROR_TYPE_HEADER = "tidewheel-error-type"

_MESSAGE_CHARACTERS = 4096
_BLANK = {code: " " for code in (*range(32), 127) if chr(code) not in "\n\r\t"}  # what is no text in a request

Headers: TypeAlias = Sequence[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None] | None


def read_target_reply(headers: Headers, value: bytes | None, key: bytes) -> RunComplete:
    """Return the request that a reply means.

    Args:
        headers: Of the message: the token, and whether it is a failure.
        value: The result as JSON text, or none; of a failure what went wrong, as text.
        key: What this installation's tokens are signed with.

    Raises:
        UndecodableMessage: It is no reply to anything: no token, a foreign one, or a result that is no JSON.
    """
    given = _texts(headers)
    token = given.get(TASK_TOKEN_HEADER)
    if token is None:
        message = f"there is no header {TASK_TOKEN_HEADER}; send back the one that came with the message"
        raise UndecodableMessage(message)
    if read_task_token(key, token) is None:
        message = f"the header {TASK_TOKEN_HEADER} is no task token of this installation"
        raise UndecodableMessage(message)
    return _request({"type": "run.complete", "token": token, **_end(given, value or b"")})


def _end(given: Mapping[str, str], value: bytes) -> dict[str, object]:
    status = given.get(STATUS_HEADER, "succeeded")
    if status == "failed":
        return _failure(given.get(ERROR_TYPE_HEADER), value)
    if status != "succeeded":
        message = f"the header {STATUS_HEADER} says {status[:64]!r}; write succeeded or failed"
        raise UndecodableMessage(message)
    if not value:
        return {}
    if len(value) > MAX_RESULT_BYTES:
        # As with a handler: its effect is done, and a retry would repeat it for the sake of a return value.
        problem = f"the result has {len(value)} bytes, more than {MAX_RESULT_BYTES}; send a reference instead"
        return {"status": "failed", "error_type": "ResultTooLarge", "error_message": problem, "permanent": True}
    result = read_value(value)
    if isinstance(result, Misread):
        message = f"the result cannot be read: {result.problem}"
        raise UndecodableMessage(message)
    return {"result": result}


def _failure(error_type: str | None, value: bytes) -> dict[str, object]:
    text = value[: 4 * _MESSAGE_CHARACTERS].decode("utf-8", "replace").translate(_BLANK)
    said: dict[str, object] = {"status": "failed", "error_message": text[:_MESSAGE_CHARACTERS]}
    return said if error_type is None else said | {"error_type": error_type}


def _request(document: Mapping[str, object]) -> RunComplete:
    try:
        request = parse_request(document)
    except RequestRefused as refused:
        raise UndecodableMessage(str(refused)) from refused
    assert isinstance(request, RunComplete)  # noqa: S101 - by its type
    return request


def _texts(headers: Headers) -> dict[str, str]:
    """The headers as text; of one that is given twice, the last."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return {name.lower(): _text(value) for name, value in pairs if value is not None}


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
