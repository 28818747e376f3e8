"""A running scheduler: NOTIFY wakes it, it sleeps until the next timer, and fires overdue ones."""

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.fixtures.acts import submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.scheduler.firing import EACH_SECOND, SECOND
from tests.scheduler.test_firing import scheduler_of
from tests.transitions.stepping import in_background
from tidewheel.membership import rendezvous
from tidewheel.postgres.notify import Channel, Notifier
from tidewheel.process.service import Shutdown
from tidewheel.scheduler.loop import Scheduler
from tidewheel.settings.services import SchedulerSettings


@contextmanager
def running(database: Database, **settings: object) -> Generator[None]:
    stop = Shutdown()
    scheduler = Scheduler(SchedulerSettings.load(**settings), database.url_of("scheduler"), database.installation, stop)
    ended = in_background(scheduler.run)
    try:
        yield
    finally:
        stop.request()
        ended.result(30)


def members(database: Database) -> int:
    return database.value("SELECT count(*) FROM members WHERE role = 'scheduler'")


def test_scheduler_joins_fires_and_leaves(database: Database) -> None:
    database.submit(**EACH_SECOND)
    with running(database, lookahead=timedelta(seconds=5)):
        until(lambda: len(database.job_runs()) >= 5, "five runs are written ahead")
        assert members(database) == 1
    assert members(database) == 0


def test_notification_of_earlier_timer_wakes_loop(database: Database) -> None:
    """With a poll of a day, nothing but the notification can be what woke it."""
    with running(database, scheduler_poll=timedelta(days=1), lookahead=timedelta(0)):
        until(lambda: members(database) == 1, "it has entered")
        notifier = Notifier(database.url, "test")
        database.submit(schedule={"once": database.now().isoformat()})

        def fired() -> bool:
            notifier.notify(Channel.TIMERS)
            return bool(database.job_runs())

        until(fired, "it fires")
        notifier.close()


def test_loop_sleeps_until_the_next_timer(database: Database) -> None:
    """Without a lookahead and with a poll of a day, only the timer itself can end the sleep."""
    at = database.now() + SECOND
    database.submit(schedule={"once": at.isoformat()})
    with running(database, scheduler_poll=timedelta(days=1), lookahead=timedelta(0)):
        until(lambda: database.job_runs(), "it fires")
    [run] = database.job_runs()
    assert run.publish_at >= run.scheduled_at == at


def test_overdue_timers_are_fired_by_another_scheduler(still: ClockedDatabase) -> None:
    """A live member that does not fire (frozen) delays timers for seconds only."""
    ghost = uuid4()
    still.execute(
        "INSERT INTO members VALUES (%s, 'scheduler', 'ghost', 0, tidewheel_now() + '9 s', tidewheel_now())", [ghost]
    )
    still.apply_batch(*(submission(f"job-{n}", **EACH_SECOND) for n in range(40)))
    with running(still, lookahead=timedelta(0), overdue_after=3 * SECOND):
        until(lambda: members(still) == 2, "it has entered")
        [(me,)] = still.rows("SELECT member_id FROM members WHERE name <> 'ghost'")
        mine = set(rendezvous(64, sorted([me, ghost]), me))
        still.advance(SECOND)
        shards = dict(still.rows("SELECT job_id, shard FROM jobs"))
        own = {job for job, shard in shards.items() if shard in mine}
        assert own < set(shards)
        until(lambda: {run.job_id for run in still.job_runs()} == own, "its own fire, and nobody else's")
        still.advance(3 * SECOND)
        until(lambda: {run.job_id for run in still.job_runs()} == set(shards), "the others are rescued")


def test_service_survives_lost_connections(database: Database) -> None:
    with running(database, scheduler_poll=timedelta(milliseconds=50)):
        until(lambda: members(database) == 1, "it has entered")
        database.submit(**EACH_SECOND)
        until(lambda: database.count("runs") > 0, "it fires")
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )
        before = database.count("runs")
        until(lambda: database.count("runs") > before, "it fires again")


def test_deferred_effects_are_applied_without_pause(database: Database) -> None:
    database.execute(
        "INSERT INTO deferred_effects (run_id, job_id, tenant, ended_at, reset_failures, release_job)"
        " SELECT gen_random_uuid(), gen_random_uuid(), 'default', now(), false, true FROM generate_series(1, 2500)"
    )
    with scheduler_of(database) as scheduler:
        for _ in range(3):
            scheduler.step()
    assert database.count("deferred_effects") == 0


def test_missing_second_connection_costs_speed_only(database: Database) -> None:
    """As where the role may have so many connections and no more: all else that a scheduler does goes on."""
    for number in range(60):
        database.submit(f"each-{number}", **EACH_SECOND)
    role = f"few_{uuid4().hex[:8]}"
    owner, few = sql.Identifier(database.value("SELECT current_user::text")), sql.Identifier(role)
    # Its own, and those that keep its membership and listen.
    database.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'few' CONNECTION LIMIT 3 IN ROLE {}").format(few, owner))
    stop = Shutdown()
    settings = SchedulerSettings.load(fire_batch=10, lookahead=timedelta(seconds=2))
    url = make_conninfo(database.url, user=role, password="few")
    ended = in_background(Scheduler(settings, url, database.installation, stop).run)
    try:
        until(lambda: len(database.job_runs()) >= 200, "batch after batch is fired")
        database.execute(
            "INSERT INTO deferred_effects (run_id, job_id, tenant, ended_at, reset_failures, release_job)"
            " VALUES (gen_random_uuid(), gen_random_uuid(), 'default', now(), false, true)"
        )
        until(lambda: database.count("deferred_effects") == 0, "the other duties are done")
    finally:
        stop.request()
        ended.result(30)
        database.execute(sql.SQL("DROP ROLE {}").format(few))
