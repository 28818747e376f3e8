"""The checks of doctor: `/api/v1/doctor`. They run on request; each process keeps its last diagnosis."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import answer, call, encoded
from tidewheel.control.api.bodies import read_body
from tidewheel.control.api.callers import Admin, ensure_all_tenants
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import TenantQuery, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.doctor.kept import Diagnosis, Doctor
from tidewheel.jobs.validation import StrictModel
from tidewheel.postgres.database_clock import read_now

_DOCTOR = "/api/v1/doctor"
_WAIT_SECONDS = 60.0  # for the end of the checks; then the answer has the diagnosis before


@dataclass(frozen=True, slots=True)
class DoctorApi:
    """Calls about the checks of doctor."""

    reads: Workers
    doctor: Doctor

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        route = partial(
            add_route, router, scope=Scope.ADMIN, query=TenantQuery, answer=Diagnosis, example=examples.DIAGNOSIS
        )
        route("GET", _DOCTOR, self.get_diagnosis)
        route("POST", f"{_DOCTOR}:run", self.run_doctor)

    async def get_diagnosis(self, request: Request, caller: Admin) -> Response:
        """Return the last diagnosis of this process, for a caller with the rights of all tenants."""
        ensure_all_tenants(caller)
        read_query(request, TenantQuery)
        return await answer(self.reads, caller, lambda _: self.doctor.last())

    async def run_doctor(self, request: Request, caller: Admin) -> Response:
        """Run the checks of doctor and wait for them; a diagnosis of the last ten seconds is not repeated."""
        ensure_all_tenants(caller)
        read_query(request, TenantQuery)
        await read_body(request, StrictModel)

        def read(connection: Connection) -> datetime:
            with connection.snapshot() as reading:
                return read_now(reading)

        found = await self.doctor.run(await call(self.reads, caller, read), _WAIT_SECONDS)
        return Response(encoded(found), media_type="application/json")
