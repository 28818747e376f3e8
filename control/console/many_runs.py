"""Actions on many runs: cancel or retry those that are selected, cancel all that match a filter."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, cast
from uuid import UUID

from pydantic import BeforeValidator
from pydantic import Field as PydanticField
from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import TenantQuery, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import (
    SAMPLE,
    Dialog,
    Done,
    Field,
    bound,
    cannot,
    confirmation,
    counted_of,
    ensure_confirmed,
    no_change,
    reason_field,
    request_id_of,
    sample_of,
    text_of,
    until_of,
)
from tidewheel.control.console.door import Form
from tidewheel.control.console.run_actions import retried_lines, share
from tidewheel.control.console.sentences import is_cancelled
from tidewheel.control.console.urls import Urls, local_path
from tidewheel.control.console.view import in_snapshot, page_now, pairs
from tidewheel.control.console.words import agreed, counted, number
from tidewheel.doors.address import in_address
from tidewheel.errors import FieldError, InvalidInput, Refused, refuse
from tidewheel.ids import read_uuid
from tidewheel.jobs.requests import RunsMatching
from tidewheel.jobs.values import format_timestamp
from tidewheel.nouns.operation import checked, model_of, operations
from tidewheel.nouns.runs.detail import read_retry_facts
from tidewheel.nouns.runs.model import PageFilter, RunFilter, RunSummary
from tidewheel.nouns.runs.operations import Runs, count_matching
from tidewheel.nouns.runs.reads import RunList, read_runs_and_waits
from tidewheel.runs import FINAL, RunState
from tidewheel.transitions.cancellation import LOOKED_AT

MOST = 200
"""So many rows of a list one request may select."""

_NOT_BEGUN = "All runs that have not started are cancelled, in whichever state. Started runs continue."
_ANY_STATE = "The filter by state does not apply: runs in every open state are cancelled."
_ANY_TIME = "The filter by time does not apply: runs of any time are cancelled."
_BY_BOX = "The filter by state does not apply. Runs that have started are cancelled only if you select that below."
_IF_CHECKED = "With the box below, an attempt"
_BETWEEN = " A run between two attempts ends as cancelled at once."
_STARTED, _WITH_STARTED = "include_started", "with_started"
_NOT_STARTED = frozenset({"scheduled", RunState.QUEUED, RunState.BUFFERED, RunState.BLOCKED})
_NONE_SELECTED = FieldError("run", "no run is selected", "go back and select some")
_NONE_OPEN = FieldError("run", "none of the selected runs is open", "go back and select others")
_NONE_ENDED = FieldError("run", "none of the selected runs can be retried", "go back and select others")
_HAVE = ("have dead letters, which are then marked retried", "has a dead letter, which is then marked retried")
_GONE = "the job is deleted, or the run is no longer stored."
_NONE_MATCHES = FieldError("", "no open run matches", "go back and choose other filters")


def _ids(given: Sequence[str]) -> Sequence[object]:
    """Return the ids of boxes; the box of equal neighbours has several."""
    return tuple(_id(each) for box in given for each in box.split())


def _id(text: str) -> object:
    try:
        return read_uuid(text)
    except ValueError:
        return text


_Ids = Annotated[tuple[UUID, ...], BeforeValidator(_ids), PydanticField(max_length=MOST)]


class SelectedQuery(TenantQuery):
    """The runs or the jobs that are selected."""

    next: str | None = None  # the list of which they are
    run: _Ids = ()
    job: _Ids = ()


class CancelRuns:
    """Cancel the runs that are selected in a list."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return which of them have started."""
        found = _selected(connection, request)
        if not found:
            return _nothing(request, urls)
        not_ended = [run for run in found if run.status not in FINAL]
        still_open = [run for run in not_ended if not is_cancelled(run)]
        started = sum(run.status in {RunState.RUNNING, RunState.WAITING} for run in still_open)
        between = sum(run.status == RunState.RETRYING for run in still_open)
        ended, cancelled = len(found) - len(not_ended), len(not_ended) - len(still_open)
        if not still_open:
            why = "Each selected run has ended or is being cancelled already."
            return no_change("Cancel the selected runs?", back_of(request, urls), why)
        return Dialog(
            f"Cancel {counted(len(still_open), 'run')}?", f"Cancel {counted(len(still_open), 'run')}",
            back_of(request, urls),
            will=_ends(number(len(still_open) - started - between), started, between), danger=True,
            fields=(reason_field("on each run"),),
            stays=(
                *_already(ended, agreed(ended, "has ended", "have ended")),
                *_already(cancelled, agreed(cancelled, "is being cancelled", "are being cancelled")),
            ),
            sample=_sample(still_open),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Cancel each of them that is open and has no cancel yet; a repeat of the form changes nothing."""
        runs, reason, found = Runs(connection), text_of(form, "reason"), _selected(connection, request)
        covered = {run.run_id for run in found if is_cancelled(run)}
        if all(run.status in FINAL or run.run_id in covered for run in found):
            covered = set[UUID]()

        def cancel(run_id: UUID) -> bool:
            return run_id not in covered and runs.cancel(run_id, reason=reason) not in FINAL

        changed, rest = _each(request, cancel, _NONE_OPEN)
        words = f"Cancel of {counted(changed, 'run')} requested." + (
            f" {number(rest)} ended or had a cancel before." if rest else ""
        )
        return Done(back_of(request, urls), words)


class RetryRuns:
    """Retry the runs that are selected in a list."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return which of them have ended."""
        found = _selected(connection, request)
        if not found:
            return _nothing(request, urls)
        ended = [run for run in found if run.status in FINAL]
        stored = in_snapshot(connection, read_retry_facts, [run.run_id for run in ended])
        facts = [each for each in stored if not each.is_deleted]
        kept = {each.run_id for each in facts}
        letters = [each.dead_letter for each in facts if each.dead_letter is not None]
        left, gone = len(found) - len(ended), len(ended) - len(facts)
        have = agreed(left, "has", "have")
        if not facts:
            why = "A run can be retried once it has ended, while its job is not deleted."
            return no_change("Retry the selected runs?", back_of(request, urls), why)
        return Dialog(
            f"Retry {counted(len(facts), 'run')}?", f"Retry {counted(len(facts), 'run')}", back_of(request, urls),
            will=(
                f"{'It becomes' if len(facts) == 1 else 'Each becomes'} a new run with its own payload and the version"
                " of its job that is in force.",
                *((f"{share(len(letters), len(facts), 'run')} {_HAVE[len(letters) == 1]}.",) if letters else ()),
                *retried_lines(facts, "run"),
            ),
            stays=(
                *((f"{counted(left, 'run')} {have} not ended: only ended runs can be retried.",) if left else ()),
                *((f"Of these, {counted(gone, 'run')} cannot be retried: {_GONE}",) if gone else ()),
            ),
            sample=_sample([run for run in ended if run.run_id in kept]),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Create a new run of each of them that has ended."""
        runs, request_id = Runs(connection), request_id_of(form)

        def retry(run_id: UUID) -> bool:
            runs.retry(run_id, request_id=f"{request_id}/{run_id}" if request_id else None)
            return True

        changed, rest = _each(request, retry, _NONE_ENDED)
        words = f"{counted(changed, 'run')} created." + (f" {number(rest)} could not be retried." if rest else "")
        return Done(urls("runs", cause="retry", last="1h"), words)


_TIMES, _NOT_APPLIED = frozenset({"since", "until"}), frozenset({"status", "since", "until"})
_NAMED = {
    each.name: in_address(each)
    for each in operations(RunList)["list"].parameters
    if each.name in {*RunsMatching.model_fields, *_NOT_APPLIED}
}
_QUERY = model_of("MatchingQuery", [*_NAMED.values()], TenantQuery)
"""The filter of a cancellation, in the words of the list of runs, whose state and times narrow no cancellation."""


class CancelMatching:
    """Cancel all open runs that match a filter."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Count them."""
        query, now = _asked(request), page_now(connection)
        status, key, queue = query.get("status"), query.get("key"), query.get("queue")
        fields = _fields(query, now)
        asked = checked(RunsMatching, fields)
        found = in_snapshot(connection, count_matching, caller.tenant, asked, look=LOOKED_AT)
        started, any_state = found.runs - found.unstarted, _ANY_STATE
        if status in _NOT_STARTED:
            found, started, any_state = found._replace(runs=found.unstarted), 0, _NOT_BEGUN
        if not found.runs:
            return no_change("Cancel runs?", urls("runs", **_shown(query)), _none_matches(query))
        by_box = bool(started) or (found.at_least and status not in _NOT_STARTED)
        few = found.unstarted if by_box else found.runs
        many = counted(found.runs, "run", at_least=found.at_least)
        of_job = f" of {key}" if key else f" of queue {queue}" if queue else ""
        question, button, who = f"Cancel {many}{of_job}?", f"Cancel {many}", "An attempt"
        boxes: Sequence[Field] = ()
        counts = (*confirmation(found.runs), *bound(found.runs, now))
        if started and not few:
            boxes = (Field(_STARTED, "", kind="hidden", value="yes"),)
        elif by_box:  # the box decides how many are cancelled
            question, any_state, who = f"Cancel {'runs' if of_job else 'open runs'}{of_job}?", _BY_BOX, _IF_CHECKED
            boxes = (
                Field(_STARTED, "Cancel runs that have started too", kind="check", button=button,
                      help=f"Cancels {many} instead of {number(few)}."),
                Field(_WITH_STARTED, "", kind="hidden", value=str(found.runs)),
            )  # fmt: skip
            button = f"Cancel {counted(few, 'run', at_least=found.at_least)}"
            counts = (*confirmation(found.runs, "the number on the button"), *bound(few, now))
        told = {"created_before", "key" if key else "queue"}  # by the question
        ends = _ends(
            number(few, at_least=found.at_least), (found.runs - few) or int(found.at_least and by_box),
            who=who, rest=_BETWEEN,
        )  # fmt: skip
        return Dialog(
            question, button, urls("runs", **_shown(query)), danger=True,
            will=[*((any_state,) if status else ()), *((_ANY_TIME,) if query.keys() & _TIMES else ()), *ends],
            stays=("Runs that are created from now on are not cancelled.",),
            fields=(*boxes, reason_field("on each run"), *counts),
            sample=[f"{name} {value}" for name, value in fields.items() if name not in told],
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Accept the cancellation; schedulers work it off."""
        runs = Runs(connection)
        fields = _fields(_asked(request), until_of(form, page_now(connection)))
        fields |= {"include_started": _STARTED in form, "reason": text_of(form, "reason")}
        if _STARTED in form and _WITH_STARTED in form:
            form = Form([*form.items(), ("counted", form[_WITH_STARTED])])
        found = runs.cancel_matching(**fields, dry_run=True)
        if not found.matched and not counted_of(form):  # the runs of a repeat are being cancelled
            refuse(_NONE_MATCHES.path, _NONE_MATCHES.problem, _NONE_MATCHES.remedy)
        ensure_confirmed(form, found.matched)
        done = runs.cancel_matching(**fields, request_id=request_id_of(form))
        many, are = counted(done.matched, "run", at_least=done.at_least), agreed(done.matched, "is", "are")
        words = f"{many} {are} being cancelled: no executor starts {agreed(done.matched, 'it', 'them')} any more."
        return Done(urls("bulk_work", kind="cancellation", id=done.cancellation_id), words)


def _ends(waiting: str, started: int, between: int = 0, *, who: str = "An attempt", rest: str = "") -> Sequence[str]:
    """Return the ends of cancelled runs: those that wait, have started, and are between attempts."""
    have = "run has not started and ends" if waiting == "1" else "runs have not started and end"
    never = f"{waiting} {have} as cancelled."
    signal = f"{who} under way gets a signal, and its run ends as cancelled unless it finishes first."
    parts = (
        (waiting != "0", never),
        (started > 0, f"{counted(started, 'run')} {agreed(started, 'has', 'have')} started. {signal}{rest}"),
        (
            between > 0,
            f"{counted(between, 'run')} {agreed(between, 'is', 'are')} between two attempts. "
            f"No further attempt starts, and {agreed(between, 'it ends', 'they end')} as cancelled.",
        ),
    )
    return [words for applies, words in parts if applies]


def matching_filters(filters: PageFilter) -> Mapping[str, object] | None:
    """Return the filters of a cancellation of all that a list shows; None if it has others or none."""
    named = {name for name, value in filters.items() if value}
    if named - _NAMED.keys() or not named - _NOT_APPLIED or filters.get("status") in FINAL:
        return None
    return _shown(filters)


def matching_button(filters: RunFilter) -> str:
    """Return the label of the button that cancels all of `matching_filters`, which no tab narrows.

    >>> matching_button({"key": "nightly", "status": "running"})
    'Cancel all open runs of this job…'
    >>> matching_button({"key": "nightly", "lane": "batch", "status": "queued"})
    'Cancel all unstarted runs that match…'
    """
    when = ", of any time" if any(filters.get(name) for name in _TIMES) else ""
    which = "unstarted" if filters.get("status") in _NOT_STARTED else "open"
    [other] = found if len(found := set(_shown(filters)) - _NOT_APPLIED) == 1 else [""]
    whose = f"of this {other}" if other in {"job", "queue", "lane"} else "that match"
    return f"Cancel all {which} runs {whose}{when}…"


def _asked(request: Request) -> RunFilter:
    """Return the filter of an address."""
    query = read_query(request, _QUERY)
    found = {name: getattr(query, spoken) for name, (spoken, _) in _NAMED.items()}
    return cast("RunFilter", {name: value for name, value in found.items() if value})


def _shown(filters: RunFilter) -> Mapping[str, object]:
    """Return a filter as an address has it."""
    given: dict[str, object] = {spoken: filters.get(name) for name, (spoken, _) in _NAMED.items()}
    given["label"] = pairs(filters.get("labels") or {})
    return {name: format_timestamp(it) if isinstance(it, datetime) else it for name, it in given.items() if it}


def _fields(filters: RunFilter, until: datetime) -> dict[str, Any]:
    """Return the parameters of a cancellation of all that exists at an instant."""
    return {name: value for name, value in filters.items() if name not in _NOT_APPLIED} | {"created_before": until}


def _already(count: int, words: str) -> Sequence[str]:
    return (f"Of those selected, {number(count)} {words} already.",) if count else ()


def _none_matches(query: RunFilter) -> str:
    """Return that no run is left to cancel.

    >>> _none_matches({"key": "nightly"})
    'Each run of nightly has ended or is being cancelled already.'
    >>> _none_matches({"lane": "batch", "status": "queued"})
    'Each run that matches has started, has ended or is being cancelled already.'
    """
    started = "has started, " if query.get("status") in _NOT_STARTED else ""
    is_job = "key" in query and not query.keys() - {"key", *_NOT_APPLIED}
    whose = f"of {query.get('key')}" if is_job else "that matches"
    return f"Each run {whose} {started}has ended or is being cancelled already."


def back_of(request: Request, urls: Urls, place: str = "runs") -> str:
    """Return the list that an operator comes from, with its filters; by default the whole list of a place."""
    found = local_path(read_query(request, SelectedQuery).next or "")
    return urls(place) if found == "/" else urls.here(found)


def _nothing(request: Request, urls: Urls) -> Dialog:
    return replace(cannot("No run is selected", back_of(request, urls)), warnings=(_NONE_SELECTED,))


def _selected(connection: Connection, request: Request) -> Sequence[RunSummary]:
    chosen = read_query(request, SelectedQuery).run
    return in_snapshot(connection, read_runs_and_waits, list(chosen))


def _each(request: Request, change: Callable[[UUID], bool], none: FieldError) -> tuple[int, int]:
    """Change each selected run by itself; return how many have changed, and how many have not.

    Raises:
        Refused: None has changed: the first refusal, or `none` if there was no refusal.
    """
    chosen, changed, first = read_query(request, SelectedQuery).run, 0, None
    for run_id in chosen:
        try:
            changed += change(run_id)
        except Refused as refused:
            first = first or refused
    if not changed:
        raise first or InvalidInput([none])
    return changed, len(chosen) - changed


def _sample(found: Sequence[RunSummary]) -> Sequence[str]:
    return sample_of([f"{run.run_id}  {run.key}  {run.status}" for run in found[:SAMPLE]], len(found))
