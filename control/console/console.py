"""Routes of the console: pages and actions by address, sign-in, static files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, cast

from fastapi import APIRouter
from fastapi.security import SecurityScopes
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidewheel.api_keys import Scope
from tidewheel.control.api.answers import call, encoded
from tidewheel.control.api.authorization import caller
from tidewheel.control.api.key_check import KeyCheck
from tidewheel.control.api.workers import Pools
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import Action, Actions, framed, visitor
from tidewheel.control.console.ask import AskPage
from tidewheel.control.console.audit import AuditLogPage
from tidewheel.control.console.bulk import BulkPage, BulkWorkPage, ChangeBulk
from tidewheel.control.console.calendars import CalendarPage, CalendarsPage, DeleteCalendar, NewCalendar, PutCalendar
from tidewheel.control.console.door import Door, SignInPage, check_form, read_form
from tidewheel.control.console.fleet import FleetPage, RunDoctor
from tidewheel.control.console.job import JobPage
from tidewheel.control.console.job_actions import (
    MoveOccurrence,
    PauseJob,
    ReleaseJob,
    ResumeJob,
    SkipOccurrence,
    UnskipOccurrence,
)
from tidewheel.control.console.job_dialogs import BackfillJob, DeleteJob, RestoreJob, RollBackJob, TriggerJob
from tidewheel.control.console.job_form import JobForms
from tidewheel.control.console.job_pages import JobNextPage, JobSettingsPage, VersionsPage
from tidewheel.control.console.jobs import JobsPage, PauseJobs, ResumeJobs
from tidewheel.control.console.live import Live
from tidewheel.control.console.many_runs import CancelMatching, CancelRuns, RetryRuns
from tidewheel.control.console.overview import OverviewPage
from tidewheel.control.console.progress import Paces
from tidewheel.control.console.run import RunPage
from tidewheel.control.console.run_actions import CancelRun, RetryRun
from tidewheel.control.console.run_log import RawLog, RunLines
from tidewheel.control.console.runs import RunsPage, SlowPage
from tidewheel.control.console.urls import PATHS, local_path, place_of
from tidewheel.control.console.view import Page, View, in_snapshot, without_zone
from tidewheel.control.console.words import zone_of
from tidewheel.control.doctor.doctor import Broker, Doctor
from tidewheel.nouns.api_keys.sign_ins import COOKIE, LOOKS, ZONE_COOKIE, sign_in_of
from tidewheel.nouns.api_keys.web import KeysPage, NewKey, RevokeKey
from tidewheel.nouns.batches.web import BatchesPage, BatchPage, ChangeBatch
from tidewheel.nouns.dead_letters import web as pages_of_letters
from tidewheel.nouns.freezes.web import ChooseFreezePage, FreezeAction, ThawAction
from tidewheel.nouns.runs import web as pages_of_runs
from tidewheel.nouns.tenants.reads import require_tenant, show_tenant
from tidewheel.nouns.tenants.web import DELETE, LIMIT, UNDELETE, NewTenant, TenantPage, TenantsPage, tenant_names
from tidewheel.nouns.workflows.web import CancelWorkflow, PauseWorkflow, ResumeWorkflow, WorkflowPage, WorkflowsPage
from tidewheel.settings.services import ApiSettings

_YEAR_SECONDS = 365 * 86_400
_OF_ALL_TENANTS = frozenset({"admin", "fleet"})  # places that also show a tenant that was deleted
# Another site's request to a page has no cookie (SameSite=strict), so it learns nothing from the size of an answer.
_PACKED = Middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)

_PAGES: Mapping[str, Page] = {
    "/jobs": JobsPage(),
    "/jobs/{ref}": JobPage(),
    "/jobs/{ref}/next": JobNextPage(),
    "/jobs/{ref}/settings": JobSettingsPage(),
    "/jobs/{ref}/versions": VersionsPage(),
    "/runs": RunsPage(),
    "/runs/slow": SlowPage(),
    "/runs/{run_id}": RunPage(),
    "/runs/{run_id}/lines": RunLines(),
    "/workflows": WorkflowsPage(),
    "/workflows/{root_run_id}": WorkflowPage(),
    "/batches": BatchesPage(),
    "/batches/{batch_id}": BatchPage(),
    "/dead-letters": pages_of_letters.DeadLettersListPage(),
    "/dead-letters/{number}": pages_of_letters.DeadLetterPage(),
    "/freeze": ChooseFreezePage(),
    "/ask": AskPage(),
    "/admin/tenants": TenantsPage(),
    "/admin/tenants/{name}": TenantPage(),
    "/admin/keys": KeysPage(),
    "/admin/audit": AuditLogPage(),
    "/calendars": CalendarsPage(),
    "/calendars/{name}": CalendarPage(),
}
_ACTIONS: Mapping[str, Action] = {
    "/jobs/{ref}/pause": PauseJob(),
    "/jobs/{ref}/resume": ResumeJob(),
    "/jobs/{ref}/skip": SkipOccurrence(),
    "/jobs/{ref}/move": MoveOccurrence(),
    "/jobs/{ref}/unskip": UnskipOccurrence(),
    "/jobs/{ref}/rollback": RollBackJob(),
    "/jobs/{ref}/trigger": TriggerJob(),
    "/jobs/{ref}/backfill": BackfillJob(),
    "/jobs/{ref}/release": ReleaseJob(),
    "/jobs/{ref}/delete": DeleteJob(),
    "/jobs/{ref}/restore": RestoreJob(),
    "/runs/{run_id}/cancel": CancelRun(),
    "/runs/{run_id}/retry": RetryRun(),
    "/workflows/{root_run_id}/pause": PauseWorkflow(),
    "/workflows/{root_run_id}/resume": ResumeWorkflow(),
    "/workflows/{root_run_id}/cancel": CancelWorkflow(),
    "/batches/{batch_id}/close": ChangeBatch("close"),
    "/batches/{batch_id}/resume": ChangeBatch("resume"),
    "/batches/{batch_id}/cancel": ChangeBatch("cancel"),
    "/admin/new-tenant": NewTenant(),
    "/admin/tenants/{name}/limits": LIMIT,
    "/admin/tenants/{name}/delete": DELETE,
    "/admin/tenants/{name}/undelete": UNDELETE,
    "/admin/new-key": NewKey(),
    "/admin/keys/{key_id}/revoke": RevokeKey(),
    "/new-calendar": NewCalendar(),
    "/calendars/{name}/edit": PutCalendar(),
    "/calendars/{name}/delete": DeleteCalendar(),
    "/selected-jobs/pause": PauseJobs(),
    "/selected-jobs/resume": ResumeJobs(),
    "/runs/cancel": CancelRuns(),
    "/runs/retry": RetryRuns(),
    "/runs/cancel-all": CancelMatching(),
    "/bulk/{kind}/{id}/pause": ChangeBulk("pause"),
    "/bulk/{kind}/{id}/resume": ChangeBulk("resume"),
    "/bulk/{kind}/{id}/cancel": ChangeBulk("cancel"),
    "/freeze/scope": FreezeAction(),
    "/thaw": ThawAction(),
    **{PATHS[f"{each.back}_{each.verb}"]: each for each in (*pages_of_letters.CONFIRMED, *pages_of_runs.CONFIRMED)},
}


@dataclass(frozen=True, slots=True)
class Console:
    """The console."""

    pools: Pools
    door: Door
    keys: KeyCheck
    live: Live
    shards: int
    settings: ApiSettings
    doctor: Doctor
    broker: Broker

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        paces, pools = Paces(), self.pools
        forms, acting = JobForms(pools.reads, pools.writes, self.door), Actions(pools.reads, pools.writes, self.door)
        pages: Mapping[str, Page] = {
            **_PAGES,
            "/": OverviewPage(self.shards),
            "/bulk": BulkPage(paces),
            "/bulk/{kind}/{id}": BulkWorkPage(paces),
            "/fleet": FleetPage(self.shards, self.doctor, self.broker, pools.replica),
        }
        actions: Mapping[str, Action] = {**_ACTIONS, "/fleet/doctor": RunDoctor(self.doctor)}
        for path in ("/jobs/new", "/jobs/{ref}/edit"):  # before "/jobs/{ref}", which would take "new" for a key
            self._route(router, "GET", path, forms.show)
            self._route(router, "POST", path, forms.submit)
        for path, action in actions.items():
            self._route(router, "GET", path, partial(acting.show, action))
            self._route(router, "POST", path, partial(acting.act, action))
        self._route(router, "GET", "/runs/{run_id}/log", RawLog(pools.lists).get)
        for path, page in pages.items():  # after the actions, some of whose addresses look like those of a run
            self._route(router, "GET", path, partial(self._show, page))
        signing = SignInPage(self.door, self.keys, allows_plain_http=self.settings.console_plain_http)
        self._route(router, "GET", "/sign-in", signing.show)
        self._route(router, "POST", "/sign-in", signing.sign_in)
        self._route(router, "POST", "/sign-out", self._sign_out)
        self._route(router, "POST", "/theme", self._choose_looks)
        self._route(router, "GET", "/live", self.live.stream)
        router.routes.append(Route("/static/{digest}/{name}", self._file, methods=["GET"], include_in_schema=False))

    @staticmethod
    def _route(router: APIRouter, method: str, path: str, handler: Callable[[Request], Any]) -> None:
        router.routes.append(Route(path, handler, methods=[method], include_in_schema=False, middleware=[_PACKED]))

    async def _show(self, page: Page, request: Request) -> Response:
        """Return a page, read and rendered on a thread."""
        found = await caller(request, SecurityScopes([getattr(page, "scope", Scope.READ)]))
        seen = visitor(request, found)
        urls = self.door.renderer.urls(seen)

        def made(connection: Connection) -> Response:
            if "tenant" in request.query_params:
                also_deleted = place_of(request.scope["path"]) in _OF_ALL_TENANTS
                in_snapshot(connection, show_tenant if also_deleted else require_tenant, found.tenant)
            view: View = page.read(connection, found, without_zone(request), urls)
            if view.moved_to is not None:
                return self.door.renderer.lead_to(view.moved_to)
            if view.document is not None:
                content = encoded(view.document)
                return self.door.renderer.guarded(Response(content, view.status, media_type="application/json"))
            tenants = tenant_names(connection) if found.all_tenants else ()
            values: Mapping[str, object] = {**view.values, "tenants": tenants}
            frame = framed(connection, seen)
            return self.door.renderer.page(request, page.template, frame, status=view.status, values=values)

        return await call(self.pools.lists, found, made)

    async def _sign_out(self, request: Request) -> Response:
        """End the sign-in of this browser, also for copies of its cookie."""
        check_form(request, await read_form(request), self.door)
        if (sign_in := sign_in_of(request)) is not None:
            await self.keys.sign_out(sign_in)
        answer = self.door.renderer.lead_to(f"{self.door.base}/sign-in")
        self.door.renderer.delete_cookie(request, answer, COOKIE)
        return answer

    async def _choose_looks(self, request: Request) -> Response:
        """Keep the theme, zone, density or keys of this browser, and go back to the page."""
        form = await read_form(request)
        check_form(request, form, self.door)
        answer = self.door.renderer.lead_to(f"{self.door.base}{local_path(form.get('next', ''))}")
        chosen = {f"tidewheel-{name}": form[name] for name, values in LOOKS.items() if form.get(name) in values}
        if zone_of(form.get("zone", "")) is not None:
            chosen[ZONE_COOKIE] = form["zone"]
        for cookie, value in chosen.items():
            self.door.renderer.set_cookie(request, answer, cookie, value, seconds=_YEAR_SECONDS)
        return answer

    async def _file(self, request: Request) -> Response:
        """Return a static file."""
        parts = cast("Mapping[str, str]", request.path_params)
        found = self.door.renderer.file(request, parts["digest"], parts["name"])
        # Not as a page: that costs more than a stranger may cause without a turn.
        gone = Response("there is no such file; load the page again", HTTPStatus.NOT_FOUND, media_type="text/plain")
        return found or gone
