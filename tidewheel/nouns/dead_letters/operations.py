"""`client.dead_letters`: the operations from which all doors are derived.

A redrive and a purge are works. Each dead letter is redriven once: its new run is written in
the transaction that locks and marks it. A redriven run that fails again is a new dead letter, which the same redrive
leaves alone.
"""

from functools import partial
from typing import Annotated, Literal, Unpack

from pydantic import Field

from tidewheel.api_keys import Scope
from tidewheel.errors import refuse
from tidewheel.jobs.values import Instant
from tidewheel.nouns.dead_letters.model import (
    DeadLetterDetail,
    DeadLetterFilter,
    DeadLetterGroups,
    DeadLettersPage,
    DeadLetterWork,
    Number,
)
from tidewheel.nouns.dead_letters.reads import (
    group_dead_letters,
    list_dead_letters,
    show_dead_letter,
    survey_dead_letters,
)
from tidewheel.nouns.operation import DryRun, InDoors, Noun, Place, Rows, operation
from tidewheel.nouns.works.model import Rate, WorkReason
from tidewheel.nouns.works.operations import WORKS, Asked, start

_LETTERS = "/api/v1/dead-letters"

LettersRate = Annotated[Rate | None, Field(description="Maximum dead letters per second; unlimited by default.")]
Everything = Annotated[bool, InDoors("all"), Field(description="All dead letters; needed without an id or a filter.")]


class DeadLetters(Noun):
    """Dead letters: failed runs, and messages that are not requests."""

    @operation(f"GET {_LETTERS}", "list_dead_letters", scope=Scope.READ, python_only=("ids",))
    def list(
        self, *, after: Place | None = None, limit: Rows = 50, **filters: Unpack[DeadLetterFilter]
    ) -> DeadLettersPage:
        """List dead letters, the newest first."""
        with self._call.snapshot() as connection:
            return list_dead_letters(connection, self._call.tenant, filters, after=after, limit=limit)

    @operation(f"GET {_LETTERS}/groups", "group_dead_letters", scope=Scope.READ)
    def groups(
        self,
        *,
        since: Annotated[Instant | None, Field(description="Created at this instant or later.")] = None,
        redriven: Annotated[
            bool | None, Field(description="True for redriven ones only, false for all others.")
        ] = None,
    ) -> DeadLetterGroups:
        """Group the newest 10,000 dead letters by job, error type and final state, the largest group first."""
        with self._call.snapshot() as connection:
            return group_dead_letters(connection, self._call.tenant, since=since, redriven=redriven)

    @operation(f"GET {_LETTERS}/{{number}}", "get_dead_letter", scope=Scope.READ)
    def get(self, number: Annotated[Number, Field(description="The dead letter's id.")]) -> DeadLetterDetail:
        """Show a dead letter: its run with attempts and retry chain, or its message.

        Raises:
            UnknownDeadLetter: The tenant has no dead letter of this id.
        """
        with self._call.snapshot() as connection:
            return show_dead_letter(connection, self._call.tenant, number)

    @operation(
        f"POST {_LETTERS}:redrive", "redrive_dead_letters", scope=Scope.OPERATE,
        python_only=("redriven", "request_id"), starts=WORKS,
    )  # fmt: skip
    def redrive(
        self,
        *,
        rate: LettersRate = None,
        dry_run: DryRun = False,
        everything: Everything = False,
        reason: WorkReason = None,
        request_id: str | None = None,
        **filters: Unpack[DeadLetterFilter],
    ) -> DeadLetterWork:
        """Redrive dead letters, the oldest first: schedulers create new runs, or publish messages again.

        Runs are redriven unless a kind or ids name messages. The work continues when the caller has ended. It leaves
        out redriven dead letters, and those of a later time.

        Raises:
            Refused: A filter does not fit, or there is no such job.
            Unavailable: The database does not answer.
        """
        _ensure_selected(filters, chosen=everything or dry_run)
        filters = {**filters, "redriven": False, "kind": _kind_to_redrive(filters)}
        return self._start("dlq.redrive", filters, Asked(rate, reason, request_id, dry_run=dry_run))

    @operation(
        f"POST {_LETTERS}:purge", "purge_dead_letters", scope=Scope.OPERATE, python_only=("request_id",), starts=WORKS,
        danger="a deleted dead letter cannot be redriven",
    )  # fmt: skip
    def purge(
        self,
        *,
        rate: LettersRate = None,
        dry_run: DryRun = False,
        everything: Everything = False,
        reason: WorkReason = None,
        request_id: str | None = None,
        **filters: Unpack[DeadLetterFilter],
    ) -> DeadLetterWork:
        """Delete dead letters, the oldest first; their runs stay.

        Schedulers delete them. The work continues when the caller has ended. It leaves out those of a later time.

        Raises:
            Refused: A filter does not fit, or there is no such job.
            Unavailable: The database does not answer.
        """
        _ensure_selected(filters, chosen=everything or dry_run)
        return self._start("dlq.purge", filters, Asked(rate, reason, request_id, dry_run=dry_run))

    def _start(self, action: str, filters: DeadLetterFilter, asked: Asked) -> DeadLetterWork:
        survey = partial(survey_dead_letters, tenant=self._call.tenant, filters=filters)
        return start(self._call, action, asked, survey, DeadLetterWork)


def _ensure_selected(filters: DeadLetterFilter, *, chosen: bool) -> None:
    if not chosen and all(value is None for value in filters.values()):
        refuse("ids", "no dead letter is selected", "give ids, a filter, or `all` (`everything` in Python)")


def _kind_to_redrive(filters: DeadLetterFilter) -> Literal["run", "message"] | None:
    """Return the kind of a redrive by a filter: runs, unless `kind` or `ids` name messages."""
    return filters.get("kind") or (None if filters.get("ids") else "run")
