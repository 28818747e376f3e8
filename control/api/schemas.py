"""`/api/v1/schemas/{fingerprint}`: a message's writer schema, for consumers in other languages.

The path needs no token, so a request costs little. Schemas of this release are in memory. Requests for others read the
database, one at a time of each address.
"""

from dataclasses import dataclass, field
from http import HTTPStatus

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.control.api.bearer import address_of
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.workers import Turn, Workers, WorkerState
from tidewheel.jobs.strict_json import Json
from tidewheel.migrations.stored_schemas import find_schema
from tidewheel.schemas.codec import all_schemas

_FINGERPRINT_BYTES = 8


def _own() -> dict[bytes, str]:
    return {schema.fingerprint: schema.text for schema in all_schemas()}


@dataclass(frozen=True, slots=True)
class SchemasApi:
    """Calls of consumers; `workers` look up schemas of other releases."""

    workers: Workers
    _known: dict[bytes, str] = field(default_factory=_own)

    def add_to(self, router: APIRouter) -> None:
        """Add the route."""
        example: dict[str, Json] = {"type": "record", "name": "RunRequest"}
        add_route(
            router, "GET", "/api/v1/schemas/{fingerprint}", self.get_schema, scope=None, answer={}, example=example
        )

    async def get_schema(self, request: Request) -> Response:
        """Return a schema as JSON."""
        text = str(request.path_params["fingerprint"])
        try:
            fingerprint = bytes.fromhex(text)
        except ValueError:
            fingerprint = b""
        found = self._known.get(fingerprint)
        if found is None and len(fingerprint) == _FINGERPRINT_BYTES:
            found = await self.workers.do(lambda state: self._find(state, fingerprint), Turn(address_of(request)))
        if found is None:
            detail = "there is no such schema; write bytes 3 to 10 of the message as 16 hexadecimal digits"
            raise HTTPException(HTTPStatus.NOT_FOUND, detail)
        kept = {"Cache-Control": "public, max-age=31536000, immutable"}  # a fingerprint never means another schema
        return Response(found, headers=kept, media_type="application/json")

    def _find(self, state: WorkerState, fingerprint: bytes) -> str | None:
        with state.session.transaction() as connection:
            return find_schema(connection, fingerprint)
