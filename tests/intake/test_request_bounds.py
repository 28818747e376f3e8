"""Requests at every bound are accepted in the database or rejected; none fails its batch."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.fixtures.bounds import BOUNDS
from tests.fixtures.database import Database
from tests.tidewheel.jobs.test_bounds import PLACES, outcome
from tidewheel.schemas.generated.records import ReplyStatus

_BATCH = 200


def accepted(root: str) -> Iterator[dict[str, Any]]:
    """Yield the documents of a request that its reader accepts."""
    for place in PLACES:
        for value in BOUNDS if place.root == root else ():
            document = place.holding(value)
            if not isinstance(outcome(document), tuple):
                yield document


def test_job_whose_runs_wait_in_an_ordering_key_gets_a_concurrency_key(database: Database) -> None:
    """Found by the values below: the edit failed its whole batch in the database."""
    database.submit()
    for _ in range(2):
        database.trigger(ordering_key="customer")
    assert database.submit(concurrency_key={"key": "acme", "at_once": 2}).job_version == 2


@pytest.mark.slow
@pytest.mark.parametrize("root", sorted({place.root for place in PLACES}))
def test_accepted_value_at_any_bound_is_applied_or_rejected_under_its_path(database: Database, root: str) -> None:
    for key in ("parent", "job"):
        database.submit(key)
    documents = list(accepted(root))
    for start in range(0, len(documents), _BATCH):
        verify(database, documents[start : start + _BATCH])


def verify(database: Database, batch: Sequence[dict[str, Any]]) -> None:
    for document, reply in zip(batch, database.apply_batch(*batch), strict=True):
        if reply.status is not ReplyStatus.ACCEPTED:
            assert all(error.problem and error.remedy for error in reply.errors), (document, reply)
            assert reply.errors, document
