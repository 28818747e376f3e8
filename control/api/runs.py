"""What an attempt says from outside: `/api/v1/runs/{run_id}:complete` and `:heartbeat`, with its task token.

The token is all the right they take: it comes in the `Authorization` header, or in the body as in requests by Kafka.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tidewheel.control.api.bearer import bearer
from tidewheel.control.api.bodies import read_document
from tidewheel.control.api.workers import Workers
from tidewheel.errors import FieldError, InvalidInput
from tidewheel.task_tokens import read_task_token
from tidewheel.transitions.installation import Installation


@dataclass(frozen=True, slots=True)
class RunsDoor:
    """The calls of whoever has a task token."""

    workers: Workers
    installation: Installation

    def routes(self) -> list[Route]:
        """Where they are answered."""
        one = "/api/v1/runs/{run_id:uuid}"
        return [
            Route(f"{one}:complete", self.complete, methods=["POST"]),
            Route(f"{one}:heartbeat", self.heartbeat, methods=["POST"]),
        ]

    async def complete(self, request: Request) -> Response:
        """End an attempt."""
        # Under a name, so that one whose COMMIT was lost and is tried again is not told that it comes too late.
        return await self._tell(request, "run.complete", request_id=str(uuid4()))

    async def heartbeat(self, request: Request) -> Response:
        """An attempt goes on."""
        return await self._tell(request, "run.heartbeat")

    async def _tell(self, request: Request, kind: str, **unless_said: str) -> Response:
        document = unless_said | self._document(request, await read_document(request), kind)
        reply = await self.workers.do(lambda desk: desk.asking().ask(document))
        return JSONResponse({"run_id": reply.run_id, "run_status": reply.run_status})

    def _document(self, request: Request, body: Mapping[str, object], kind: str) -> dict[str, object]:
        token = bearer(request)
        document: dict[str, object] = dict(body)
        if token is not None and document.setdefault("token", token) != token:
            raise InvalidInput([FieldError("token", "the header has another one", "send it once")])
        if document.setdefault("type", kind) != kind:
            raise InvalidInput([FieldError("type", f"this address is for {kind}", "leave it out")])
        named = read_task_token(self.installation.task_token_key, str(document.get("token", "")))
        if named is not None and named[0] != request.path_params["run_id"]:
            told = FieldError("token", "it is of another run than the address names", "correct the address")
            raise InvalidInput([told])
        return document
