"""`ctx.complete_in`: effect and completion commit together in the handler's own transaction."""

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import cast
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import DictRow, dict_row
from psycopg.types.string import TextLoader

from tests.executor.own_transactions import (
    DYING,
    EFFECT,
    MAKE_EFFECTS,
    Own,
    completion,
    effects,
    lose_commit,
    one_or_none,
    wait_gone,
    work,
)
from tests.fixtures.acts import EXECUTOR, about, ending, submission
from tests.fixtures.database import ClockedDatabase, Database, Template
from tests.scheduler.firing import fire_due
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.clock import SystemClock
from tidewheel.control.client.enqueue import enqueue
from tidewheel.errors import AttemptOver, InvalidInput, Refused, Unavailable
from tidewheel.executor.complete_in import Completion
from tidewheel.executor.context import Context, Flag
from tidewheel.local.stack import StackInfo
from tidewheel.postgres.partitions import day_of
from tidewheel.postgres.session import UNIFORM
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.scheduler.repair import release_stuck_chains
from tidewheel.transitions.after_end import apply_deferred_effects
from tidewheel.transitions.attempts import ProgressReport, Saved, save_progress
from tidewheel.transitions.claim import Started, claim_runs, claim_uniform

MINUTE = timedelta(minutes=1)
KEEP_OPEN = """
CREATE FUNCTION keep_open() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER keep_open BEFORE DELETE ON job_runs FOR EACH ROW EXECUTE FUNCTION keep_open()
"""


@pytest.fixture(scope="module")
def made(clocked_template: Template) -> Iterator[ClockedDatabase]:
    """A database that holds an application's rows beside Tidewheel's."""
    database = ClockedDatabase(clocked_template.copy(), clocked_template.installation)
    database.execute(MAKE_EFFECTS)
    yield database
    database.close()


@pytest.fixture
def shop(made: ClockedDatabase) -> Iterator[ClockedDatabase]:
    """The same, empty but for one job."""
    made.submit(overlap="allow_all")
    made.execute("TRUNCATE outbox")
    yield made
    made.close()
    made.execute(
        "TRUNCATE effects, job_runs, finished_runs, run_inputs, outbox, attempts, attempt_outputs, active_runs,"
        " deferred_effects, signals, timers, jobs, job_versions, skips CASCADE"
    )
    made.execute("UPDATE test_clock SET stands_at = NULL, ahead = '0'")


@pytest.fixture
def own(shop: Database) -> Iterator[Own]:
    with psycopg.connect(shop.url_of("application"), application_name=DYING) as connection:
        yield connection


def chained(shop: Database, **job: object) -> Started:
    """Begin the first run of a job with a fixed delay."""
    shop.submit("chained", schedule={"fixed_delay": "60s"}, **job)
    fire_due(shop)
    [run] = shop.job_runs()
    return shop.begin(run.run_id)


def apply_effects(database: Database) -> int:
    return database.within(apply_deferred_effects, database.installation)


def test_commit_ends_the_run_with_effect_result_and_event(shop: Database, own: Own) -> None:
    started = shop.begun()
    work(own, completion(shop, started), {"sent": 1})
    assert not one_or_none(shop, started.run_id)
    own.commit()
    assert one_or_none(shop, started.run_id)
    [event] = shop.completions()
    assert (event.run_id, event.result, event.executor_id) == (str(started.run_id), b'{"sent":1}', str(EXECUTOR))
    assert shop.attempts(started.run_id) == [(1, "succeeded")]
    assert shop.job_runs() == []


def test_rolled_back_savepoint_undoes_the_completion(shop: Database, own: Own) -> None:
    started = shop.begun()
    done = completion(shop, started)
    with own.transaction():
        with own.transaction(force_rollback=True):
            work(own, done)
        work(own, done)
    assert one_or_none(shop, started.run_id)


def gone_back(shop: Database, started: Started) -> None:
    shop.requeue(started, AttemptOutcome.LOST)


def taken_over(shop: Database, started: Started) -> None:
    shop.requeue(started, AttemptOutcome.LOST)
    shop.begin(started.run_id)


def request_cancel(shop: Database, started: Started) -> None:
    shop.apply_batch({"type": "run.cancel", "run_id": str(started.run_id)})


def timed_out(shop: Database, started: Started) -> None:
    shop.end(ending(started, RunState.TIMED_OUT, reason="start_to_close"))


def test_superseded_attempt_never_commits_its_effect(shop: Database, own: Own) -> None:
    """Whatever its code does with the error: the transaction has failed."""
    for what in (gone_back, taken_over, request_cancel, timed_out):
        started = shop.begun()
        own.execute(EFFECT, [started.run_id, started.attempt])
        what(shop, started)
        with pytest.raises(AttemptOver, match=f"attempt 1 of run {started.run_id} is over"):
            completion(shop, started).complete_in(own, None)
        own.commit()
        assert effects(shop, started.run_id) == 0, what
        assert shop.final_state(started.run_id)[0] != "succeeded", what


def test_completion_waits_for_a_concurrent_cancel(shop: Database, own: Own) -> None:
    for gives_up in (False, True):
        started = shop.begun()
        done = completion(shop, started)
        other = shop.connection()
        other.execute("UPDATE job_runs SET attempt = attempt + 1 WHERE run_id = %s", [started.run_id])
        under_way = in_background(lambda done=done: work(own, done))  # type: ignore[misc]
        until_blocked(shop, own)
        if gives_up:
            other.rollback()
            under_way.result(30)
            own.commit()
            assert effects(shop, started.run_id) == 1
        else:
            other.commit()
            with pytest.raises(AttemptOver):
                under_way.result(30)
            own.rollback()
            assert effects(shop, started.run_id) == 0


def test_effect_is_never_committed_if_the_run_did_not_end(shop: Database) -> None:
    """The trigger represents any reason for which the end changes no row."""
    started = shop.begun()
    with psycopg.connect(shop.url) as owner:
        owner.execute(KEEP_OPEN)
        with pytest.raises(AttemptOver):
            work(owner, completion(shop, started))
    assert not one_or_none(shop, started.run_id)


def test_duplicate_call_in_a_transaction_fails_it(shop: Database, own: Own) -> None:
    started = shop.begun()
    done = completion(shop, started)
    work(own, done)
    with pytest.raises(AttemptOver):
        done.complete_in(own, None)
    own.commit()
    assert not one_or_none(shop, started.run_id)


def test_lost_commit_ends_the_run_once(shop: Database, own: Own) -> None:
    started = shop.begun()
    work(own, completion(shop, started))
    lose_commit(own)
    wait_gone(shop)
    if not one_or_none(shop, started.run_id):
        shop.requeue(started, AttemptOutcome.FAILED)
        with psycopg.connect(shop.url) as again:
            work(again, completion(shop, shop.begin(started.run_id)))
    assert one_or_none(shop, started.run_id)


def test_enqueued_run_commits_with_the_completion_or_not_at_all(shop: Database, own: Own) -> None:
    started = shop.begun()
    for ends in (own.rollback, own.commit):
        enqueue(own, "job", request_id="next")
        work(own, completion(shop, started))
        ends()
    assert [run.cause for run in shop.job_runs()] == ["trigger"]
    assert one_or_none(shop, started.run_id)


def test_long_transaction_does_not_block_its_job(shop: Database, own: Own) -> None:
    """Its turn, its timer and its row are free to all others, who would wait for ever otherwise."""
    started = chained(shop, pause_on_failure=3)
    shop.execute("UPDATE jobs SET consecutive_failures = 2 WHERE key = 'chained'")
    work(own, completion(shop, started))
    shop.apply_batch(about("job.pause", "chained"))
    shop.apply_batch(about("job.resume", "chained"))
    second = shop.trigger("chained", overlap="buffer_all")
    assert shop.claim(second).started == []
    own.commit()
    assert one_or_none(shop, started.run_id)


def test_active_run_is_transferred_after_the_commit(shop: Database, own: Own) -> None:
    shop.submit("single", schedule="@every 1h", overlap="buffer_all")
    started = shop.begun("single")
    second = shop.trigger("single")
    shop.claim(second)
    job = shop.open_run(second).job_id
    work(own, completion(shop, started))
    assert apply_effects(shop) == 0
    own.commit()
    assert (shop.open_run(second).state, shop.active_run_of(job)) == ("buffered", started.run_id)
    assert apply_effects(shop) == 1
    assert (shop.open_run(second).state, shop.active_run_of(job)) == ("queued", second)
    assert str(second) in {request.run_id for request in shop.requests()}
    assert shop.count("deferred_effects") == 0


def test_long_transaction_of_an_old_run_delays_no_progress(shop: ClockedDatabase, own: Own) -> None:
    """The end of such a run moves its inputs, where its attempts keep their progress."""
    shop.stop_clock()
    run_id = shop.trigger(payload="kept")
    ended_at = shop.advance(timedelta(hours=30))
    old, other = shop.begin(run_id), shop.begun()
    reports = [ProgressReport(each.run_id, each.attempt, EXECUTOR, progress=b"1") for each in (old, other)]
    session = shop.session(options=UNIFORM)

    def save() -> Saved:
        return session.within(save_progress, reports)

    work(own, completion(shop, old))
    assert save() == Saved({other.run_id}, {run_id})
    own.commit()
    assert save() == Saved({other.run_id})
    assert apply_effects(shop) == 1
    assert save() == Saved({other.run_id})
    kept = shop.rows("SELECT created_at, payload, tableoid::regclass::text FROM run_inputs WHERE run_id = %s", [run_id])
    assert kept == [(ended_at, b'"kept"', f"run_inputs_{day_of(ended_at):%Y%m%d}")]


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("committed", [True, False])
def test_run_is_active_until_its_completion_commits(
    shop: Database,
    own: Own,
    alone: bool,  # noqa: FBT001 - a parameter of the test
    committed: bool,  # noqa: FBT001
) -> None:
    """Its job skips at once what comes meanwhile, also if it started alone, without an active run."""
    shop.submit("single", schedule="@every 1h", overlap="skip")
    wanted = shop.requested_claim(shop.trigger("single"))
    with shop.session(options=UNIFORM).transaction() as connection:
        if alone:
            [started] = claim_uniform(connection, [wanted], executor_id=EXECUTOR)
        else:
            [started] = claim_runs(connection, shop.installation, [wanted], executor_id=EXECUTOR).started
    assert shop.count("active_runs") == (0 if alone else 1)
    work(own, completion(shop, started))
    meanwhile = shop.trigger("single")
    assert shop.claim(meanwhile).overlaps.skipped == {meanwhile}
    if committed:
        own.commit()
        assert (effects(shop, started.run_id), shop.final_state(started.run_id)) == (1, ("succeeded", None))
        ends = shop.rows("SELECT run_id FROM finished_runs ORDER BY finished_at")
        assert ends == [(started.run_id,), (meanwhile,)], "by the time of the call, not of the commit"
        assert shop.begun("single").attempt == 1
    else:
        own.rollback()
        assert shop.open_run(started.run_id).state == "running"
        later = shop.trigger("single")
        assert shop.claim(later).overlaps.skipped == {later}


def test_new_run_does_not_need_deferred_effects_applied(shop: Database, own: Own) -> None:
    shop.submit("single", schedule="@every 1h", overlap="skip")
    started = shop.begun("single")
    work(own, completion(shop, started))
    own.commit()
    newcomer = shop.begun("single")
    assert apply_effects(shop) == 1
    assert shop.active_run_of(shop.open_run(newcomer.run_id).job_id) == newcomer.run_id


def test_fixed_delay_counts_from_the_completion(shop: ClockedDatabase, own: Own) -> None:
    shop.stop_clock()
    started = chained(shop)
    work(own, completion(shop, started))
    ended = shop.now()
    own.commit()
    shop.advance(10 * timedelta(seconds=1))
    with_session = shop.session()
    assert release_stuck_chains(with_session) == 0
    assert apply_effects(shop) == 1
    [(due_at, held)] = shop.rows("SELECT due_at, hold_reason FROM timers")
    assert (due_at, held) == (ended + MINUTE, None)


@pytest.mark.parametrize(
    "change",
    [
        (submission("chained", schedule={"fixed_delay": "60s"}, description="another"),),
        (about("job.pause", "chained"), about("job.resume", "chained")),
    ],
)
def test_change_before_deferred_effects_fires_nothing_sooner(
    shop: ClockedDatabase, own: Own, change: tuple[dict[str, object], ...]
) -> None:
    shop.stop_clock()
    started = chained(shop)
    shop.advance(timedelta(seconds=30))
    work(own, completion(shop, started))
    ended = shop.now()
    own.commit()
    for document in change:
        shop.apply_batch(document)
    fire_due(shop)
    assert shop.job_runs() == []
    apply_effects(shop)
    assert shop.rows("SELECT due_at, hold_reason FROM timers") == [(ended + MINUTE, None)]


def test_edit_before_deferred_effects_is_kept(shop: ClockedDatabase, own: Own) -> None:
    shop.stop_clock()
    work(own, completion(shop, chained(shop)))
    own.commit()
    shop.submit("chained", schedule={"cron": "0 0 1 1 *"})
    before = shop.rows("SELECT due_at, hold_reason FROM timers")
    apply_effects(shop)
    assert shop.rows("SELECT due_at, hold_reason FROM timers") == before


def test_completion_resets_consecutive_failures(shop: Database, own: Own) -> None:
    shop.submit("fragile", overlap="allow_all", pause_on_failure=3)
    shop.end(ending(shop.begun("fragile"), RunState.FAILED, error_type="E"))
    work(own, completion(shop, shop.begun("fragile")))
    own.commit()
    assert apply_effects(shop) == 1
    assert shop.value("SELECT consecutive_failures FROM jobs WHERE key = 'fragile'") == 0


def test_job_without_follow_ups_stores_no_deferred_effects(shop: Database, own: Own) -> None:
    work(own, completion(shop, shop.begun()))
    own.commit()
    assert shop.count("deferred_effects") == 0


def test_missing_partition_exists_for_the_next_try(shop: ClockedDatabase, own: Own) -> None:
    """An operator has dropped it: the transaction that meets it is lost, and no other."""
    day = day_of(shop.stop_clock())
    started = shop.begun()
    shop.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(f"finished_runs_{day:%Y%m%d}")))
    with pytest.raises(Unavailable, match=r'no partition of relation "finished_runs" .*; it exists now: roll back'):
        work(own, completion(shop, started))
    own.rollback()
    assert not one_or_none(shop, started.run_id)
    work(own, completion(shop, started))
    own.commit()
    assert one_or_none(shop, started.run_id)


def test_connection_keeps_its_settings(shop: Database) -> None:
    started = shop.begun()
    kind = psycopg.ClientCursor[DictRow]
    with psycopg.Connection[DictRow].connect(shop.url, row_factory=dict_row, cursor_factory=kind) as own:
        own.adapters.register_loader("uuid", TextLoader)
        own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        own.execute("SET timezone = 'Pacific/Auckland'")
        own.commit()
        completion(shop, started).complete_in(own, None)
        assert own.execute("SHOW transaction_isolation").fetchone() == {"transaction_isolation": "repeatable read"}
        assert own.execute("SELECT run_id FROM runs").fetchone() == {"run_id": str(started.run_id)}
        assert (own.row_factory, own.cursor_factory) == (dict_row, kind)
    assert shop.final_state(started.run_id)[0] == "succeeded"


def test_connection_keeps_its_prepared_statements_and_notifications(shop: Database, own: Own) -> None:
    started = shop.begun()
    own.prepare_threshold = 0
    own.execute("LISTEN shop")
    own.commit()
    own.execute(EFFECT, [started.run_id, 1])
    shop.execute("NOTIFY shop, 'first'")
    completion(shop, started).complete_in(own, None)
    own.execute("SELECT count(*) FROM effects WHERE attempt = %s", [1])
    own.commit()
    shop.execute("NOTIFY shop, 'last'")
    heard = [notify.payload for notify in own.notifies(timeout=30, stop_after=2)]
    assert heard == ["first", "last"]


def test_unstorable_result_is_refused_before_any_write(shop: Database, own: Own) -> None:
    started = shop.begun()
    for result in (object(), "x" * 70_000):
        with pytest.raises(InvalidInput) as caught:
            work(own, completion(shop, started), result)
        assert [error.path for error in caught.value.errors] == ["result"]
        work(own, completion(shop, started))
        own.rollback()


def refusal(done: Completion, connection: object) -> str:
    with pytest.raises(Refused) as caught:
        done.complete_in(cast("Own", connection), None)
    [error] = caught.value.errors
    assert error.path == "connection"
    assert error.remedy
    return str(error)


def test_unusable_connection_is_refused_with_a_remedy(shop: Database, info: StackInfo, own: Own) -> None:
    started = shop.begun()
    done = completion(shop, started)
    with psycopg.connect(shop.url, autocommit=True) as bare:
        assert "in autocommit mode, outside a transaction" in refusal(done, bare)
        with bare.transaction(), bare.pipeline():
            assert "in a pipeline" in refusal(done, bare)
    assert "is closed" in refusal(done, bare)
    with psycopg.connect(shop.url, client_encoding="LATIN1") as latin:
        assert "has client_encoding=LATIN1" in refusal(done, latin)
    with psycopg.connect(make_conninfo(info.database_url, dbname="postgres")) as elsewhere:
        assert "no table job_runs" in refusal(done, elsewhere)
    with pytest.raises(psycopg.Error):
        own.execute("SELECT 1/0")
    assert "is in a failed transaction" in refusal(done, own)
    assert "a builtins.str was given" in refusal(done, "postgresql://")


def test_completion_without_a_run_is_refused(own: Own) -> None:
    run_id, flag = UUID(int=1), Flag()
    logger = logging.LoggerAdapter(logging.getLogger("test"))
    context = Context(run_id, 1, "job", "default", SystemClock().now(), 1.0, {}, str(run_id), None, logger, flag)
    with pytest.raises(RuntimeError, match=r"tidewheel\.testing\.run_handler"):
        context.complete_in(own)
