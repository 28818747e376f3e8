"""Actions on dead letters: redrive and purge one, a cause, or all that match a filter."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, cast

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.callers import Caller
from tidewheel.control.api.queries import Whole, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.dead_letters import MAX_RATE, DeadLetters, RedriveResult
from tidewheel.control.console.actions import Dialog, Done, Field, request_id_of, sample_of, text_of
from tidewheel.control.console.confirming import bound, confirmation, ensure_confirmed, ensure_counted, until_of
from tidewheel.control.console.dead_letters import REDRIVEN, TabQuery, by_tab
from tidewheel.control.console.forms import Form
from tidewheel.control.console.retried import PARTS, retried_lines
from tidewheel.control.console.under_way import redrive_under_way
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import page_now
from tidewheel.control.console.words import agreed, counted, number
from tidewheel.control.instants import typed_number
from tidewheel.control.reads.dead_letters import DeadLetterFilter, DeadLetterSummary, kind_to_redrive
from tidewheel.control.reads.retry_facts import RetryFacts, read_retry_facts
from tidewheel.errors import FieldError, refuse

_RATE = "50"
_FILTERS = ("kind", "status", "error_type", "queue", "lane", "since", "until")
_NOTHING = FieldError("", "no dead letter matches", "go back; it has perhaps been redriven or purged already")


class ChosenQuery(TabQuery):
    """The dead letters of an action.

    Attributes:
        id: Only these.
    """

    id: tuple[Whole, ...] = ()


@dataclass(frozen=True, slots=True)
class RedriveLetters:
    """Start a redrive."""

    scope: ClassVar[Scope] = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Count them by a dry run, and return what becomes of them."""
        query, now = read_query(request, ChosenQuery), page_now(connection)
        filters = _filter(query, now)
        found = DeadLetters(connection).redrive(dry_run=True, **filters)
        about = " of " + query.job if query.job else ""
        if not found.matched:
            return _nothing("Redrive", query, urls)
        under_way = redrive_under_way(connection, caller.tenant, filters, urls, matched=found.matched)
        many, is_one = counted(found.matched, "dead letter", at_least=found.at_least), found.matched == 1
        sample = _sample(found.first, found.matched)
        stays = (_STAYS[is_one], *_left_out(query))
        if _are_messages(query.kind, found):
            stays = (_SENT[is_one],)
            which = "The message" if is_one else "Each message"
            question, will = f"Send {many} again?", [f"{which} goes to its topic once more, byte for byte."]
        else:
            facts = _facts(connection, filters, found)
            question = f"Redrive {many}{about}?"
            will = [_new_runs(connection, query, is_one=is_one), *_counted_words(facts, found.matched), _FAILS_AGAIN]
            if facts is not None and all(each.is_deleted for each in facts):
                return Dialog(
                    question, "", _back(query, urls), place="dead_letters", keep="Back", sample=sample,
                    will=(f"Nothing would change. {_REJECTED}",),
                )  # fmt: skip
        if under_way is not None and under_way.covers and not found.at_least:
            return Dialog(
                question, "", _back(query, urls), place="dead_letters", sample=sample,
                will=("A second redrive would change nothing.",), keep="Back", under_way=under_way,
            )  # fmt: skip
        return Dialog(
            question, question.removesuffix("?"), _back(query, urls), place="dead_letters", will=will,
            fields=(
                Field("rate", "How many per second at most", value=_RATE, help="Leave it empty for no limit."),
                Field("reason", "Reason (optional)", help="Stored with the redrive."), *bound(found.matched, now),
            ),
            sample=sample, stays=stays, keep="Leave it" if is_one else "Leave them",
            under_way=under_way,
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Accept the redrive; schedulers work it off."""
        filters = _filter(read_query(request, ChosenQuery), until_of(form, page_now(connection)))
        letters, rate = DeadLetters(connection), _rate(text_of(form, "rate"))
        before = letters.redrive(dry_run=True, **filters)
        ensure_counted(form, before.matched)
        beside = redrive_under_way(connection, caller.tenant, filters, urls, matched=before.matched)
        found = letters.redrive(rate=rate, reason=text_of(form, "reason"), request_id=request_id_of(form), **filters)
        if found.redrive_id is None:
            refuse(_NOTHING.path, _NOTHING.problem, _NOTHING.remedy)
        again = "sent again" if _are_messages(filters.get("kind"), before) else "redriven"
        words = f"{counted(found.matched, 'dead letter', at_least=found.at_least)} "
        words += f"{agreed(found.matched, 'is', 'are')} being {again}."
        words += f" {beside.words}" if beside else ""
        return Done(urls("bulk_work", kind="redrive", id=found.redrive_id), words)


@dataclass(frozen=True, slots=True)
class PurgeLetters:
    """Delete dead letters."""

    scope: ClassVar[Scope] = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Count them by a dry run."""
        query, now = read_query(request, ChosenQuery), page_now(connection)
        filters = _purged(query, now)
        found = DeadLetters(connection).purge(dry_run=True, **filters)
        if not found.matched:
            return _nothing("Purge", query, urls)
        under_way = redrive_under_way(connection, caller.tenant, filters, urls, matched=found.matched, purges=True)
        many = counted(found.matched, "dead letter", at_least=found.at_least)
        kinds = {each.kind for each in found.first} if found.matched == len(found.first) else {"run"}
        are_messages = (query.kind or kinds) in ("message", {"message"})
        return Dialog(
            f"Purge {many}?", f"Purge {many}", _back(query, urls), place="dead_letters", danger=True,
            will=("What is purged cannot be redriven any more.",),
            stays=() if are_messages else ("Runs stay until their retention ends.",),
            keep=agreed(found.matched, "Keep it", "Keep them"),
            fields=(
                Field("reason", "Reason (optional)", help="Stored in the audit log."),
                *confirmation(found.matched), *bound(found.matched, now),
            ),
            sample=_sample(found.first, found.matched),
            warnings=_unpurgeable(found.matched, at_least=found.at_least),
            under_way=under_way,
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Delete them."""
        del caller
        filters = _purged(read_query(request, ChosenQuery), until_of(form, page_now(connection)))
        letters = DeadLetters(connection)
        found = letters.purge(dry_run=True, **filters)
        for error in _unpurgeable(found.matched, at_least=found.at_least):
            refuse(error.path, error.problem, error.remedy)
        ensure_confirmed(form, found.matched)
        purged = letters.purge(reason=text_of(form, "reason"), **filters).purged
        return Done(urls("dead_letters"), f"{counted(purged, 'dead letter')} purged.")


_FAILS_AGAIN = "A run that fails again becomes a new dead letter."
_STAYS = (
    "Dead letters stay listed, each with what it became. One that a retry or another redrive takes first is left out.",
    "The dead letter stays listed, with what it became. If a retry or another redrive takes it first, it is left out.",
)
_SENT = (
    "The dead letters stay listed. One that another redrive takes first is left out.",
    "The dead letter stays listed. If another redrive takes it first, it is left out.",
)
_COUNTED = 200  # dead letters at most whose runs a dialog looks at: as many as a list selects


def _are_messages(kind: str | None, found: RedriveResult) -> bool:
    """Return True if a redrive sends messages again."""
    return kind == "message" or any(each.kind == "message" for each in found.first[:1])


def _facts(connection: Connection, filters: DeadLetterFilter, found: RedriveResult) -> Sequence[RetryFacts] | None:
    """Return the facts about the runs of a redrive; None if they are too many to look at."""
    if found.at_least or found.matched > _COUNTED:
        return None
    only: DeadLetterFilter = {**filters, "kind": kind_to_redrive(filters), "redriven": False}
    listed = DeadLetters(connection).list(limit=_COUNTED, **only).dead_letters
    runs = [letter.run_id for letter in listed if letter.run_id is not None]
    if len(runs) != found.matched:
        return None
    with connection.snapshot() as reading:
        return read_retry_facts(reading, runs)


def _counted_words(facts: Sequence[RetryFacts] | None, matched: int) -> Sequence[str]:
    """Return sentences about the runs of a redrive: counted, or in general if there are too many."""
    if facts is None:
        return (f"Runs may be parts of workflows. {PARTS} {_REJECTED}",)
    kept = [each for each in facts if not each.is_deleted]
    gone = matched - len(kept)
    rejected = (f"{number(gone)} of them {agreed(gone, 'is', 'are')} rejected. {_REJECTED}",) if gone else ()
    return (*retried_lines(kept, _LETTER), *rejected)


_LETTER = "dead letter"
_REJECTED = "The redrive rejects those whose job is deleted or whose run is no longer stored; they stay as they are."


def _left_out(query: ChosenQuery) -> Sequence[str]:
    """Return a sentence about messages, which a redrive without a kind does not include."""
    narrowed = query.id or query.kind or query.job or query.status or query.error_type
    return () if narrowed else ("Messages that are not requests stay. Send those again from their rows.",)


def _new_runs(connection: Connection, query: ChosenQuery, *, is_one: bool) -> str:
    """Return which version of the job the new runs have, and which one has failed."""
    become, order = ("It becomes", "") if is_one else ("Each becomes", ", the oldest first")
    plain = f"{become} a new run of its job's version in force{order}."
    if query.job is None:
        return plain
    found = DeadLetters(connection).groups(redriven=False).groups
    groups = [group for group in found if group.key == query.job]
    failed = sorted({version for group in groups for version in group.versions})
    if not failed:
        return plain
    current = groups[0].current_version
    if current is None:
        return "The job is deleted: no dead letter of it can become a run."
    if failed == [current]:
        return (
            f"{become} a new run of version {current}, the version in which {'it' if is_one else 'they'} failed{order}."
        )
    versions = f"version{'s' if len(failed) > 1 else ''} {(' or ' if is_one else ', ').join(map(str, failed))}"
    return f"{become} a new run of version {current}{order}. {'It' if is_one else 'They'} failed in {versions}."


def _filter(query: ChosenQuery, until: datetime) -> DeadLetterFilter:
    given: dict[str, Any] = {name: getattr(query, name) for name in _FILTERS}
    given["until"] = min(query.until or until, until)
    return cast("DeadLetterFilter", given | {"key": query.job, "ids": list(query.id) or None})


def _purged(query: ChosenQuery, until: datetime) -> DeadLetterFilter:
    return cast("DeadLetterFilter", {**_filter(query, until), "redriven": REDRIVEN[by_tab(query).show]})


def _unpurgeable(matched: int, *, at_least: bool) -> Sequence[FieldError]:
    if matched == 0:
        return (_NOTHING,)
    if at_least:
        return (FieldError("", "more than 10,000 match, too many for one page", "choose a job or a shorter time"),)
    return ()


def _nothing(verb: str, query: ChosenQuery, urls: Urls) -> Dialog:
    """Return the dialog of an action on no dead letter."""
    words = "Nothing would change. No dead letter matches any more. It may already be redriven or purged."
    return Dialog(f"{verb} dead letters?", "", _back(query, urls), place="dead_letters", will=(words,), keep="Back")


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    rate = typed_number(text) or 0.0
    if not 0 < rate <= MAX_RATE:
        refuse("rate", f"{text!r} is not a rate", f"write a number of dead letters per second, at most {MAX_RATE:,}")
    return rate


def _back(query: ChosenQuery, urls: Urls) -> str:
    if len(query.id) == 1:
        return urls("dead_letter", number=query.id[0])
    filters = query.model_dump(mode="json", exclude={"tenant", "cursor", "limit", "id"}, exclude_defaults=True)
    return urls("dead_letters", **filters)


def _sample(first: Sequence[DeadLetterSummary], matched: int) -> Sequence[str]:
    lines = [f"#{each.id}  {each.key or each.topic}  {each.error_type or each.reason}" for each in first]
    return sample_of(lines, matched)
