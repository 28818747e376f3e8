"""Forms: their fields, and the proof that a page of the console has sent them."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import ImmutableMultiDict
from starlette.exceptions import HTTPException
from starlette.requests import Request

from tidewheel.control.api.bodies import in_time
from tidewheel.control.console.door import Door
from tidewheel.control.console.words import size
from tidewheel.jobs.values import MAX_PAYLOAD_BYTES

MOST_BYTES = 16 * 1024
"""Of a form that has no field for long texts."""

_MOST_FIELDS = 200
# Read and dropped beyond the limit: browsers show no answer before they have sent all. A key has 3.6 MiB.
_DROPPED_BYTES = 1 << 20
Form: TypeAlias = ImmutableMultiDict[str, str]

_FORM = "application/x-www-form-urlencoded"


async def read_form(request: Request, most_bytes: int = MOST_BYTES) -> Form:
    """Return the fields of a form: `form["a"]` is the last of a name, `form.getlist("a")` has all.

    Raises:
        HTTPException: It is no form, is longer than any of the console's, or does not come in time.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send a form, as {_FORM}")
    body, read_bytes = bytearray(), 0
    async with in_time():
        async for chunk in request.stream():
            read_bytes += len(chunk)
            if read_bytes > most_bytes + _DROPPED_BYTES:
                break
            body += chunk[: most_bytes - len(body)]
    if read_bytes > most_bytes:
        payload = f", a payload {size(MAX_PAYLOAD_BYTES)} of that" if most_bytes > MAX_PAYLOAD_BYTES else ""
        detail = f"this form accepts at most {size(most_bytes)}{payload}; nothing was saved"
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
    try:
        return ImmutableMultiDict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the form cannot be read") from error


def check_form(request: Request, form: Mapping[str, str], door: Door) -> None:
    """Refuse a form that no page of the console has sent.

    Browsers name the site of the sender to secure origins only; else the origin must be that of the request.

    Raises:
        HTTPException: It comes from another site, or its token is not that of this browser.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    foreign = site != "same-origin" if site is not None else _is_foreign(origin, request.headers.get("host", ""))
    if foreign:
        raise HTTPException(HTTPStatus.FORBIDDEN, "a page of another site may not change anything here")
    if not door.signer.fits_form(request, form.get("token", "")):
        raise HTTPException(HTTPStatus.FORBIDDEN, "the form is out of date; reload the page and repeat the action")


def _is_foreign(origin: str | None, host: str) -> bool:
    return origin is not None and urlsplit(origin).netloc != host
