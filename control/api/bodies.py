"""Reading a request's body: bounded in size and time, JSON without its traps, checked by a model."""

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

_SECONDS = 10.0  # for a body of 1 MiB at most: who needs longer is stuck, or means harm


async def read_document(request: Request) -> dict[str, object]:
    """The JSON object that was sent; an empty body is an empty object.

    Raises:
        HTTPException: It is no JSON by its content type, too long, or does not come.
        UndecodableMessage: It is none.
    """
    body = await _read(request)
    if not body:
        return {}
    # A page in a browser may send other types across sites without asking; JSON it may not.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the body as content-type: application/json")
    return read_object(body)


async def read_body(request: Request, model: type[M]) -> M:
    """The body as a model has it.

    Raises:
        InvalidInput: It does not fit; carries every problem.
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
                    told = f"the body has more than {MAX_DOCUMENT_BYTES} bytes; send it in parts"
                    raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, told, {"Connection": "close"})
    except (TimeoutError, ClientDisconnect) as error:
        told = f"the body did not come within {_SECONDS:g} s"
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, told, {"Connection": "close"}) from error
    return bytes(body)
