"""A scheduler drains releases; one that fails alone stops no other."""

from uuid import UUID

from tests.control.test_doctor import examine
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.scheduler.test_loop import running
from tests.transitions.graphs import after, changed, put
from tidewheel.clock import monotonic_seconds
from tidewheel.control.reads.findings import Finding, Severity
from tidewheel.ids import job_id
from tidewheel.scheduler.releases import Releases


def end_root(database: Database, key: str) -> UUID:
    root = database.trigger(key)
    database.succeed(database.begin(root))
    return root


def queued(database: Database) -> list[str]:
    return [key for (key,) in database.rows("SELECT key FROM job_runs JOIN jobs USING (job_id) ORDER BY key")]


def test_a_running_scheduler_releases_the_children(database: Database) -> None:
    put(database, {"a": [], "b": after("a")})
    with running(database):
        end_root(database, "a")
        until(lambda: queued(database) == ["b"], "the child is released")
    assert database.count("releases") == 0


def test_a_release_that_waits_for_a_lock_stops_neither_others_nor_firing(database: Database) -> None:
    put(database, {"a": [], "b": after("a")})
    put(database, {"x": [], "y": after("x")})
    end_root(database, "a")
    end_root(database, "x")
    session = database.session()
    releases = Releases(session, database.installation)
    with database.transaction() as deleting:
        deleting.execute("SELECT FROM jobs WHERE key = 'b' FOR UPDATE")
        since = monotonic_seconds()
        releases.step(range(64))
        assert monotonic_seconds() - since < 5  # a session's lock_timeout is 10 s
        assert queued(database) == ["y"]
    until(lambda: releases.step(range(64))[0], "the release is due again")
    session.close()
    assert queued(database) == ["b", "y"]
    assert database.count("releases") == 0


def test_a_release_that_fails_alone_is_postponed_and_the_others_go_on(database: Database) -> None:
    put(database, {"a": [], "b": after("a")})
    put(database, {"x": [], "y": after("x")})
    # A child without any version: no drain of it can succeed.
    database.execute("DELETE FROM job_versions WHERE job_id = %s", [job_id("default", "b")])
    broken = end_root(database, "a")
    end_root(database, "x")
    session = database.session()
    releases = Releases(session, database.installation)
    until(lambda: releases.step(range(64)) and queued(database) == ["y"], "the other child is released")
    session.close()
    assert database.rows("SELECT run_id, due_at > tidewheel_now() + interval '50 s' FROM releases") == [(broken, True)]


def test_a_release_that_never_drains_is_quarantined_until_a_resume(database: Database) -> None:
    put(database, {"a": [], "b": after("a")})
    at = "UPDATE job_versions SET effective_at = %s WHERE job_id = %s"
    database.execute(at, ["infinity", job_id("default", "b")])
    broken = end_root(database, "a")
    session = database.session()
    releases = Releases(session, database.installation)
    for _ in range(5):
        assert examine_quarantine(database) == []
        releases.step(range(64))
        database.execute("UPDATE releases SET due_at = tidewheel_now() WHERE due_at < 'infinity'")
    releases.step(range(64))
    [finding] = examine_quarantine(database)
    assert finding.severity is Severity.ERROR
    assert finding.what == "1 occurrence of workflows cannot go on"
    assert "KeyError" in finding.evidence
    assert finding.remedy.endswith(f"tidewheel workflow resume {broken} --tenant default")
    database.execute(at, ["2020-01-01T00:00Z", job_id("default", "b")])
    assert changed(database, "resume", broken)
    assert not changed(database, "resume", broken)
    assert examine_quarantine(database) == []
    releases.step(range(64))
    session.close()
    assert queued(database) == ["b"]


def examine_quarantine(database: Database) -> list[Finding]:
    return [each for each in examine(database) if each.check == "quarantine"]
