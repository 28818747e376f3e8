"""Actions on one job: pause and resume."""

from dataclasses import dataclass
from typing import ClassVar

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.callers import Caller
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.results import job_of
from tidewheel.control.console.actions import Dialog, Done, Field, request_id_of, text_of
from tidewheel.control.console.forms import Form
from tidewheel.control.console.job import key_of_page
from tidewheel.control.console.urls import Urls
from tidewheel.control.explain.resuming import preview_resume
from tidewheel.control.reads.jobs import show_job
from tidewheel.ids import job_id


@dataclass(frozen=True, slots=True)
class PauseJob:
    """Pause a job."""

    scope: ClassVar[Scope] = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what a pause stops."""
        key = _shown_key(connection, caller, request)
        return Dialog(
            f"Pause {key}?", f"Pause {key}", urls.job(key, job_id(caller.tenant, key)), place="jobs",
            will=("No occurrence fires until it is resumed. What is due meanwhile is handled by on_resume.",),
            stays=("Runs under way go on. Triggers still run.",),
            fields=(
                Field("until", "Resume by itself at (optional)", help="With its offset: 2026-12-24T08:00:00Z"),
                Field("reason", "Reason (optional)", help="Stored with the pause and in the audit log."),
            ),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Pause it."""
        key = key_of_page(connection, caller, request)
        document = {"type": "job.pause", "key": key, "until": text_of(form, "until"), "reason": text_of(form, "reason")}
        found = job_of(connection.request(document, request_id_of(form)))
        undo = ("Resume", urls.job(key, found.job_id, "job_resume"))
        return Done(urls.job(key, found.job_id), f"{key} is paused.", undo)


@dataclass(frozen=True, slots=True)
class ResumeJob:
    """Resume a paused job."""

    scope: ClassVar[Scope] = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what fires again."""
        key = _shown_key(connection, caller, request)
        found = job_id(caller.tenant, key)
        with connection.snapshot() as reading:
            due = preview_resume(reading, caller.tenant, [found])
        return Dialog(
            f"Resume {key}?", f"Resume {key}", urls.job(key, found), place="jobs",
            will=("It fires again.", *due.words),
            keep="Keep it paused",
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Resume it."""
        key = key_of_page(connection, caller, request)
        found = job_of(connection.request({"type": "job.resume", "key": key}, request_id_of(form)))
        undo = ("Pause", urls.job(key, found.job_id, "job_pause"))
        return Done(urls.job(key, found.job_id), f"{key} fires again.", undo)


def _shown_key(connection: Connection, caller: Caller, request: Request) -> str:
    """Return the key of a job.

    Raises:
        UnknownJob: There is none.
    """
    key = key_of_page(connection, caller, request)
    with connection.snapshot() as reading:
        return show_job(reading, caller.tenant, key).summary.key
