"""Read a request's body: bounded in size and time, strict JSON, validated by a model."""

import asyncio
from http import HTTPStatus
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from tidewheel.errors import InvalidInput
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.strict_json import MAX_DOCUMENT_BYTES, read_object
from tidewheel.jobs.validation import StrictModel, validate

M = TypeVar("M", bound=StrictModel)

_SECONDS = 10.0  # for a body of at most 1 MiB: a slower client is stuck or malicious


async def read_document(request: Request) -> dict[str, object]:
    """Return the JSON object of the body; an empty body is an empty object.

    Raises:
        HTTPException: Its content type is not JSON, it is too long, or it does not arrive in time.
        UndecodableMessage: It is no JSON object.
    """
    body = await _read(request)
    if not body:
        return {}
    # A browser page may send other types cross-site without a preflight request, but not JSON.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the body as content-type: application/json")
    return read_object(body)


async def read_body(request: Request, model: type[M]) -> M:
    """Return the body as a model.

    Raises:
        InvalidInput: It does not fit the model; `errors` names every problem.
        HTTPException: As `read_document`.
        UndecodableMessage: As `read_document`.
    """
    document = await read_document(request)
    try:
        return validate(model, document)
    except InvalidValue as error:
        raise InvalidInput(error.errors) from error


async def _read(request: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_DOCUMENT_BYTES:
                    detail = f"the body has more than {MAX_DOCUMENT_BYTES} bytes; send it in parts"
                    raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail, {"Connection": "close"})
    except (TimeoutError, ClientDisconnect) as error:
        detail = f"the body did not come within {_SECONDS:g} s"
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, detail, {"Connection": "close"}) from error
    return bytes(body)
