"""`freeze`: from its commit on no claim takes what it names, until `thaw`."""

from collections.abc import Mapping
from typing import LiteralString
from uuid import UUID

import pytest

from tests.fixtures.acts import EXECUTOR, submission
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.intake.test_cancel_filter import claimable, code_and_path, with_lease
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.intake import group_requests
from tidewheel.intake.locks import RowLocked
from tidewheel.jobs.parsing import RequestRefused, parse_request
from tidewheel.postgres.session import UNIFORM
from tidewheel.runs import AttemptOutcome
from tidewheel.scheduler.releases import Thaws
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.claim import claim_uniform

GATES: LiteralString = "SELECT count(*) FROM job_runs WHERE gates <> 0"


@pytest.fixture
def with_jobs(database: Database) -> Database:
    database.submit("billing/job", labels={"team": "billing"}, overlap="allow_all")
    database.submit("other", labels={"team": "sales"}, queue="reports", overlap="allow_all")
    return database


def freeze(database: Database, **scope: object) -> Reply:
    return database.accept({"type": "freeze"} | scope)


def thaw(database: Database, **scope: object) -> Reply:
    return database.accept({"type": "thaw"} | scope)


def claimed_at_once(database: Database, *runs: UUID) -> list[bool]:
    """Return True for each run that the claim of a whole batch takes."""
    claims = [database.requested_claim(run) for run in runs]
    session = database.session(UNIFORM)
    started = {one.run_id for one in session.within(claim_uniform, claims, executor_id=EXECUTOR)}
    return [run in started for run in runs]


SCOPES: list[dict[str, object]] = [
    {"queue": "default"},
    {"queue": "default", "scope": "fleet"},
    {"labels": {"team": "billing"}},
    {"key_prefix": "billing/"},
    {"queue": "default", "labels": {"team": "billing"}, "key_prefix": "bill"},
]


@pytest.mark.parametrize("scope", SCOPES, ids=str)
def test_no_claim_takes_a_frozen_run_and_others_continue(with_jobs: Database, scope: Mapping[str, object]) -> None:
    before = with_jobs.trigger("billing/job")
    assert not freeze(with_jobs, **scope).unchanged
    after = with_jobs.trigger("billing/job")
    for claims in (claimable, claimed_at_once):
        assert claims(with_jobs, before, after, with_jobs.trigger("other")) == [False, False, True]
    thaw(with_jobs, **scope)
    assert (claimable(with_jobs, before), claimed_at_once(with_jobs, after)) == ([True], [True])


@pytest.mark.parametrize("scope", ["tenant", "fleet"])
def test_tenant_and_fleet_are_frozen_whole(with_jobs: Database, scope: str) -> None:
    with_jobs.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    with_jobs.accept({**submission("job"), "tenant": "acme"})
    theirs, mine = with_jobs.trigger(tenant="acme"), with_jobs.trigger("other")
    freeze(with_jobs, scope=scope)
    assert claimable(with_jobs, mine, theirs) == [False, scope == "tenant"]


def test_what_runs_goes_on_and_its_retry_waits(with_jobs: Database) -> None:
    ending, failing, released = (with_jobs.begun("other") for _ in range(3))
    freeze(with_jobs, queue="reports")
    with_jobs.succeed(ending)
    with_jobs.requeue(failing, AttemptOutcome.FAILED)
    with_jobs.requeue(released, AttemptOutcome.RELEASED)
    assert claimable(with_jobs, failing.run_id, released.run_id) == [False, False]
    thaw(with_jobs, queue="reports")
    assert claimable(with_jobs, failing.run_id, released.run_id) == [True, True]


def test_freezes_add_up_and_one_of_a_scope_stands_once(with_jobs: Database) -> None:
    run = with_jobs.trigger("billing/job")
    assert not freeze(with_jobs, queue="default").unchanged
    assert freeze(with_jobs, queue="default", reason="again").unchanged
    assert not freeze(with_jobs, labels={"team": "billing"}).unchanged
    thaw(with_jobs, queue="default")
    assert claimable(with_jobs, run) == [False]
    assert code_and_path(with_jobs.apply({"type": "thaw", "queue": "default"})) == ("unknown_freeze", "queue")
    thaw(with_jobs, labels={"team": "billing"})
    assert claimable(with_jobs, run) == [True]


def test_submits_join_and_leave_a_standing_freeze(with_jobs: Database) -> None:
    freeze(with_jobs, labels={"team": "billing"})
    with_jobs.submit("new", labels={"team": "billing", "tier": "1"})
    with_jobs.submit("other", labels={"team": "billing"}, queue="reports", overlap="allow_all")
    with_jobs.submit("billing/job", overlap="allow_all")
    runs = [with_jobs.trigger(key) for key in ("new", "other", "billing/job")]
    assert claimable(with_jobs, *runs) == [False, False, True]


def test_submit_that_commits_after_the_freeze_joins_it(with_jobs: Database) -> None:
    """A user's transaction may hold a submit for hours: the scheduler adds the job after its commit."""
    thaws = Thaws(with_jobs.session(), with_jobs.installation)
    submitting = with_jobs.connection()
    with_jobs.apply_batch_within(submitting, submission("billing/late"))
    freeze(with_jobs, key_prefix="billing/")
    thaws.step()
    assert with_jobs.value("SELECT settled FROM freezes") is False
    submitting.commit()
    until(lambda: settled(with_jobs, thaws), "no transaction of before the freeze is left, here or in another database")
    assert claimable(with_jobs, with_jobs.trigger("billing/late")) == [False]


def test_too_many_jobs_are_refused_and_leave_nothing(with_jobs: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with_jobs.submit("billing/more", labels={"team": "billing"})
    monkeypatch.setattr(group_requests, "MAX_JOBS", 1)
    error = with_jobs.refuse({"type": "freeze", "labels": {"team": "billing"}})
    assert (error.path, error.problem) == ("labels", "more than 1 jobs match")
    assert (with_jobs.count("freezes"), with_jobs.count("frozen_jobs")) == (0, 0)
    freeze(with_jobs, labels={"team": "sales"})


def test_refused_claim_leaves_the_run_as_it_was(with_jobs: Database) -> None:
    """A claim that decides about a run sets its gates, and every later claim would be a slow one."""
    with_jobs.submit("turns", overlap="skip")
    runs = [with_jobs.trigger("turns") for _ in range(2)]
    freeze(with_jobs, queue="default")
    assert claimable(with_jobs, *runs) == [False, False]
    assert with_jobs.value(GATES) == 0
    assert [with_jobs.open_run(run).state for run in runs] == ["queued", "queued"]


def test_freeze_is_accepted_after_the_claims_under_way_and_later_claims_see_it(with_jobs: Database) -> None:
    """Claim as executors do: share the lock in a statement before the freezes are read."""
    with_jobs.register()
    runs = [with_jobs.trigger("billing/job") for _ in range(2)]
    claims = [with_jobs.requested_claim(run) for run in runs]
    claiming, freezing, late = (with_jobs.connection() for _ in range(3))
    assert len(claim_uniform(with_lease(claiming), claims[:1], executor_id=EXECUTOR)) == 1
    with pytest.raises(RowLocked, match="lock on claims"):
        with_jobs.apply_batch_within(freezing, {"type": "freeze", "queue": "default"})
    freezing.rollback()
    claiming.commit()
    with_jobs.apply_batch_within(freezing, {"type": "freeze", "queue": "default"})
    start = in_background(lambda: claim_uniform(with_lease(late), claims[1:], executor_id=EXECUTOR))
    until_blocked(with_jobs, late)
    freezing.commit()
    assert start.result(30) == []
    late.commit()
    assert with_jobs.open_run(runs[0]).state == "running"


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ({}, "scope"),
        ({"scope": "all"}, "scope"),
        ({"scope": "fleet", "labels": {"a": "b"}}, "labels"),
        ({"scope": "fleet", "key_prefix": "a"}, "key_prefix"),
        ({"queue": "no such\nqueue"}, "queue"),
        ({"key": "job"}, "key"),
        ({"label": "a=b"}, "label"),
    ],
    ids=str,
)
def test_wrong_scope_is_refused_by_field(scope: dict[str, object], path: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        parse_request({"type": "freeze"} | scope)
    assert [error.path for error in refused.value.errors] == [path]


def settled(database: Database, thaws: Thaws) -> bool:
    thaws.step()
    return bool(database.value("SELECT settled FROM freezes"))
