"""`/api/v1/schemas/{fingerprint}`: the schema that a message was written by, for readers in other languages."""

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidewheel.control.api.workers import Workers

_FINGERPRINT_BYTES = 8


@dataclass(frozen=True, slots=True)
class SchemasDoor:
    """The calls of readers.

    Args:
        workers: Who looks them up.
        lookup: Finds a schema by its fingerprint, as it stands in a message's header.
    """

    workers: Workers
    lookup: Callable[[bytes], str | None]

    def routes(self) -> list[Route]:
        """Where they are answered."""
        return [Route("/api/v1/schemas/{fingerprint}", self.read, methods=["GET"])]

    async def read(self, request: Request) -> Response:
        """A schema, as JSON."""
        asked = str(request.path_params["fingerprint"])
        try:
            fingerprint = bytes.fromhex(asked)
        except ValueError:
            fingerprint = b""
        found = None
        if len(fingerprint) == _FINGERPRINT_BYTES:
            found = await self.workers.do(lambda _: self.lookup(fingerprint))
        if found is None:
            told = "there is no such schema; write bytes 3 to 10 of the message as 16 hexadecimal digits"
            raise HTTPException(HTTPStatus.NOT_FOUND, told)
        kept = {"Cache-Control": "public, max-age=31536000, immutable"}  # a fingerprint never means another schema
        return Response(found, headers=kept, media_type="application/json")
