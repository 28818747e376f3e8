"""Actions on the jobs that are selected in a list: pause and resume, each job by itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field as PydanticField
from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.callers import Caller
from tidewheel.control.api.jobs import JobsQuery
from tidewheel.control.api.queries import TenantQuery, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import SAMPLE, Dialog, Done, Field, request_id_of, sample_of, text_of
from tidewheel.control.console.forms import Form
from tidewheel.control.console.listing import pairs
from tidewheel.control.console.many_runs import MOST, IdOfQuery, back_to
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.words import counted, number
from tidewheel.control.reads.job_position import SelectedJob, read_selected_jobs
from tidewheel.control.reads.resuming import preview_resume
from tidewheel.errors import FieldError, InvalidInput

_NAMED = 3  # refusals that the message names
_NONE = FieldError("job", "none of the selected jobs is there", "go back and select others")


class SelectedJobsQuery(TenantQuery):
    """The jobs that are selected."""

    next: str | None = None
    job: Annotated[tuple[IdOfQuery, ...], PydanticField(max_length=MOST)] = ()


@dataclass(frozen=True, slots=True)
class PauseJobs:
    """Pause the jobs that are selected in a list."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return how many of them fire."""
        found = _selected(connection, caller, request)
        paused = sum(each.paused for each in found)
        if paused == len(found):
            return _nothing("Pause", "All of the selected jobs are paused already." if found else "", request, urls)
        return Dialog(
            f"Pause {counted(len(found) - paused, 'job')}?", f"Pause {counted(len(found) - paused, 'job')}",
            _back(request, urls), place="jobs",
            will=(
                "No occurrence fires until the jobs are resumed.",
                "When a pause ends, each job's on_resume setting fires or skips what came due meanwhile.",
            ),
            stays=("Runs under way and backfills go on. Triggers still run.", *_already(paused, "paused already")),
            fields=(
                Field("reason", "Reason (optional)", help="Stored with each pause and in the audit log."),
                Field("kept", "", "hidden", " ".join(each.job_id.hex for each in found if each.paused)),
            ),
            sample=_sample([each for each in found if not each.paused]),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Pause each of them; a job that its dialog has shown as paused keeps that pause, with its end."""
        document = {"type": "job.pause", "reason": text_of(form, "reason")}
        words = _change(connection, caller, form, request, verb="paused", document=document)
        return Done(urls("jobs", status="paused"), words)


@dataclass(frozen=True, slots=True)
class ResumeJobs:
    """Resume the jobs that are selected in a list."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return how many of them are paused."""
        found = _selected(connection, caller, request)
        paused = sum(each.paused for each in found)
        if not paused:
            return _nothing("Resume", "None of the selected jobs is paused." if found else "", request, urls)
        with connection.snapshot() as reading:
            due = preview_resume(reading, caller.tenant, [each.job_id for each in found])
        return Dialog(
            f"Resume {counted(paused, 'job')}?", f"Resume {counted(paused, 'job')}", _back(request, urls), place="jobs",
            will=("They fire again.", *due.words),
            stays=_already(len(found) - paused, "not paused"), keep="Keep them paused",
            sample=_sample([each for each in found if each.paused]),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Resume each of them."""
        words = _change(connection, caller, form, request, verb="resumed", document={"type": "job.resume"})
        return Done(_back(request, urls), words)


def freezable_filters(query: JobsQuery) -> Mapping[str, object] | None:
    """Return the scope of a freeze of all jobs that a list shows; None if a freeze has no such filter.

    A freeze is one request, however many jobs it stops. Without a filter there is no scope.
    """
    named = {"key_prefix": query.prefix or None, "label": pairs(query.label) or None}
    found: dict[str, object] = {name: value for name, value in named.items() if value}
    return found if found and not any((query.status, query.kind, query.lane, query.queue)) else None


def _back(request: Request, urls: Urls) -> str:
    return back_to(read_query(request, SelectedJobsQuery).next, urls, "jobs")


def _nothing(verb: str, why: str, request: Request, urls: Urls) -> Dialog:
    """Return the dialog of an action that would change none of the selected jobs."""
    words = f"Nothing would change. {why or 'No job is selected.'}"
    return Dialog(f"{verb} the selected jobs?", "", _back(request, urls), place="jobs", will=(words,), keep="Back")


def _selected(connection: Connection, caller: Caller, request: Request) -> Sequence[SelectedJob]:
    chosen = read_query(request, SelectedJobsQuery).job
    with connection.snapshot() as reading:
        return read_selected_jobs(reading, caller.tenant, chosen)


def _change(
    connection: Connection, caller: Caller, form: Form, request: Request, *, verb: str, document: Mapping[str, object]
) -> str:
    """Change each selected job, all in one transaction; return how many have changed, and who was refused.

    Raises:
        InvalidInput: None has changed: each refusal, with the key of its job.
    """
    kept, request_id = set(form.get("kept", "").split()), request_id_of(form)
    found = [each for each in _selected(connection, caller, request) if each.job_id.hex not in kept]
    replies = connection.request_all(
        [
            {**document, "key": each.key, "request_id": f"{request_id}/{each.job_id}" if request_id else None}
            for each in found
        ]
    )
    refused = [
        FieldError(each.key, error.problem, error.remedy)
        for each, reply in zip(found, replies, strict=True)
        for error in reply.errors[:1]
    ]
    same = sum(reply.unchanged for reply in replies)
    if len(refused) == len(found):
        raise InvalidInput(refused or [_NONE])
    words = [f"{counted(len(found) - len(refused) - same, 'job')} {verb}."]
    words += [f"{number(same)} already {'was' if same == 1 else 'were'}."] if same else []
    words += [f"{number(len(refused))} refused: {'; '.join(map(str, refused[:_NAMED]))}."] if refused else []
    return " ".join(words)


def _already(count: int, words: str) -> Sequence[str]:
    return (f"Of these, {counted(count, 'job')} {'is' if count == 1 else 'are'} {words}.",) if count else ()


def _sample(found: Sequence[SelectedJob]) -> Sequence[str]:
    return sample_of([each.key for each in found[:SAMPLE]], len(found))
